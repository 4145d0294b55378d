// Every CUDA row of attend against the reference row on the CPU. As in attend_test.cpp, whatever no
// token may see (freed pages, free pages, rows past the end) is NaN, so that one touch of it spoils
// the answer.
#include <cuda_runtime_api.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "core/formats.h"
#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/gemm/staged.cuh"
#include "kernels/testing/cuda_test.h"

namespace moxie {
namespace {

// Tokens start..start + count - 1 of a sequence are in the launch; 0..start - 1 are in the cache.
struct Sequence {
  int32_t start, count;
};

// A launch with its cache, in host memory.
struct AttendCase {
  int32_t num_heads = 64, num_kv_heads = 8, head_dim = 64, window = 0, page_tokens = 16;
  DType dtype = DType::kBF16;
  std::vector<Sequence> seqs = {{0, 1}};
  bool use_sinks = true;
  float q_factor = 1.0f;
  int32_t num_spare_pages = 1;  // columns of the page table past the last that is needed
  // Keys at these positions have this value in all dimensions, and queries are near 2 in all.
  std::vector<std::pair<int32_t, float>> loud_keys;
  uint32_t seed = 1;

  std::vector<float> q, sinks;
  std::vector<int32_t> positions, seq_idx, row_offsets, table;
  std::vector<uint8_t> cache;
  int32_t table_stride = 0;
  int64_t page_stride_bytes = 0;
  double greatest_value = 0;

  std::string describe() const {
    std::string text = std::to_string(num_heads) + "/" + std::to_string(num_kv_heads) +
                       " heads of " + std::to_string(head_dim) + ", window " +
                       std::to_string(window) + ", pages of " + std::to_string(page_tokens) + " " +
                       std::string(dtype_name(dtype)) + ", sequences";
    for (const Sequence& seq : seqs)
      text += " " + std::to_string(seq.start) + "+" + std::to_string(seq.count);
    return text;
  }

  // Pointers into this case's vectors; `a` is left null.
  AttendParams params() const {
    AttendParams params{.num_heads = num_heads, .num_kv_heads = num_kv_heads, .head_dim = head_dim};
    params.window = window;
    params.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    params.q = q.data();
    params.sinks = use_sinks ? sinks.data() : nullptr;
    params.batch = {.num_tokens = static_cast<int32_t>(positions.size()),
                    .num_seqs = static_cast<int32_t>(seqs.size()),
                    .positions = positions.data(),
                    .seq_idx = seq_idx.data(),
                    .row_offsets = row_offsets.data()};
    auto* bytes = reinterpret_cast<std::byte*>(const_cast<uint8_t*>(cache.data()));
    params.kv = {.k = bytes,
                 .v = bytes + page_stride_bytes / 2,
                 .page_stride_bytes = page_stride_bytes,
                 .page_table = table.data(),
                 .table_stride = table_stride,
                 .page_tokens = page_tokens,
                 .dtype = dtype};
    return params;
  }

  void build() {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    row_offsets.assign(1, 0);
    for (size_t s = 0; s < seqs.size(); ++s) {
      for (int32_t i = 0; i < seqs[s].count; ++i) {
        positions.push_back(seqs[s].start + i);
        seq_idx.push_back(static_cast<int32_t>(s));
      }
      row_offsets.push_back(static_cast<int32_t>(positions.size()));
    }
    q.resize(positions.size() * static_cast<size_t>(num_heads * head_dim));
    const float mean = loud_keys.empty() ? 0.0f : 2.0f;
    const float deviation = loud_keys.empty() ? q_factor : 0.1f;
    for (float& x : q) x = mean + deviation * normal(random);
    for (int32_t head = 0; head < num_heads; ++head)
      sinks.push_back(q_factor * (0.7f * static_cast<float>(head % 7) - 2.0f));
    lay_out_pages(random);
    const AttendParams all = params();
    for (size_t s = 0; s < seqs.size(); ++s) {
      for (int32_t p = first_seen(seqs[s]); p < seqs[s].start + seqs[s].count; ++p) {
        for (int32_t head = 0; head < num_kv_heads; ++head) {
          const int64_t at =
              all.kv.offset(all.kv.page_of(static_cast<int32_t>(s), p), head, p, head_dim);
          for (int32_t i = 0; i < head_dim; ++i) {
            float key = normal(random);
            for (const auto& [position, loud] : loud_keys) key = position == p ? loud : key;
            store(all.kv.k + at, i, key);
            const float value = normal(random);
            greatest_value = std::max(greatest_value, std::fabs(1.07 * value));
            store(all.kv.v + at, i, value);
          }
        }
      }
    }
  }

  // How far a row may be from the exact answer of one token and head; see attend_test.cpp for the
  // form. To a chain of roundings of F32 come here
  //   the parts: where products are made of 16-bit factors, queries and weights are two of them,
  //   off by 2^-18 of themselves; 64 products of it off at random are off by 2 |q| 2^-18 (K has
  //   deviation 1);
  //   mma.sync: it cuts what is added where the greatest of its sum ends, 2 u of it at most and
  //   always downward: 8 in a logit, one for each 16 keys of a warp in a sum. Eight warps at least
  //   share the keys of a token.
  // Rows in BF16 round queries and weights to 2^-9 of themselves: that much of a weight, and of a
  // logit 2^-9 / sqrt(3) |q| in the mean. The greatest of many is four to five times the mean, of
  // which what all keys share cancels out.
  double tolerance(int32_t token, int32_t head, bool is_bf16) const {
    constexpr double u = 0x1p-24, part = 0x1p-18;
    double norm = 0;
    const size_t row =
        (static_cast<size_t>(token) * static_cast<size_t>(num_heads) + static_cast<size_t>(head)) *
        static_cast<size_t>(head_dim);
    for (size_t i = row; i < row + static_cast<size_t>(head_dim); ++i)
      norm += static_cast<double>(q[i]) * q[i];
    norm = std::sqrt(norm / head_dim);
    const double logit = 3 * norm;
    const double logit_error = (2 * std::sqrt(head_dim) + 16 + 3) * u * logit + 2 * part * norm;
    const double weight_error = logit_error + 4 * u + part + (is_bf16 ? 0x1p-9 * (1 + norm) : 0);
    const int32_t all = positions[static_cast<size_t>(token)] + 1;
    const double num_keys = window > 0 ? std::min(all, window) : all;
    const double sum_error = (2 * std::sqrt(num_keys / 32 + 16) + 2 * num_keys / 128 + 2) * u;
    return 2 * greatest_value * (weight_error + sum_error);
  }

 private:
  int32_t first_seen(const Sequence& seq) const {
    return window > 0 ? std::max(0, seq.start - window + 1) : 0;
  }
  int32_t row_bytes() const {
    return static_cast<int32_t>(dtype_bytes(dtype, static_cast<uint64_t>(head_dim)));
  }
  void store(std::byte* row, int32_t i, float value) const {
    if (dtype == DType::kF32) {
      std::memcpy(row + 4 * i, &value, 4);
    } else if (dtype == DType::kBF16) {
      const uint16_t bits = f32_to_bf16(value);
      std::memcpy(row + 2 * i, &bits, 2);
    } else {
      row[i] = static_cast<std::byte>(f32_to_e4m3(value));
    }
  }
  // Pages in any order; -1 where a window has passed.
  void lay_out_pages(std::mt19937& random) {
    int32_t longest = 0, num_pages = 3;  // that nobody holds
    for (const Sequence& seq : seqs) {
      const int32_t pages = ceil_div(seq.start + seq.count, page_tokens);
      longest = std::max(longest, pages);
      num_pages += pages - first_seen(seq) / page_tokens;
    }
    table_stride = longest + num_spare_pages;
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    for (int32_t i = 0; i < num_pages; ++i) order[static_cast<size_t>(i)] = i;
    std::shuffle(order.begin(), order.end(), random);
    table.assign(seqs.size() * static_cast<size_t>(table_stride), -1);
    for (size_t s = 0; s < seqs.size(); ++s) {
      const int32_t end = ceil_div(seqs[s].start + seqs[s].count, page_tokens);
      for (int32_t p = first_seen(seqs[s]) / page_tokens; p < end; ++p) {
        table[s * static_cast<size_t>(table_stride) + static_cast<size_t>(p)] = order.back();
        order.pop_back();
      }
    }
    page_stride_bytes = int64_t{2} * num_kv_heads * page_tokens * row_bytes();
    // All ones: NaN in F32, BF16 and E4M3.
    cache.assign(static_cast<size_t>(num_pages * page_stride_bytes), 0xFF);
  }
};

class AttendCudaTest : public CudaTest {
 protected:
  static std::vector<float> reference(const AttendCase& test) {
    std::vector<float> expected(test.q.size());
    AttendParams params = test.params();
    params.a = expected.data();
    const Row<AttendParams>& row = table_of<AttendParams>()[0];
    CHECK(std::string(row.name) == "attend_reference");
    row.run(params);
    return expected;
  }

  // The case on the device.
  AttendParams upload_case(const AttendCase& test) {
    AttendParams params = test.params();
    params.launch = launch();
    params.q = upload(test.q);
    params.sinks = test.use_sinks ? upload(test.sinks) : nullptr;
    params.batch.positions = upload(test.positions);
    params.batch.seq_idx = upload(test.seq_idx);
    params.batch.row_offsets = upload(test.row_offsets);
    params.kv.k = reinterpret_cast<std::byte*>(upload(test.cache));
    params.kv.v = params.kv.k + test.page_stride_bytes / 2;
    params.kv.page_table = upload(test.table);
    return params;
  }

  void expect_close(const std::vector<float>& found, const std::vector<float>& expected,
                    const AttendCase& test, const std::string& name) {
    ASSERT_EQ(found.size(), expected.size());
    const bool is_bf16 = name.find("_bf16_") != std::string::npos;
    const auto dim = static_cast<size_t>(test.head_dim);
    double worst = 0;
    std::string where;
    for (size_t row = 0; row < found.size() / dim; ++row) {
      const auto token = static_cast<int32_t>(row) / test.num_heads;
      const int32_t head = static_cast<int32_t>(row) % test.num_heads;
      const double allowed = test.tolerance(token, head, is_bf16);
      for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
        double share = std::fabs(static_cast<double>(found[i]) - expected[i]) / allowed;
        if (std::isnan(share)) share = INFINITY;
        if (share <= worst) continue;
        worst = share;
        where = "token " + std::to_string(token) + " head " + std::to_string(head) + " cell " +
                std::to_string(i % dim) + ": " + std::to_string(found[i]) + ", expected " +
                std::to_string(expected[i]) + ", allowed " + std::to_string(allowed);
      }
    }
    worst_share_ = std::max(worst_share_, worst);
    EXPECT_LE(worst, 1.0) << name << " " << test.describe() << " " << where;
  }

  // Every row that takes the case, and how many did.
  int expect_rows_match(AttendCase test) {
    test.build();
    const std::vector<float> expected = reference(test);
    const AttendParams params = upload_case(test);
    int num_rows = 0;
    for (const auto& row : table_of<AttendParams>()) {
      if (!can_run(row, params)) continue;
      ++num_rows;
      const std::vector<float> found = run_row(row, params, test.q.size());
      expect_close(found, expected, test, row.name);
      if (std::string(row.name) == kStagingAttendRow) expect_staged(row, params, found);
    }
    EXPECT_GE(num_rows, 1) << test.describe();
    free_uploads();
    return num_rows;
  }

  // The same answer, staged: each value rounded to BF16, in its place.
  void expect_staged(const Row<AttendParams>& row, AttendParams params,
                     const std::vector<float>& found) {
    const int32_t tokens = params.batch.num_tokens, width = params.num_heads * params.head_dim;
    const int32_t capacity = round_up(tokens, gemm::kStagedRows);
    params.stages_a = true;
    // In floats, two values each.
    const auto words = run_row(row, params, gemm::staged_bytes(capacity, width) / sizeof(float));
    const auto* bytes = reinterpret_cast<const std::byte*>(words.data());
    size_t num_wrong = 0;
    std::string first;
    for (int32_t token = 0; token < tokens; ++token) {
      for (int32_t column = 0; column < width; ++column) {
        const int64_t at = gemm::staged_offset(capacity, token, column / 2 * 2) + column % 2 * 2;
        uint16_t bits;
        std::memcpy(&bits, bytes + at, sizeof(bits));
        const float value = found[static_cast<size_t>(token) * width + column];
        const float staged = bf16_to_f32(bits), rounded = bf16_to_f32(f32_to_bf16(value));
        if (staged == rounded || (std::isnan(staged) && std::isnan(value))) continue;
        if (++num_wrong == 1) {
          first = "token " + std::to_string(token) + ", column " + std::to_string(column) + ": " +
                  std::to_string(staged) + ", expected " + std::to_string(rounded) + " of " +
                  std::to_string(value);
        }
      }
    }
    EXPECT_EQ(num_wrong, 0u) << "of " << tokens << " x " << width << "; " << first;
  }

  // Runs one row with a poisoned workspace and answer.
  std::vector<float> run_row(const Row<AttendParams>& row, AttendParams params, uint64_t count) {
    const DeviceArray a = poisoned<float>(count);
    const DeviceArray workspace = poisoned<uint8_t>(row.workspace(params));
    params.launch.workspace = workspace.buffer.data();
    params.launch.workspace_bytes = workspace.bytes;
    params.a = a.buffer.as<float>();
    row.run(params);
    download<uint8_t>(workspace);
    return download<float>(a);
  }
  bool can_run(const Row<AttendParams>& row, const AttendParams& params) {
    return row.device == DeviceKind::kCuda && (row.needs & features()) == row.needs &&
           row.refuses(params) == nullptr;
  }

  void TearDown() override {
    if (worst_share_ > 0) std::printf("  worst error: %.2f of the tolerance\n", worst_share_);
  }

  const Row<AttendParams>& row_named(const std::string& name) {
    for (const auto& row : table_of<AttendParams>()) {
      if (row.name == name) return row;
    }
    CHECK(false, name);
    return table_of<AttendParams>()[0];
  }

  double worst_share_ = 0;
};

constexpr DType kHalfCaches[] = {DType::kBF16, DType::kF8E4M3};
constexpr DType kCaches[] = {DType::kBF16, DType::kF8E4M3, DType::kF32};

TEST_F(AttendCudaTest, EveryGroupMatchesTheReference) {
  const std::pair<int32_t, int32_t> shapes[] = {{8, 8},  {8, 2},  {4, 2},  {12, 4},
                                                {5, 1},  {14, 2}, {64, 8}, {64, 64},
                                                {18, 2}, {16, 1}, {24, 2}, {30, 2}};
  for (const auto& [heads, kv_heads] : shapes) {
    for (const DType dtype : kHalfCaches) {
      for (const int32_t window : {0, 128}) {
        AttendCase test{.num_heads = heads, .num_kv_heads = kv_heads, .window = window};
        test.dtype = dtype;
        const bool has_prefill =
            heads == 8 * kv_heads && dtype == DType::kBF16 && (features() & kSm90a) != 0;
        test.seqs = {{150, 1}, {0, 21}};
        EXPECT_EQ(expect_rows_match(test), has_prefill ? 3 : 2);
        test.seqs = {{301, 1}};
        EXPECT_EQ(expect_rows_match(test), has_prefill ? 3 : 2);
      }
    }
  }
}

TEST_F(AttendCudaTest, EveryNumberOfTokensMatchesTheReference) {
  for (const int32_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
    for (const DType dtype : kHalfCaches) {
      for (const int32_t window : {0, 128}) {
        AttendCase test{.num_heads = 16, .num_kv_heads = 2, .window = window, .dtype = dtype};
        test.seqs = {{190, count}};
        expect_rows_match(test);
        test.seqs.assign(static_cast<size_t>(count), {0, 1});
        for (int32_t i = 0; i < count; ++i) test.seqs[static_cast<size_t>(i)].start = 37 * i;
        expect_rows_match(test);
      }
    }
  }
}

TEST_F(AttendCudaTest, EveryPageSizeAndCacheTypeMatchesTheReference) {
  for (const int32_t page : {1, 5, 16, 64, 100}) {
    for (const DType dtype : kCaches) {
      for (const int32_t window : {0, 1, 33, 128}) {
        AttendCase test{.num_heads = 8, .num_kv_heads = 2, .window = window, .page_tokens = page};
        test.dtype = dtype;
        test.seqs = {{0, 7}, {200, 1}, {61, 20}};
        expect_rows_match(test);
        test.seqs = {{203, 1}};
        expect_rows_match(test);
      }
    }
  }
}

TEST_F(AttendCudaTest, EveryDepthMatchesTheReference) {
  for (const int32_t depth : {0,   1,   14,  15,  16,  17,  31,  32,  33,   63,   126,  127, 128,
                              129, 143, 144, 255, 256, 257, 511, 512, 1000, 1023, 1024, 2049}) {
    for (const DType dtype : kHalfCaches) {
      for (const int32_t window : {0, 128, 300}) {
        for (const int32_t count : {1, 5}) {
          AttendCase test{.num_heads = 8, .num_kv_heads = 1, .window = window, .dtype = dtype};
          test.seqs = {{depth, count}};
          expect_rows_match(test);
        }
      }
    }
  }
}

TEST_F(AttendCudaTest, FewKeysInALongTableMatchTheReference) {
  for (const int32_t depth : {0, 40, 127, 128, 300, 900, 4999}) {
    for (const DType dtype : kHalfCaches) {
      AttendCase test{.num_heads = 16, .num_kv_heads = 2, .dtype = dtype};
      test.num_spare_pages = 8192;
      test.seqs = {{depth, 1}};
      expect_rows_match(test);
      test.seqs = {{depth, 3}, {depth / 2, 1}};
      expect_rows_match(test);
    }
  }
}

TEST_F(AttendCudaTest, TheShapeOfTheModelMatchesAtDepth) {
  for (const DType dtype : kHalfCaches) {
    for (const int32_t window : {0, 128}) {
      AttendCase test{.window = window, .dtype = dtype};
      test.seqs = {{4999, 1}};
      expect_rows_match(test);
      test.seqs = {{2047, 4}};
      expect_rows_match(test);
    }
  }
  AttendCase deep{.num_heads = 8, .num_kv_heads = 1};
  deep.seqs = {{33000, 1}};
  expect_rows_match(deep);
}

TEST_F(AttendCudaTest, RaggedMixesMatchTheReference) {
  std::mt19937 random(5);
  for (int i = 0; i < 24; ++i) {
    AttendCase test{.num_heads = 8, .num_kv_heads = 2, .window = i % 2 == 0 ? 0 : 128};
    test.dtype = kHalfCaches[i / 2 % 2];
    test.seed = static_cast<uint32_t>(random());
    test.seqs.clear();
    // More than 32 sequences in one mix of six.
    const int num_seqs = (i % 6 == 0 ? 33 : 1) + static_cast<int>(random() % 5);
    for (int s = 0; s < num_seqs; ++s) {
      test.seqs.push_back({static_cast<int32_t>(random() % 400),
                           random() % 2 == 0 ? 1 : static_cast<int32_t>(random() % 30)});
    }
    test.seqs.push_back({3, 1});
    expect_rows_match(test);
  }
}

// Whole and part tiles of tokens, blocks of keys that begin and end anywhere, decode tokens beside.
TEST_F(AttendCudaTest, PrefillChunksMatchTheReference) {
  for (const int32_t window : {0, 1, 33, 128, 300}) {
    for (const bool use_sinks : {true, false}) {
      AttendCase test{.window = window, .use_sinks = use_sinks};
      test.seqs = {{0, 200}};
      expect_rows_match(test);
      test.num_heads = 16, test.num_kv_heads = 2;
      test.seqs = {{517, 77}, {40, 1}, {0, 24}, {1111, 25}, {127, 129}, {256, 23}};
      expect_rows_match(test);
      test.page_tokens = 48;
      expect_rows_match(test);
    }
    AttendCase deep{.num_heads = 8, .num_kv_heads = 1, .window = window};
    deep.seqs = {{6144, 100}};
    expect_rows_match(deep);
  }
}

// Logits that leave the range in which weights need no maximum, in a later block than the first,
// twice; with and without the sink. A weight relative to the first block's would be infinite.
TEST_F(AttendCudaTest, PrefillFollowsLogitsThatJump) {
  const auto& row = row_named("attend_bf16_prefill_wgmma_sm90");
  if ((row.needs & features()) != row.needs) GTEST_SKIP() << "no such device";
  for (const int32_t window : {0, 128, 300}) {
    for (const bool use_sinks : {true, false}) {
      AttendCase test{.num_heads = 8, .num_kv_heads = 1, .window = window, .use_sinks = use_sinks};
      test.loud_keys = {{300, 4.0f}, {500, 8.0f}, {700, 9.0f}};
      test.seqs = {{0, 900}, {250, 300}, {480, 250}};
      test.build();
      const AttendParams params = upload_case(test);
      expect_close(run_row(row, params, test.q.size()), reference(test), test, row.name);
      free_uploads();
    }
  }
}

TEST_F(AttendCudaTest, WithoutSinksTheWeightsSumToOne) {
  for (const DType dtype : kCaches) {
    AttendCase test{.num_heads = 8, .num_kv_heads = 2, .dtype = dtype, .use_sinks = false};
    test.seqs = {{300, 1}, {0, 20}};
    expect_rows_match(test);
    test.seqs = {{0, 1}};
    expect_rows_match(test);
  }
}

TEST_F(AttendCudaTest, GreatLogitsNeitherOverflowNorLoseTheSink) {
  for (const DType dtype : kCaches) {
    for (const float factor : {30.0f, 1000.0f, 1e6f}) {
      AttendCase test{.num_heads = 8, .num_kv_heads = 2, .dtype = dtype, .q_factor = factor};
      test.seqs = {{40, 3}};
      expect_rows_match(test);
    }
  }
}

TEST_F(AttendCudaTest, EveryHeadSizeMatchesTheReference) {
  for (const int32_t dim : {16, 32, 80, 96, 128, 256, 512}) {
    for (const DType dtype : kCaches) {
      AttendCase test{.num_heads = 4, .num_kv_heads = 2, .head_dim = dim, .dtype = dtype};
      test.seqs = {{70, 3}};
      EXPECT_EQ(expect_rows_match(test), 1);
    }
  }
}

TEST_F(AttendCudaTest, ARunTwiceGivesTheSameBits) {
  AttendCase test;
  test.seqs = {{3000, 2}, {700, 1}, {500, 200}};
  test.build();
  const AttendParams params = upload_case(test);
  for (const auto& row : table_of<AttendParams>()) {
    if (!can_run(row, params)) continue;
    std::vector<float> first;
    for (int i = 0; i < 20; ++i) {
      const auto found = run_row(row, params, test.q.size());
      if (i == 0) first = found;
      ASSERT_EQ(std::memcmp(found.data(), first.data(), found.size() * 4), 0) << row.name << i;
    }
  }
}

TEST_F(AttendCudaTest, AMissingPageGivesNaN) {
  for (const DType dtype : kHalfCaches) {
    for (const int32_t count : {1, 3}) {
      AttendCase test{.dtype = dtype};
      test.seqs = {{1500, count}};
      test.build();
      test.table[50] = -1;
      AttendParams params = upload_case(test);
      for (const auto& row : table_of<AttendParams>()) {
        if (!can_run(row, params)) continue;
        const DeviceArray a = poisoned<float>(test.q.size());
        const DeviceArray workspace = poisoned<uint8_t>(row.workspace(params));
        params.launch.workspace = workspace.buffer.data();
        params.launch.workspace_bytes = workspace.bytes;
        // Zeros: the poison is NaN as well.
        done(device().fill_zero(a.buffer.data(), a.bytes, stream()));
        params.a = a.buffer.as<float>();
        row.run(params);
        size_t num_numbers = 0;
        for (const float x : download<float>(a)) num_numbers += !std::isnan(x);
        EXPECT_EQ(num_numbers, 0u) << row.name;
      }
    }
  }
}

TEST_F(AttendCudaTest, RowsRefuseWhatTheyCannotRun) {
  AttendParams params{.num_heads = 64, .num_kv_heads = 8, .head_dim = 64};
  params.kv.page_tokens = 16;
  const auto& split = row_named("attend_any_f32_split_cuda");
  const auto& plain = row_named("attend_any_f32_plain_cuda");
  EXPECT_EQ(split.refuses(params), nullptr);
  EXPECT_EQ(plain.refuses(params), nullptr);
  EXPECT_LT(split.cost(params), plain.cost(params));
  const auto& prefill = row_named("attend_bf16_prefill_wgmma_sm90");
  EXPECT_EQ(prefill.refuses(params), nullptr);
  params.batch = {.num_tokens = 8, .num_seqs = 1};
  EXPECT_GT(prefill.cost(params), split.cost(params));
  params.batch = {.num_tokens = 64, .num_seqs = 64};
  EXPECT_GT(prefill.cost(params), split.cost(params));
  params.batch = {.num_tokens = 2048, .num_seqs = 1};
  EXPECT_LT(prefill.cost(params), split.cost(params));
  params.kv.page_tokens = 20;
  EXPECT_NE(prefill.refuses(params), nullptr);
  params.kv.page_tokens = 16;
  params.kv.dtype = DType::kF8E4M3;
  EXPECT_NE(prefill.refuses(params), nullptr);
  params.kv.dtype = DType::kF32;
  EXPECT_NE(split.refuses(params), nullptr);
  EXPECT_EQ(plain.refuses(params), nullptr);
  params.kv.dtype = DType::kF16;
  EXPECT_NE(plain.refuses(params), nullptr);
  params.kv.dtype = DType::kBF16;
  params.num_kv_heads = 2;
  EXPECT_NE(split.refuses(params), nullptr);
  EXPECT_NE(prefill.refuses(params), nullptr);
  params.num_kv_heads = 8;
  params.head_dim = 32;
  EXPECT_NE(split.refuses(params), nullptr);
  params.head_dim = 528;
  EXPECT_NE(plain.refuses(params), nullptr);
}

// A graph's launches keep their shape; positions, queries, pages and keys change below it.
TEST_F(AttendCudaTest, ACapturedLaunchFollowsThePositionsOnTheDevice) {
  for (const auto* name : {"attend_any_f32_split_cuda", "attend_bf16_prefill_wgmma_sm90"}) {
    const auto& row = row_named(name);
    if ((row.needs & features()) != row.needs) continue;
    for (const int32_t window : {0, 128}) {
      AttendCase deep{.window = window}, shallow{.window = window};
      deep.seqs = {{1800, 1}, {333, 1}};
      shallow.seqs = {{90, 1}, {1801, 1}};
      shallow.seed = 2;
      deep.build();
      shallow.build();
      ASSERT_EQ(deep.table_stride, shallow.table_stride);
      const uint64_t cache_bytes = std::max(deep.cache.size(), shallow.cache.size());
      deep.cache.resize(cache_bytes, 0xFF);
      AttendParams params = upload_case(deep);
      const DeviceArray a = poisoned<float>(deep.q.size());
      params.a = a.buffer.as<float>();
      const DeviceArray workspace = poisoned<uint8_t>(row.workspace(params));
      params.launch.workspace = workspace.buffer.data();
      params.launch.workspace_bytes = workspace.bytes;
      const auto graph = take(device().capture(stream(), [&] { row.run(params); }));
      for (const AttendCase* test : {&deep, &shallow, &deep}) {
        const auto send = [&](const void* to, const auto& values) {
          done(device().copy_from_host(const_cast<void*>(to), values.data(),
                                       values.size() * sizeof(values[0]), stream()));
        };
        send(params.batch.positions, test->positions);
        send(params.q, test->q);
        send(params.kv.page_table, test->table);
        send(params.kv.k, test->cache);
        done(graph->launch(stream()));
        expect_close(download<float>(a), reference(*test), *test, row.name);
      }
    }
  }
}

// Time of a launch in a graph of launches, each on a cache of its own so that the L2 is cold, for
// the shape of gpt-oss. "chained": attend after attend, as programmatic launches, so that a launch
// fetches its old keys while the one before it works. "alternating": with launches that see a
// window of 128 keys, whose own time when chained is taken off. "after a kernel": behind a kernel
// that it cannot overlap with (an embed of one token, whose own time is taken off).
TEST_F(AttendCudaTest, DISABLED_Bench) {
  constexpr double kPeak = 4.62e12;  // bytes a second that an H200 reads
  constexpr int32_t kHeads = 64, kKvHeads = 8, kDim = 64, kPage = 16;
  const auto& row = row_named("attend_any_f32_split_cuda");
  const auto* embed = &table_of<EmbedParams>()[0];
  for (const auto& other : table_of<EmbedParams>()) {
    if (other.device == DeviceKind::kCuda) embed = &other;
  }
  auto* native = static_cast<cudaStream_t>(stream().native);
  cudaEvent_t begin, end;
  ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  const auto time_us = [&](const std::function<void()>& launches) {
    const auto graph = take(device().capture(stream(), launches));
    std::vector<float> times;
    for (int i = 0; i < 13; ++i) {
      cudaEventRecord(begin, native);
      done(graph->launch(stream()));
      cudaEventRecord(end, native);
      done(stream().synchronize());
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= 3) times.push_back(1000 * ms);
    }
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
  };

  constexpr uint64_t kCacheBytes = uint64_t{5} << 30;
  Buffer cache = take(device().allocate(kCacheBytes));
  std::mt19937 random(3);
  std::vector<uint32_t> noise(uint64_t{16} << 20);
  // BF16 and E4M3 of ordinary size: the exponents' top bits are cleared.
  for (uint32_t& x : noise) x = static_cast<uint32_t>(random()) & 0xBFBFBFBFu;
  for (uint64_t at = 0; at < kCacheBytes; at += noise.size() * 4) {
    done(device().copy_from_host(cache.data() + at, noise.data(), noise.size() * 4, stream()));
  }
  done(stream().synchronize());

  std::printf("%-8s %6s %6s %6s | %16s | %16s | %16s | %s\n", "cache", "depth", "window", "tokens",
              "chained us, share", "alternating", "after a kernel", "host us");
  for (const DType dtype : kHalfCaches) {
    for (const int32_t tokens : {1, 2, 4, 8, 512}) {
      for (const int32_t depth : {128, 2048, 8192, 32768}) {
        for (const int32_t window : {0, 128}) {
          if (window > 0 && depth != 2048) continue;
          if (tokens > 1 && tokens < 512 && depth != 2048 && depth != 32768) continue;
          if (tokens == 512 && depth != 2048) continue;
          const int32_t seen = window > 0 ? std::min(depth, window) : depth;
          const int32_t first_page = (depth - seen) / kPage, num_pages = ceil_div(depth, kPage);
          const int64_t row_bytes = static_cast<int64_t>(dtype_bytes(dtype, kDim));
          const int64_t page_bytes = 2 * kKvHeads * kPage * row_bytes;
          const int64_t layer_bytes = (num_pages - first_page) * page_bytes;
          const auto num_layers = static_cast<int32_t>(
              std::clamp<int64_t>((int64_t{256} << 20) / layer_bytes, 36, 720));
          ASSERT_LE(static_cast<uint64_t>((num_layers + 1) * layer_bytes), kCacheBytes);
          std::vector<int32_t> order(static_cast<size_t>(num_pages - first_page));
          for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
          std::shuffle(order.begin(), order.end(), random);
          std::vector<int32_t> table(static_cast<size_t>(num_pages), -1), positions;
          std::copy(order.begin(), order.end(), table.begin() + first_page);
          for (int32_t t = 0; t < tokens; ++t) positions.push_back(depth - tokens + t);
          const std::vector<int32_t> zeros(static_cast<size_t>(tokens), 0);
          AttendParams params{.launch = launch(),
                              .num_heads = kHeads,
                              .num_kv_heads = kKvHeads,
                              .head_dim = kDim,
                              .window = window};
          params.batch = {.num_tokens = tokens,
                          .num_seqs = 1,
                          .positions = upload(positions),
                          .seq_idx = upload(zeros),
                          .row_offsets = upload(std::vector<int32_t>{0, tokens})};
          const auto count = static_cast<uint64_t>(tokens * kHeads * kDim);
          params.q = upload(normal_values(count, 1.0f, 4));
          params.sinks = upload(normal_values(kHeads, 1.0f, 5));
          const DeviceArray a = poisoned<float>(count);
          params.a = a.buffer.as<float>();
          params.kv = {.page_stride_bytes = page_bytes,
                       .page_table = upload(table),
                       .table_stride = num_pages,
                       .page_tokens = kPage,
                       .dtype = dtype};
          const auto attend = [&](int32_t layer) {
            params.kv.k = cache.data() + layer * layer_bytes;
            params.kv.v = params.kv.k + page_bytes / 2;
            row.run(params);
          };
          const DeviceArray x = poisoned<float>(2880);
          EmbedParams small{.launch = launch(), .num_tokens = 1, .token_ids = upload(zeros)};
          small.table = {.data = cache.data(), .format = DType::kBF16, .rows = 1, .cols = 2880};
          small.x = x.buffer.as<float>();
          const auto before = std::chrono::steady_clock::now();
          for (int32_t i = 0; i < 36; ++i) attend(i);
          const std::chrono::duration<double, std::micro> host =
              std::chrono::steady_clock::now() - before;
          const double chained = time_us([&] {
                                   for (int32_t i = 0; i < num_layers; ++i) attend(i);
                                 }) /
                                 num_layers;
          // Every other launch sees a window of keys that all share, as in the model.
          AttendParams narrow = params;
          narrow.window = 128;
          narrow.kv.k = cache.data() + (num_pages - first_page) * page_bytes * num_layers;
          const auto attend_narrow = [&] {
            narrow.kv.v = narrow.kv.k + page_bytes / 2;
            row.run(narrow);
          };
          const double pairs = time_us([&] {
            for (int32_t i = 0; i < num_layers; ++i) attend_narrow(), attend(i);
          });
          const double narrows = time_us([&] {
            for (int32_t i = 0; i < num_layers; ++i) attend_narrow();
          });
          const double alternating = (pairs - narrows) / num_layers;
          const double both = time_us([&] {
            for (int32_t i = 0; i < num_layers; ++i) embed->run(small), attend(i);
          });
          const double embeds = time_us([&] {
            for (int32_t i = 0; i < num_layers; ++i) embed->run(small);
          });
          const double after = (both - embeds) / num_layers;
          const double bytes = 2.0 * kKvHeads * seen * static_cast<double>(row_bytes);
          std::printf("%-8s %6d %6d %6d | %8.2f %6.1f%% | %8.2f %6.1f%% | %8.2f %6.1f%% | %5.1f\n",
                      std::string(dtype_name(dtype)).c_str(), depth, window, tokens, chained,
                      100 * bytes / kPeak / chained * 1e6, alternating,
                      100 * bytes / kPeak / alternating * 1e6, after,
                      100 * bytes / kPeak / after * 1e6, host.count() / 36);
          size_t num_bad = 0;
          for (const float value : download<float>(a)) num_bad += !std::isfinite(value);
          EXPECT_EQ(num_bad, 0u);
          free_uploads();
        }
      }
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

}  // namespace
}  // namespace moxie
