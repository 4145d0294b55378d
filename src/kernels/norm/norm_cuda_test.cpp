// RMSNorm on CUDA against a double-precision sum.
#include "kernels/norm/norm_cuda.h"

#include <cmath>
#include <limits>

#include "kernels/norm/reference_norm.h"
#include "kernels/testing/cuda_test.h"

namespace moxie {
namespace {

class NormCudaTest : public CudaTest {
 protected:
  // Greatest error over |expected|, in units of F32's epsilon.
  void expect_close(int32_t tokens, int32_t hidden, float scale, float eps) {
    SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(hidden) + ", scale " +
                 std::to_string(scale));
    const auto count = static_cast<uint64_t>(tokens) * static_cast<uint64_t>(hidden);
    const auto x = normal_values(count, scale, 11);
    // Two floats a value, a coarse and a fine one.
    std::vector<float> halves;
    for (const float value : x) {
      const float coarse = std::round(value * 128 / scale) / 128 * scale;
      halves.insert(halves.end(), {coarse, value - coarse});
    }
    const auto weight = normal_values(static_cast<uint64_t>(hidden), 1.0f, 12);
    const DeviceArray y = poisoned<float>(count);
    rms_norm_f32_cuda({.num_tokens = tokens,
                       .width = hidden,
                       .eps = eps,
                       .x = upload(halves),
                       .weight = upload(weight),
                       .y = y.buffer.as<float>(),
                       .x_stride = hidden,
                       .y_stride = hidden},
                      launch());
    const std::vector<float> found = download<float>(y);

    double worst = 0;
    uint64_t worst_idx = 0;
    std::vector<double> expected(static_cast<size_t>(hidden));
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t column = i % static_cast<uint64_t>(hidden);
      if (column == 0) reference_rms_norm(&x[i], weight.data(), hidden, eps, expected.data());
      const double error =
          std::fabs(found[i] - expected[column]) / std::max(std::fabs(expected[column]), 1e-30);
      if (!(error <= worst)) worst = error, worst_idx = i;
    }
    // The two floats' sum, half the relative error of the sum of squares (a chain of hidden / 1024
    // groups of 4, and a tree), the square root, the division and two products.
    const double epsilon = std::numeric_limits<float>::epsilon();
    const double bound = (hidden / 1024.0 + 16) / 2 * epsilon + 4 * epsilon;
    EXPECT_LE(worst, bound) << "worst cell " << worst_idx << ": found " << found[worst_idx];
  }
};

TEST_F(NormCudaTest, AgreesWithDoubleForAnyShape) {
  for (const int32_t hidden : {4, 64, 1024, 1028, 2880, 4096, 14400, 16384}) {
    for (const int32_t tokens : {1, 3, 200}) expect_close(tokens, hidden, 1.0f, 1e-5f);
  }
}

TEST_F(NormCudaTest, LargeAndSmallActivationsKeepTheirDigits) {
  expect_close(5, 2880, 1e5f, 1e-5f);
  expect_close(5, 2880, 1e-4f, 1e-5f);
}

}  // namespace
}  // namespace moxie
