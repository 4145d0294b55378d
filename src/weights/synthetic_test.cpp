// Random weights: mean, deviation, padding, and independence of the number of threads.
#include "weights/synthetic.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/packing.h"

namespace moxie {
namespace {

std::vector<std::byte> made(PackedMatrix matrix, double deviation, uint64_t seed, int num_threads) {
  std::vector<std::byte> data(static_cast<size_t>(matrix.bytes()), std::byte{0xEE});
  matrix.data = data.data();
  ThreadPool pool(num_threads);
  fill_random_matrix(matrix, deviation, seed, pool);
  return data;
}

class SyntheticFormat : public testing::TestWithParam<DType> {};

TEST_P(SyntheticFormat, HasMeanZeroAndAboutTheDeviation) {
  for (const double deviation : {0.02, 0.1, 1.0}) {
    PackedMatrix matrix{.format = GetParam(), .rows = 64, .cols = 256};
    const std::vector<std::byte> data = made(matrix, deviation, 7, 1);
    matrix.data = data.data();
    double sum = 0, squares = 0;
    const double count = 64.0 * 256;
    for (int32_t r = 0; r < 64; ++r) {
      for (int32_t k = 0; k < 256; ++k) {
        const double value = packed_value(matrix, r, k);
        ASSERT_TRUE(std::isfinite(value));
        sum += value;
        squares += value * value;
      }
    }
    const double seen = std::sqrt(squares / count);
    EXPECT_GT(seen, deviation / 1.5);
    EXPECT_LT(seen, deviation * 1.5);
    // The mean of n values has the deviation seen / sqrt(n).
    EXPECT_LT(std::fabs(sum / count), 5 * seen / std::sqrt(count));
  }
}

TEST_P(SyntheticFormat, DependsOnTheSeedAndNotOnTheThreads) {
  const PackedMatrix matrix{
      .format = GetParam(), .num_experts = 3, .rows = 512, .cols = 2048};  // several chunks
  const std::vector<std::byte> one = made(matrix, 0.1, 7, 1);
  EXPECT_EQ(one, made(matrix, 0.1, 7, 3));
  EXPECT_NE(one, made(matrix, 0.1, 8, 1));
}

TEST_P(SyntheticFormat, PaddingRowsAreZeros) {
  PackedMatrix matrix{.format = GetParam(), .num_experts = 2, .rows = 21, .cols = 64};
  const std::vector<std::byte> data = made(matrix, 0.1, 7, 1);
  matrix.data = data.data();
  for (int32_t e = 0; e < 2; ++e) {
    for (int32_t r = 0; r < 32; ++r) {
      double row = 0;
      for (int32_t k = 0; k < 64; ++k) row += std::fabs(packed_value(matrix.expert(e), r, k));
      EXPECT_EQ(row == 0, r >= 21) << e << ' ' << r;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, SyntheticFormat,
                         testing::Values(DType::kBF16, DType::kF32, DType::kMXFP4),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace moxie
