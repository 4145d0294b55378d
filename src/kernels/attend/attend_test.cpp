// Every CPU row of attend against the reference, and the reference against closed forms. In every
// case whatever no token may see (freed pages, free pages, rows past the end) is NaN, so that one
// touch of it spoils the answer.
#include "kernels/attend/attend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "core/formats.h"
#include "kernels/attend/attend_rows.h"
#include "kernels/testing/row_tester.h"

namespace moxie {
namespace {

using testing::RowRuns;

// Tokens start..start + count - 1 of a sequence are in the launch; 0..start - 1 are in the cache.
struct Sequence {
  int32_t start, count;
};

// A launch with its cache. The cache's content depends on the seed, sequence, head and position
// alone, not on how the launch is cut or where pages lie.
class AttendCase {
 public:
  AttendCase& heads(int32_t heads, int32_t kv_heads) {
    return params_.num_heads = heads, params_.num_kv_heads = kv_heads, *this;
  }
  AttendCase& dim(int32_t head_dim) { return params_.head_dim = head_dim, *this; }
  AttendCase& window(int32_t keys) { return params_.window = keys, *this; }
  AttendCase& page(int32_t tokens) { return params_.kv.page_tokens = tokens, *this; }
  AttendCase& cache(DType dtype) { return params_.kv.dtype = dtype, *this; }
  AttendCase& seqs(std::vector<Sequence> list) { return seqs_ = std::move(list), *this; }
  AttendCase& sinks(bool on) { return use_sinks_ = on, *this; }
  AttendCase& seed(uint32_t seed) { return seed_ = seed, *this; }

  // The answers [tokens, heads, head_dim] of a row on `num_threads` threads.
  std::vector<float> run(const Row<AttendParams>& row, int num_threads = 2) {
    build();
    const auto device = make_cpu_device(num_threads);
    const auto stream = std::move(*device->make_stream());
    AttendParams params = params_;
    params.launch.stream = stream.get();
    EXPECT_EQ(row.refuses(params), nullptr);
    const uint64_t bytes = row.workspace(params);
    std::vector<std::byte> workspace(bytes + 64 + kGuard, std::byte{0xFF});
    auto at = reinterpret_cast<uintptr_t>(workspace.data());
    params.launch.workspace = workspace.data() + (64 - at % 64) % 64;
    params.launch.workspace_bytes = bytes;
    std::vector<float> answers(q_.size() + kGuard, kPoison);
    params.a = answers.data();
    row.run(params);
    for (size_t i = 0; i < kGuard; ++i) {
      EXPECT_EQ(params.launch.workspace[bytes + i], std::byte{0xFF}) << row.name;
      EXPECT_TRUE(std::isnan(answers[q_.size() + i])) << row.name;
    }
    answers.resize(q_.size());
    return answers;
  }

  // How far a row in F32 may be from the exact answer of one token and head. A chain of n
  // roundings, each off by u = 2^-24 of what is summed so far at most and as often up as down, is
  // off by 2 sqrt(n) u of it (3.5 deviations):
  //   a logit: head_dim products; what is summed stays within 3 |q| as K has deviation 1;
  //   a weight: its logit's error, u for rounding the distance to the greatest, 2 u for exp;
  //   a sum: a rounding for each key of a segment, and some for each segment and the lanes.
  // Weights count in the numerator and in the denominator, of |v| at most.
  double tolerance(int32_t token, int32_t head) const {
    constexpr double u = 0x1p-24;
    const double logit = 3 * params_.scale * norm(token, head);
    const double logit_error = 2 * std::sqrt(params_.head_dim) * u * logit;
    const double weight_error = logit_error + u * logit + 2 * u;
    const double num_keys = visible(token);
    const double sum_error = 2 * std::sqrt(std::min(num_keys, 256.0) + num_keys / 64 + 16) * u;
    return 2 * greatest_value_ * (weight_error + sum_error);
  }

  // What a row adds that rounds queries and weights to BF16. A value x moves by x d, |d| <= e =
  // 2^-9, as often up as down: the deviation of d is e / sqrt(3) at most.
  //   A logit moves by the sum of scale q_i d_i k_i: deviation scale |q| e / sqrt(3), as K has
  //   deviation 1. Keys differ, and so do their errors.
  //   A weight w_j so moves by w_j f_j, f_j of the logit and of its own rounding.
  // Numerator and denominator have the same weights: to first order the result a = sum w_j v_j
  // moves by sum w_j f_j (v_j - a), of deviation |f| sqrt(sum w_j^2) |v - a|. 6 deviations, with
  // the greatest |v| for |v - a|. The polynomial of exp is off by 8e-5 at most.
  double rounding_tolerance(int32_t token, int32_t head) const {
    constexpr double e = 0x1p-9;
    const double logit = params_.scale * norm(token, head);
    const double deviation = e * std::sqrt((1 + logit * logit) / 3);
    return greatest_value_ * (6 * deviation * norm_of_weights(token, head) + 2 * 8e-5);
  }

  // Expects `found` within the tolerance of `expected`; prints the worst cell if not.
  void expect_close(const std::vector<float>& found, const std::vector<float>& expected,
                    const Row<AttendParams>& row) const {
    const bool rounds = testing::activation_rounding(row) > 0;
    double worst = 0;
    std::string where;
    for (int32_t t = 0; t < params_.batch.num_tokens; ++t) {
      for (int32_t h = 0; h < params_.num_heads; ++h) {
        const double allowed = tolerance(t, h) + (rounds ? rounding_tolerance(t, h) : 0);
        for (int32_t i = 0; i < params_.head_dim; ++i) {
          const size_t at = (static_cast<size_t>(t) * params_.num_heads + h) * params_.head_dim + i;
          double share = std::fabs(found[at] - expected[at]) / allowed;
          if (std::isnan(share)) share = INFINITY;
          if (share <= worst) continue;
          worst = share;
          where = "token " + std::to_string(t) + " head " + std::to_string(h) + " cell " +
                  std::to_string(i) + ": " + std::to_string(found[at]) + ", expected " +
                  std::to_string(expected[at]) + ", allowed " + std::to_string(allowed);
        }
      }
    }
    EXPECT_LE(worst, 1.0) << row.name << " " << describe() << " " << where;
  }

  std::string describe() const {
    std::string text =
        std::to_string(params_.num_heads) + "/" + std::to_string(params_.num_kv_heads) +
        " heads of " + std::to_string(params_.head_dim) + ", window " +
        std::to_string(params_.window) + ", pages of " + std::to_string(params_.kv.page_tokens) +
        " " + std::string(dtype_name(params_.kv.dtype)) + ", sequences";
    for (const Sequence& seq : seqs_)
      text += " " + std::to_string(seq.start) + "+" + std::to_string(seq.count);
    return text;
  }

  AttendParams& params() { return params_; }
  std::vector<float>& q() { return q_; }
  std::vector<float>& sink_values() { return sinks_; }

  // Lays out everything; run() does so itself. Tests call it to change values afterwards.
  void build() {
    if (built_) return;
    built_ = true;
    lay_out_tokens();
    lay_out_pages();
    fill_cache();
    params_.scale = 1.0f / std::sqrt(static_cast<float>(params_.head_dim));
    params_.q = q_.data();
    params_.sinks = use_sinks_ ? sinks_.data() : nullptr;
    params_.kv.k = cache_.data();
    params_.kv.v = cache_.data() + params_.kv.page_stride_bytes / 2;
    params_.kv.page_table = table_.data();
    params_.batch.positions = positions_.data();
    params_.batch.seq_idx = seq_idx_.data();
    params_.batch.row_offsets = row_offsets_.data();
  }

  // A row of K or V as stored.
  std::byte* cache_row(bool is_v, int32_t seq, int32_t kv_head, int32_t position) {
    const KvLayer& kv = params_.kv;
    return (is_v ? kv.v : kv.k) +
           kv.offset(kv.page_of(seq, position), kv_head, position, params_.head_dim);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

  // The finaliser of SplitMix64.
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
  }

  std::vector<float> values(int32_t kind, int32_t seq, int32_t head, int32_t position) const {
    uint64_t state = seed_;
    for (int32_t part : {kind, seq, head, position})
      state = mix(state ^ static_cast<uint64_t>(part)) + 0x9E3779B97F4A7C15u;
    std::vector<float> row(static_cast<size_t>(params_.head_dim));
    // Sum of four uniforms: near normal, deviation 1, and quick.
    for (float& x : row) {
      const uint64_t bits = mix(state += 0x9E3779B97F4A7C15u);
      x = -2.0f;
      for (int i = 0; i < 4; ++i) x += static_cast<float>(bits >> (16 * i) & 0xFFFF) * 0x1p-16f;
      x *= 1.7320508f;
    }
    return row;
  }

  void lay_out_tokens() {
    row_offsets_.assign(1, 0);
    for (size_t s = 0; s < seqs_.size(); ++s) {
      for (int32_t i = 0; i < seqs_[s].count; ++i) {
        const int32_t position = seqs_[s].start + i;
        positions_.push_back(position);
        seq_idx_.push_back(static_cast<int32_t>(s));
        for (int32_t head = 0; head < params_.num_heads; ++head) {
          const auto row = values(2, static_cast<int32_t>(s), head, position);
          q_.insert(q_.end(), row.begin(), row.end());
        }
      }
      row_offsets_.push_back(static_cast<int32_t>(positions_.size()));
    }
    params_.batch.num_tokens = static_cast<int32_t>(positions_.size());
    params_.batch.num_seqs = static_cast<int32_t>(seqs_.size());
    for (int32_t head = 0; head < params_.num_heads; ++head)
      sinks_.push_back(0.7f * static_cast<float>(head % 7) - 2.0f);
  }

  int32_t first_seen(const Sequence& seq) const {
    return params_.window > 0 ? std::max(0, seq.start - params_.window + 1) : 0;
  }

  void lay_out_pages() {
    const int32_t pt = params_.kv.page_tokens;
    int32_t stride = 1, num_pages = 0;
    for (const Sequence& seq : seqs_) {
      const int32_t pages = ceil_div(seq.start + seq.count, pt);
      stride = std::max(stride, pages + 1);
      num_pages += pages;
    }
    num_pages += 3;  // that nobody holds
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    for (int32_t i = 0; i < num_pages; ++i) order[static_cast<size_t>(i)] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(seed_));
    table_.assign(seqs_.size() * static_cast<size_t>(stride), -1);
    for (size_t s = 0; s < seqs_.size(); ++s) {
      const int32_t end = ceil_div(seqs_[s].start + seqs_[s].count, pt);
      for (int32_t p = first_seen(seqs_[s]) / pt; p < end; ++p) {
        table_[s * static_cast<size_t>(stride) + static_cast<size_t>(p)] = order.back();
        order.pop_back();
      }
    }
    KvLayer& kv = params_.kv;
    kv.table_stride = stride;
    kv.page_table = table_.data();
    kv.page_stride_bytes = 2 * params_.num_kv_heads * pt * kv.row_bytes(params_.head_dim);
    // All ones: NaN in F32, BF16 and E4M3.
    cache_.assign(static_cast<size_t>(num_pages * kv.page_stride_bytes), std::byte{0xFF});
    kv.k = cache_.data();
    kv.v = cache_.data() + kv.page_stride_bytes / 2;
  }

  void fill_cache() {
    for (size_t s = 0; s < seqs_.size(); ++s) {
      for (int32_t p = first_seen(seqs_[s]); p < seqs_[s].start + seqs_[s].count; ++p) {
        for (int32_t head = 0; head < params_.num_kv_heads; ++head) {
          for (int kind = 0; kind < 2; ++kind) {
            const auto row = values(kind, static_cast<int32_t>(s), head, p);
            store(cache_row(kind == 1, static_cast<int32_t>(s), head, p), row);
            if (kind == 1) {
              for (float x : row) greatest_value_ = std::max(greatest_value_, std::fabs(1.07 * x));
            }
          }
        }
      }
    }
  }

  void store(std::byte* at, const std::vector<float>& row) const {
    for (size_t i = 0; i < row.size(); ++i) {
      if (params_.kv.dtype == DType::kF32) {
        std::memcpy(at + 4 * i, &row[i], 4);
      } else if (params_.kv.dtype == DType::kBF16) {
        const uint16_t bits = f32_to_bf16(row[i]);
        std::memcpy(at + 2 * i, &bits, 2);
      } else {
        at[i] = static_cast<std::byte>(f32_to_e4m3(row[i]));
      }
    }
  }

  int32_t visible(int32_t token) const {
    const int32_t all = positions_[static_cast<size_t>(token)] + 1;
    return params_.window > 0 ? std::min(all, params_.window) : all;
  }
  double norm(int32_t token, int32_t head) const {
    double sum = 0;
    const size_t row = (static_cast<size_t>(token) * params_.num_heads + head) * params_.head_dim;
    for (int32_t i = 0; i < params_.head_dim; ++i)
      sum +=
          static_cast<double>(q_[row + static_cast<size_t>(i)]) * q_[row + static_cast<size_t>(i)];
    return std::sqrt(sum);
  }

  // Of K, as stored.
  double load(const std::byte* row, int32_t i) const {
    if (params_.kv.dtype == DType::kF32) {
      float value;
      std::memcpy(&value, row + 4 * i, 4);
      return value;
    }
    if (params_.kv.dtype == DType::kF8E4M3) return e4m3_to_f32(static_cast<uint8_t>(row[i]));
    uint16_t bits;
    std::memcpy(&bits, row + 2 * i, 2);
    return bf16_to_f32(bits);
  }
  // sqrt(sum w^2) of a token and head's weights, by the definition.
  double norm_of_weights(int32_t token, int32_t head) const {
    const int32_t seq = seq_idx_[static_cast<size_t>(token)];
    const int32_t last = positions_[static_cast<size_t>(token)];
    const int32_t kv_head = head / (params_.num_heads / params_.num_kv_heads);
    const float* q =
        q_.data() + (static_cast<size_t>(token) * params_.num_heads + head) * params_.head_dim;
    std::vector<double> logits;
    for (int32_t p = last - visible(token) + 1; p <= last; ++p) {
      const KvLayer& kv = params_.kv;
      const std::byte* k = kv.k + kv.offset(kv.page_of(seq, p), kv_head, p, params_.head_dim);
      double sum = 0;
      for (int32_t i = 0; i < params_.head_dim; ++i) sum += q[i] * load(k, i);
      logits.push_back(params_.scale * sum);
    }
    const double m = *std::max_element(logits.begin(), logits.end());
    double sum = use_sinks_ ? std::exp(sinks_[static_cast<size_t>(head)] - m) : 0, squares = 0;
    for (double logit : logits) {
      sum += std::exp(logit - m);
      squares += std::exp(2 * (logit - m));
    }
    return std::sqrt(squares) / sum;
  }

  AttendParams params_{.num_heads = 8,
                       .num_kv_heads = 2,
                       .head_dim = 64,
                       .kv = {.page_tokens = 16, .dtype = DType::kBF16}};
  std::vector<Sequence> seqs_;
  bool use_sinks_ = true, built_ = false;
  uint32_t seed_ = 1;
  double greatest_value_ = 0;
  std::vector<float> q_, sinks_;
  std::vector<int32_t> positions_, seq_idx_, row_offsets_, table_;
  std::vector<std::byte> cache_;
};

// The rows that this machine can run, the reference apart; the first call prints the others.
std::vector<const Row<AttendParams>*> rows_here() {
  static bool is_first = true;
  std::vector<const Row<AttendParams>*> rows;
  for (const auto& row : Op<AttendParams>::rows()) {
    if (row.device != DeviceKind::kCpu || std::string(row.name) == "attend_reference") continue;
    const Features missing = row.needs & ~cpu_features();
    if (missing == 0) {
      rows.push_back(&row);
    } else if (is_first) {
      std::printf("not run: %s, needs %s\n", row.name, feature_names(missing).c_str());
    }
  }
  is_first = false;
  return rows;
}
const Row<AttendParams>& reference() { return Op<AttendParams>::rows()[0]; }

void expect_rows_match(AttendCase& test, RowRuns& runs) {
  const auto expected = test.run(reference());
  for (const auto* row : rows_here()) {
    if (const char* why = row->refuses(test.params())) {
      runs.refused(row->name, why);
    } else {
      runs.ran(row->name);
      test.expect_close(test.run(*row), expected, *row);
    }
  }
}

TEST(AttendReference, KeysOfZeroGiveTheMeanOfTheVisibleValuesAndTheSink) {
  for (int32_t window : {0, 1, 5}) {
    AttendCase test;
    test.heads(4, 2).dim(16).window(window).page(4).cache(DType::kF32).seqs({{7, 3}});
    test.build();
    for (int32_t head = 0; head < 2; ++head) {
      const int32_t first = window > 0 ? std::max(0, 7 - window + 1) : 0;
      for (int32_t p = first; p < 10; ++p)
        std::memset(test.cache_row(false, 0, head, p), 0, 16 * 4);
    }
    const auto found = test.run(reference());
    for (int32_t t = 0; t < 3; ++t) {
      for (int32_t h = 0; h < 4; ++h) {
        const int32_t last = 7 + t, first = window > 0 ? std::max(0, last - window + 1) : 0;
        for (int32_t i = 0; i < 16; ++i) {
          double sum = 0;
          for (int32_t p = first; p <= last; ++p) {
            float value;
            std::memcpy(&value, test.cache_row(true, 0, h / 2, p) + 4 * i, 4);
            sum += value;
          }
          const double expected = sum / (last - first + 1 + std::exp(test.sink_values()[h]));
          EXPECT_NEAR(found[(t * 4 + h) * 16 + i], expected, 1e-6) << window;
        }
      }
    }
  }
}

TEST(AttendReference, ASinkIsALogitThatTheScaleDoesNotTouch) {
  // One key with logit scale * (q . k) = 3: weight e^3 / (e^3 + e^sink).
  AttendCase test;
  test.heads(1, 1).dim(16).cache(DType::kF32).seqs({{0, 1}});
  test.build();
  std::vector<float> k(16, 0.0f);
  k[0] = 4.0f;
  test.q().assign(16, 0.0f);
  test.q()[0] = 3.0f;  // times 4 times 1 / sqrt(16)
  std::memcpy(test.cache_row(false, 0, 0, 0), k.data(), 64);
  test.sink_values()[0] = 2.0f;
  const auto found = test.run(reference());
  for (int32_t i = 0; i < 16; ++i) {
    float value;
    std::memcpy(&value, test.cache_row(true, 0, 0, 0) + 4 * i, 4);
    EXPECT_NEAR(found[i], value / (1 + std::exp(-1.0)), 1e-6);
  }
}

TEST(Attend, EveryShapeMatchesTheReference) {
  RowRuns runs;
  const std::pair<int32_t, int32_t> shapes[] = {{8, 2}, {16, 2}, {12, 4}, {64, 8}, {3, 3}, {5, 1}};
  for (const auto& [heads, kv_heads] : shapes) {
    for (int32_t window : {0, 128}) {
      expect_rows_match(
          AttendCase().heads(heads, kv_heads).window(window).seqs({{150, 1}, {0, 40}}), runs);
    }
  }
}

TEST(Attend, EveryHeadSizeMatchesTheReference) {
  RowRuns runs;
  for (int32_t dim : {16, 32, 48, 64, 80, 96, 128, 192, 256}) {
    for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
      expect_rows_match(AttendCase().heads(4, 2).dim(dim).cache(dtype).seqs({{70, 3}}), runs);
    }
  }
}

TEST(Attend, EveryPageSizeAndCacheTypeMatchesTheReference) {
  RowRuns runs;
  for (int32_t page : {1, 5, 16, 64}) {
    for (DType dtype : {DType::kBF16, DType::kF32, DType::kF8E4M3}) {
      for (int32_t window : {0, 1, 33, 128}) {
        expect_rows_match(
            AttendCase().page(page).cache(dtype).window(window).seqs({{0, 7}, {200, 1}, {61, 20}}),
            runs);
      }
    }
  }
}

TEST(Attend, EveryDepthMatchesTheReference) {
  RowRuns runs;
  for (int32_t depth : {0, 1, 15, 16, 31, 32, 127, 128, 255, 256, 257, 511, 1000}) {
    for (int32_t window : {0, 128, 300}) {
      expect_rows_match(AttendCase().heads(4, 2).window(window).seqs({{depth, 1}}), runs);
      expect_rows_match(AttendCase().heads(4, 2).window(window).seqs({{depth, 18}}), runs);
    }
  }
  // Past 8,192 the segments grow.
  expect_rows_match(AttendCase().heads(2, 1).dim(16).seqs({{8190, 4}, {20000, 1}}), runs);
}

TEST(Attend, RaggedMixesMatchTheReference) {
  RowRuns runs;
  std::mt19937 random(5);
  for (int i = 0; i < 12; ++i) {
    std::vector<Sequence> seqs;
    const int num_seqs = 1 + static_cast<int>(random() % 5);
    for (int s = 0; s < num_seqs; ++s) {
      seqs.push_back({static_cast<int32_t>(random() % 400),
                      random() % 2 == 0 ? 1 : 1 + static_cast<int32_t>(random() % 50)});
    }
    expect_rows_match(AttendCase().window(i % 2 == 0 ? 0 : 128).seqs(seqs).seed(random()), runs);
  }
}

TEST(Attend, WithoutSinksTheWeightsSumToOne) {
  RowRuns runs;
  expect_rows_match(AttendCase().sinks(false).seqs({{300, 1}, {0, 20}}), runs);
  // Position 0 without a sink is its own value, whatever the logit.
  for (const auto* row : rows_here()) {
    AttendCase test;
    test.heads(2, 2).dim(32).sinks(false).seqs({{0, 1}});
    const auto found = test.run(*row);
    for (int32_t h = 0; h < 2; ++h) {
      uint16_t value[32];
      std::memcpy(value, test.cache_row(true, 0, h, 0), sizeof(value));
      for (int32_t i = 0; i < 32; ++i)
        EXPECT_EQ(found[h * 32 + i], bf16_to_f32(value[i])) << row->name;
    }
  }
}

TEST(Attend, GreatLogitsNeitherOverflowNorLoseTheSink) {
  RowRuns runs;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (float factor : {30.0f, 1000.0f}) {
      AttendCase test;
      test.cache(dtype).seqs({{40, 3}});
      test.build();
      // Exact in BF16: rounded, such queries would choose other keys.
      for (float& x : test.q()) x = bf16_to_f32(f32_to_bf16(x * factor));
      for (float& sink : test.sink_values()) sink *= factor;
      expect_rows_match(test, runs);
    }
  }
}

TEST(Attend, AnySplitOfAPromptGivesTheSameBits) {
  std::mt19937 random(11);
  for (const auto* row : rows_here()) {
    for (int32_t window : {0, 128}) {
      const int32_t total = 330;
      AttendCase whole;
      const auto expected = whole.window(window).seqs({{0, total}}).run(*row);
      for (int split = 0; split < 4; ++split) {
        for (int32_t start = 0; start < total;) {
          const int32_t count =
              std::min(total - start, 1 + static_cast<int32_t>(random() % (split == 0 ? 9 : 120)));
          AttendCase chunk;
          const auto found = chunk.window(window).seqs({{start, count}}).run(*row);
          ASSERT_EQ(0, std::memcmp(found.data(), expected.data() + start * 8 * 64,
                                   found.size() * sizeof(float)))
              << row->name << " window " << window << " tokens " << start << "+" << count;
          start += count;
        }
      }
    }
  }
}

TEST(Attend, ThreadsAndNeighboursDoNotChangeABit) {
  for (const auto* row : rows_here()) {
    for (int32_t window : {0, 300}) {
      const std::vector<Sequence> seqs = {{1500, 1}, {700, 4}, {8500, 1}};
      AttendCase batch;
      const auto together = batch.window(window).seqs(seqs).run(*row, 1);
      for (int num_threads : {2, 3, 7}) {
        AttendCase again;
        const auto found = again.window(window).seqs(seqs).run(*row, num_threads);
        EXPECT_EQ(0, std::memcmp(found.data(), together.data(), found.size() * sizeof(float)))
            << row->name << " threads " << num_threads;
      }
      // The first sequence alone has the same content.
      AttendCase alone;
      const auto found = alone.window(window).seqs({seqs[0]}).run(*row, 5);
      EXPECT_EQ(0, std::memcmp(found.data(), together.data(), found.size() * sizeof(float)))
          << row->name;
    }
  }
}

TEST(Attend, WorkspaceForFewTokensDoesNotDependOnWhatPlanningCannotKnow) {
  for (const auto* row : rows_here()) {
    AttendParams planned{.num_heads = 64, .num_kv_heads = 8, .head_dim = 64};
    planned.kv.page_tokens = 16;
    planned.batch.num_tokens = 3;
    planned.batch.num_seqs = 1;
    AttendParams launched = planned;
    launched.batch.num_seqs = 3;
    launched.kv.table_stride = 8192;
    EXPECT_EQ(row->workspace(planned), row->workspace(launched)) << row->name;
  }
}

TEST(Attend, AMissingPageEndsTheProcess) {
  for (const auto& row : Op<AttendParams>::rows()) {
    if (row.device != DeviceKind::kCpu || (row.needs & cpu_features()) != row.needs) continue;
    AttendCase test;
    test.seqs({{40, 1}});
    test.build();
    const_cast<int32_t*>(test.params().kv.page_table)[1] = -1;
    EXPECT_DEATH(test.run(row, 1), "page") << row.name;
  }
}

TEST(Attend, RowsRefuseWhatTheyCannotRun) {
  const auto rows = rows_here();
  ASSERT_FALSE(rows.empty());
  AttendParams params{.num_heads = 8, .num_kv_heads = 2, .head_dim = 24};
  params.kv.page_tokens = 16;
  for (const auto* row : rows) EXPECT_NE(row->refuses(params), nullptr);
  EXPECT_EQ(reference().refuses(params), nullptr);
  params.head_dim = 64;
  params.kv.dtype = DType::kF16;
  for (const auto* row : rows) EXPECT_NE(row->refuses(params), nullptr);
  EXPECT_NE(reference().refuses(params), nullptr);
  params.kv.dtype = DType::kBF16;
  params.num_heads = 7;
  EXPECT_NE(reference().refuses(params), nullptr);
}

#if defined(__x86_64__)
// Which row runs by default on a machine with these features, if any.
std::string chosen(const AttendParams& params, Features features, const DeviceRates& rates = {}) {
  const KernelChooser chooser(DeviceKind::kCpu, features, KernelChoice(), rates);
  const auto row = chooser.select(params);
  return row ? (*row)->name : row.error().message();
}

TEST(Attend, ProductsInBf16AreForManyTokensOfLargeModels) {
  const Features bf16 = kAvx2 | kAvx512 | kAvx512Bf16;
  const std::string f32_row = "attend_any_f32_flash_avx512";
  const std::string bf16_row = "attend_any_bf16_flash_avx512bf16";
  AttendParams params{.num_heads = 64, .num_kv_heads = 8, .head_dim = 64};
  params.kv.page_tokens = 16;
  params.batch = {.num_tokens = 256, .num_seqs = 16};
  EXPECT_EQ(chosen(params, bf16), bf16_row);
  const DeviceRates slow_dots{.bf16_dot_cost = 2.5};
  EXPECT_EQ(chosen(params, bf16, slow_dots), f32_row);
  EXPECT_EQ(chosen(params, bf16 | kAmxBf16, slow_dots), "attend_any_bf16_flash_amx");
  EXPECT_EQ(chosen(params, bf16 | kAmxBf16), "attend_any_bf16_flash_amx");
  EXPECT_EQ(chosen(params, kAvx2 | kAvx512), f32_row);
  params.batch.num_tokens = 255;
  EXPECT_EQ(chosen(params, bf16 | kAmxBf16), f32_row);
  params.batch.num_tokens = 256;
  params.kv.dtype = DType::kF8E4M3;
  EXPECT_EQ(chosen(params, bf16), bf16_row);
  params.kv.dtype = DType::kF32;
  EXPECT_EQ(chosen(params, bf16), f32_row);
  params.kv.dtype = DType::kBF16;
  params.num_heads = 16;  // a width of 1,024
  EXPECT_EQ(chosen(params, bf16), f32_row);
  params.num_heads = 64;
  params.head_dim = 80;
  EXPECT_EQ(chosen(params, bf16), f32_row);
}
#endif

TEST(Attend, WorkCountsDistinctKeysOnceAndShownKeysEachTime) {
  AttendCase test;
  test.heads(8, 2).seqs({{10, 3}, {200, 1}}).window(0).build();
  const Work full = Op<AttendParams>::work(test.params());
  const double io = 2.0 * 4 * 4 * 8 * 64;
  EXPECT_DOUBLE_EQ(full.bytes, (13 + 201) * 2.0 * 2 * 64 * 2 + io);
  EXPECT_DOUBLE_EQ(full.flops, (11 + 12 + 13 + 201) * 4.0 * 8 * 64);
  test.params().window = 128;
  const Work window = Op<AttendParams>::work(test.params());
  EXPECT_DOUBLE_EQ(window.bytes, (13 + 128) * 2.0 * 2 * 64 * 2 + io);

  // From the sums alone, where positions are out of reach: exact for equal sequences.
  AttendParams far = test.params();
  far.batch = {.num_tokens = 6, .num_seqs = 2, .num_visible_keys = 2 * (11 + 12 + 13)};
  far.window = 0;
  far.launch.device = DeviceKind::kCuda;
  EXPECT_DOUBLE_EQ(Op<AttendParams>::work(far).flops, 2 * (11 + 12 + 13) * 4.0 * 8 * 64);
  EXPECT_DOUBLE_EQ(Op<AttendParams>::work(far).bytes,
                   2 * 13 * 2.0 * 2 * 64 * 2 + 2.0 * 6 * 4 * 8 * 64);
}

}  // namespace
}  // namespace moxie
