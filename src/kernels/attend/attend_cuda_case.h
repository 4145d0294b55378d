// Launches of attend with their caches, and the fixture that compares CUDA rows with the reference
// row on the CPU. As in attend_test.cpp, cache memory that no token may see (freed pages, free
// pages, rows past the end) is NaN, so that one read of it spoils the answer.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "core/formats.h"
#include "kernels/attend/attend.h"
#include "kernels/gemm/staged.cuh"
#include "kernels/testing/cuda_test.h"
#include "kernels/testing/row_tester.h"

namespace moxie::testing {

// Tokens start..start + count - 1 of a sequence are in the launch; 0..start - 1 are in the cache.
struct Sequence {
  int32_t start, count;
};

// A launch with its cache, in host memory.
struct AttendCudaCase {
  int32_t num_heads = 64, num_kv_heads = 8, head_dim = 64, window = 0, page_tokens = 16;
  DType dtype = DType::kBF16;
  std::vector<Sequence> seqs = {{0, 1}};
  bool use_sinks = true;
  float q_factor = 1.0f;
  int32_t num_spare_pages = 1;  // columns of the page table past the last one needed
  // All dimensions of the keys at these positions have this value, and queries are near 2 in all.
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

  // The tolerance of one token and head against the exact answer; attend_test.cpp gives the form.
  // Two errors add to a chain of F32 roundings:
  //   the parts: products of 16-bit factors have the queries and the weights off by 2^-18 of
  //   themselves; 64 products with random errors are off by 2 |q| 2^-18 (K has deviation 1);
  //   mma.sync: it truncates each addend at the last place of the greatest addend, by 2 u of the
  //   latter at most and always downward: 8 times in a logit, once for each 16 keys of a warp in a
  //   sum. At least eight warps share the keys of a token.
  // Rows in BF16 round queries and weights to 2^-9 of themselves: a weight is off by that much, a
  // logit by 2^-9 / sqrt(3) |q| in the mean. The greatest of many such errors is four to five times
  // the mean, and the error common to all keys cancels out.
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
  // Pages in any order; -1 where the window has moved past a page.
  void lay_out_pages(std::mt19937& random) {
    int32_t longest = 0, num_pages = 3;  // num_pages: 3 that no sequence holds
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
  // The rows run in several tests of the suite.
  inline static SuiteRowRuns runs_;
  static void SetUpTestSuite() { runs_.begin(); }
  static void TearDownTestSuite() { runs_.end(); }

  static std::vector<float> reference(const AttendCudaCase& test) {
    std::vector<float> expected(test.q.size());
    AttendParams params = test.params();
    params.a = expected.data();
    static TestMachine machine(0);
    params.launch.stream = machine.stream.get();
    const Row<AttendParams>& row = Op<AttendParams>::rows()[0];
    CHECK(std::string(row.name) == "attend_reference");
    row.run(params);
    return expected;
  }

  // Copies the case to the device.
  AttendParams upload_case(const AttendCudaCase& test) {
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
                    const AttendCudaCase& test, const std::string& name) {
    ASSERT_EQ(found.size(), expected.size());
    const bool is_bf16 = activation_rounding(name) > 0;
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

  // Runs every row that takes the case; returns the number of such rows.
  int expect_rows_match(AttendCudaCase test) {
    test.build();
    const std::vector<float> expected = reference(test);
    const AttendParams params = upload_case(test);
    int num_rows = 0;
    for (const auto& row : Op<AttendParams>::rows()) {
      if (row.device != DeviceKind::kCuda) continue;
      if (const Features missing = row.needs & ~features(); missing != 0) {
        runs_->cannot_run(row.name, missing);
        continue;
      }
      if (const char* why = row.refuses(params)) {
        runs_->refused(row.name, why);
        continue;
      }
      runs_->ran(row.name);
      ++num_rows;
      const std::vector<float> found = run_row(row, params, test.q.size());
      expect_close(found, expected, test, row.name);
      if (row.forms.a.has(AForm::kBf16Staged)) expect_staged(row, params, found);
      if (row.forms.q.has(QForm::kBf16Staged)) expect_staged_queries(row, params, test, found);
    }
    EXPECT_GE(num_rows, 1) << test.describe();
    free_uploads();
    return num_rows;
  }

  // Staged queries must give the same answer, to the bit.
  void expect_staged_queries(const Row<AttendParams>& row, AttendParams params,
                             const AttendCudaCase& test, const std::vector<float>& found) {
    std::vector<uint16_t> bits;
    for (const float value : test.q) bits.push_back(f32_to_bf16(value * params.q_factor()));
    params.q = reinterpret_cast<const float*>(upload(bits));
    params.forms.q = QForm::kBf16Staged;
    const std::vector<float> staged = run_row(row, params, test.q.size());
    size_t num_wrong = 0;
    for (size_t i = 0; i < found.size(); ++i)
      num_wrong += std::bit_cast<uint32_t>(staged[i]) != std::bit_cast<uint32_t>(found[i]) ? 1 : 0;
    EXPECT_EQ(num_wrong, 0u) << "of " << found.size() << " with staged queries, "
                             << test.describe();
  }

  // The staged output must be the same answer: each value rounded to BF16, in its place.
  void expect_staged(const Row<AttendParams>& row, AttendParams params,
                     const std::vector<float>& found) {
    const int32_t tokens = params.batch.num_tokens, width = params.num_heads * params.head_dim;
    const int32_t capacity = round_up(tokens, gemm::kStagedRows);
    params.forms.a = AForm::kBf16Staged;
    // The size in floats: two staged values each.
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
    for (const auto& row : Op<AttendParams>::rows()) {
      if (row.name == name) return row;
    }
    CHECK(false, name);
    return Op<AttendParams>::rows()[0];
  }

  // The rows for many tokens and such a cache that this device can run.
  std::vector<const Row<AttendParams>*> prefill_rows(DType cache) {
    const char* const of_cache = cache == DType::kBF16 ? "attend_bf16_" : "attend_e4m3_";
    std::vector<const Row<AttendParams>*> rows;
    for (const auto& row : Op<AttendParams>::rows()) {
      const bool is_of_device =
          row.device == DeviceKind::kCuda && (row.needs & features()) == row.needs;
      const std::string name = row.name;
      if (is_of_device && name.starts_with(of_cache) &&
          (name.find("_prefill_") != name.npos || name.find("_ordered_") != name.npos))
        rows.push_back(&row);
    }
    return rows;
  }

  double worst_share_ = 0;
};

}  // namespace moxie::testing
