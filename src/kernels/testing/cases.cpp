// Builds the cases: random contents of the sizes asked for.
#include "kernels/testing/cases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace moxie::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr int32_t kPageTokens = 4, kMaxPositions = 64;

std::string text(const char* step, DType weights, std::initializer_list<int64_t> sizes) {
  std::string name = std::string(step) + " " + std::string(dtype_name(weights));
  for (int64_t size : sizes) name += " " + std::to_string(size);
  return name;
}

template <typename P>
float* keep(Built<P>& built, std::vector<float> values) {
  built.floats.push_back(std::move(values));
  return built.floats.back().data();
}
template <typename P>
int32_t* keep(Built<P>& built, std::vector<int32_t> values) {
  built.ints.push_back(std::move(values));
  return built.ints.back().data();
}
template <typename P>
PackedMatrix keep(Built<P>& built, PackedTensor tensor) {
  built.weights.push_back(std::move(tensor));
  return built.weights.back().matrix;
}

std::vector<float> near_one(int64_t n, Random& random) {
  std::vector<float> values = random.uniforms(n, 0.3f);
  for (float& value : values) value += 1.0f;
  return values;
}

template <typename T>
std::vector<double> doubles(const T* from, int64_t n) {
  return {from, from + n};
}

// One byte or two of a cache as a number.
std::vector<double> cache_values(const KvLayer& kv, const std::byte* from, int64_t n) {
  std::vector<double> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    if (kv.dtype == DType::kF32) {
      values[i] = reinterpret_cast<const float*>(from)[i];
    } else if (kv.dtype == DType::kBF16) {
      values[i] = bf16_to_f32(reinterpret_cast<const uint16_t*>(from)[i]);
    } else {
      values[i] = e4m3_to_f32(reinterpret_cast<const uint8_t*>(from)[i]);
    }
  }
  return values;
}

}  // namespace

double f32_sum_error(int64_t k) { return (32.0 + static_cast<double>(k) / 32.0) * 0x1p-24; }

// ---- qkv ----------------------------------------------------------------------------------------

std::string QkvCase::name() const {
  return text("qkv", weights, {tokens, hidden, heads, kv_heads, head_dim}) + " cache " +
         std::string(dtype_name(cache));
}

Built<QkvParams> build(const QkvCase& c) {
  Random random(c.seed);
  Built<QkvParams> built;
  const int32_t rows = (c.heads + 2 * c.kv_heads) * c.head_dim;
  // Three sequences in turn with pages out of order, each starting at a position of its own.
  constexpr int32_t num_seqs = 3;
  const int32_t first = c.first_position;
  int32_t next[num_seqs] = {first, first + 3, first + 17};
  const int32_t max_positions = std::max(kMaxPositions, first + 17 + ceil_div(c.tokens, num_seqs));
  const int32_t pages_per_seq = ceil_div(max_positions, kPageTokens);
  std::vector<int32_t> positions, seqs, pages(static_cast<size_t>(num_seqs) * pages_per_seq);
  for (int32_t token = 0; token < c.tokens; ++token) {
    seqs.push_back(token % num_seqs);
    positions.push_back(next[token % num_seqs]++);
  }
  std::iota(pages.begin(), pages.end(), 0);
  for (size_t i = pages.size(); i > 1; --i) {
    std::swap(pages[i - 1], pages[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
  }
  QkvParams& p = built.params;
  p.batch = {.num_tokens = c.tokens, .num_seqs = num_seqs};
  p.batch.positions = keep(built, std::move(positions));
  p.batch.seq_idx = keep(built, std::move(seqs));
  p.hidden = c.hidden, p.num_heads = c.heads, p.num_kv_heads = c.kv_heads;
  p.head_dim = c.head_dim;
  p.x = keep(built, random.uniforms(int64_t{c.tokens} * c.hidden, 3.0f));
  p.norm_weight = keep(built, near_one(c.hidden, random));
  p.weight = keep(built, random_packed(c.weights, 1, rows, c.hidden, random));
  p.bias = keep(built, random.uniforms(rows, 0.5f));
  std::vector<float> table;
  for (int32_t position = 0; position < max_positions; ++position) {
    for (int32_t i = 0; i < c.head_dim; ++i) {
      const double angle = position * std::pow(150.0, -2.0 * (i % (c.head_dim / 2)) / c.head_dim);
      table.push_back(static_cast<float>(i < c.head_dim / 2 ? std::cos(angle) : std::sin(angle)));
    }
  }
  p.rotary = {.table = keep(built, std::move(table)), .max_positions = max_positions};
  p.kv.dtype = c.cache;
  p.kv.page_tokens = kPageTokens;
  p.kv.table_stride = pages_per_seq;
  p.kv.page_stride_bytes = c.kv_heads * kPageTokens * p.kv.row_bytes(c.head_dim);
  const auto cache_bytes = static_cast<size_t>(p.kv.page_stride_bytes) * pages.size();
  p.kv.page_table = keep(built, std::move(pages));
  built.bytes.assign(2, std::vector<std::byte>(cache_bytes));
  p.kv.k = built.bytes[0].data(), p.kv.v = built.bytes[1].data();
  p.q = keep(built, std::vector<float>(static_cast<size_t>(c.tokens) * c.heads * c.head_dim));
  return built;
}

template <>
void Built<QkvParams>::reset() {
  for (auto& cache : bytes) std::fill(cache.begin(), cache.end(), std::byte{0});
  std::fill_n(params.q, int64_t{params.batch.num_tokens} * params.num_heads * params.head_dim,
              kNan);
}

template <>
std::vector<Output> Built<QkvParams>::outputs() const {
  const QkvParams& p = params;
  const int64_t q_width = int64_t{p.num_heads} * p.head_dim;
  // The norm and the rotation round a few times more.
  const double rounding = f32_sum_error(p.hidden) + 8 * 0x1p-24;
  std::vector<Output> list;
  list.push_back({.name = "q",
                  .width = q_width,
                  .values = doubles(p.q, p.batch.num_tokens * q_width),
                  .rounding = rounding});
  // The whole cache, so that a write outside the tokens' places is seen. A value near the middle of
  // two codes may go to either.
  const double step = p.kv.dtype == DType::kF32 ? 0 : p.kv.dtype == DType::kBF16 ? 0x1p-7 : 0x1p-3;
  const double least = p.kv.dtype == DType::kF8E4M3 ? 0x1p-9 : 0;
  const int64_t n = static_cast<int64_t>(bytes[0].size()) * p.head_dim / p.kv.row_bytes(p.head_dim);
  for (int i = 0; i < 2; ++i) {
    list.push_back({.name = i == 0 ? "k" : "v",
                    .width = int64_t{p.head_dim},
                    .values = cache_values(p.kv, bytes[i].data(), n),
                    .rounding = rounding,
                    .relative = step,
                    .absolute = least});
  }
  return list;
}

// ---- out ----------------------------------------------------------------------------------------

std::string OutCase::name() const { return text("out", weights, {tokens, rows, cols}); }

Built<OutParams> build(const OutCase& c) {
  Random random(c.seed);
  Built<OutParams> built;
  OutParams& p = built.params;
  p.num_tokens = c.tokens;
  p.a = keep(built, random.uniforms(int64_t{c.tokens} * c.cols, 2.0f));
  p.weight = keep(built, random_packed(c.weights, 1, c.rows, c.cols, random));
  p.bias = keep(built, random.uniforms(c.rows));
  built.initial_x = random.uniforms(int64_t{c.tokens} * c.rows, 3.0f);
  p.x = keep(built, built.initial_x);
  return built;
}

template <>
void Built<OutParams>::reset() {
  std::copy(initial_x.begin(), initial_x.end(), params.x);
}

template <>
std::vector<Output> Built<OutParams>::outputs() const {
  return {{.name = "x",
           .width = params.weight.rows,
           .values = doubles(params.x, int64_t{params.num_tokens} * params.weight.rows),
           .rounding = f32_sum_error(params.weight.cols)}};
}

// ---- route --------------------------------------------------------------------------------------

std::string RouteCase::name() const {
  return text("route", weights, {tokens, hidden, experts, top_k});
}

Built<RouteParams> build(const RouteCase& c) {
  Random random(c.seed);
  Built<RouteParams> built;
  RouteParams& p = built.params;
  p.num_tokens = c.tokens, p.hidden = c.hidden, p.top_k = c.top_k;
  p.x = keep(built, random.uniforms(int64_t{c.tokens} * c.hidden, 3.0f));
  p.norm_weight = keep(built, near_one(c.hidden, random));
  p.weight = keep(built, random_packed(c.weights, 1, c.experts, c.hidden, random));
  p.bias = keep(built, random.uniforms(c.experts));
  p.t = keep(built, std::vector<float>(static_cast<size_t>(c.tokens) * c.hidden));
  p.expert_weights = keep(built, std::vector<float>(static_cast<size_t>(c.tokens) * c.top_k));
  p.expert_ids = keep(built, std::vector<int32_t>(static_cast<size_t>(c.tokens) * c.top_k));
  return built;
}

template <>
void Built<RouteParams>::reset() {
  std::fill_n(params.t, int64_t{params.num_tokens} * params.hidden, kNan);
  std::fill_n(params.expert_weights, int64_t{params.num_tokens} * params.top_k, kNan);
  std::fill_n(params.expert_ids, int64_t{params.num_tokens} * params.top_k, -1);
}

template <>
std::vector<Output> Built<RouteParams>::outputs() const {
  const RouteParams& p = params;
  const int64_t num_slots = int64_t{p.num_tokens} * p.top_k;
  // Logits are at most about 5, and a weight moves by at most the logits' error.
  return {{.name = "t",
           .width = p.hidden,
           .values = doubles(p.t, int64_t{p.num_tokens} * p.hidden),
           .rounding = 8 * 0x1p-24},
          {.name = "expert_ids", .width = p.top_k, .values = doubles(p.expert_ids, num_slots)},
          {.name = "expert_weights",
           .width = p.top_k,
           .values = doubles(p.expert_weights, num_slots),
           .rounding = 5 * f32_sum_error(p.hidden)}};
}

// ---- experts ------------------------------------------------------------------------------------

std::string ExpertsCase::name() const {
  return text("experts", weights, {tokens, hidden, intermediate, experts, top_k});
}

Built<ExpertsParams> build(const ExpertsCase& c) {
  Random random(c.seed);
  Built<ExpertsParams> built;
  ExpertsParams& p = built.params;
  const int32_t gate_up_rows = 2 * round_up(c.intermediate, 16);
  p.num_tokens = c.tokens, p.hidden = c.hidden, p.intermediate = c.intermediate;
  p.top_k = c.top_k;
  p.t = keep(built, random.uniforms(int64_t{c.tokens} * c.hidden, 2.0f * c.input_scale));
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int32_t token = 0; token < c.tokens; ++token) {
    std::vector<int32_t> all(static_cast<size_t>(c.experts));
    std::iota(all.begin(), all.end(), 0);
    float sum = 0;
    for (int32_t slot = 0; slot < c.top_k; ++slot) {
      // Half of the tokens choose among the first experts only: groups of very different sizes.
      const int32_t num_choices = (token % 2 == 0 ? c.experts : std::min(c.experts, c.top_k + 1));
      std::swap(all[slot], all[slot + random.below(num_choices - slot)]);
      ids.push_back(all[slot]);
      weights.push_back(1.05f + random.uniform());
      sum += weights.back();
    }
    for (int32_t slot = 0; slot < c.top_k; ++slot) weights[weights.size() - 1 - slot] /= sum;
  }
  p.expert_ids = keep(built, std::move(ids));
  p.expert_weights = keep(built, std::move(weights));
  p.gate_up = keep(
      built, random_packed(c.weights, c.experts, gate_up_rows, c.hidden, random, c.intermediate));
  p.down = keep(built, random_packed(c.weights, c.experts, c.hidden, c.intermediate, random));
  std::vector<float> bias = random.uniforms(int64_t{c.experts} * gate_up_rows);
  for (int32_t e = 0; e < c.experts; ++e) {
    for (int32_t i = c.intermediate; i < gate_up_rows / 2; ++i) {
      bias[int64_t{e} * gate_up_rows + gate_up_packed_row(i, 0)] = 0;
      bias[int64_t{e} * gate_up_rows + gate_up_packed_row(i, 1)] = 0;
    }
  }
  p.gate_up_bias = keep(built, std::move(bias));
  p.down_bias = keep(built, random.uniforms(int64_t{c.experts} * c.hidden));
  built.initial_x = random.uniforms(int64_t{c.tokens} * c.hidden, 3.0f);
  p.x = keep(built, built.initial_x);
  return built;
}

template <>
void Built<ExpertsParams>::reset() {
  std::copy(initial_x.begin(), initial_x.end(), params.x);
}

template <>
std::vector<Output> Built<ExpertsParams>::outputs() const {
  const ExpertsParams& p = params;
  // Two products in a row; the activation multiplies an error of g by u + 1, up to 8 but about 2 in
  // the mean, and the second sum averages it.
  return {{.name = "x",
           .width = p.hidden,
           .values = doubles(p.x, int64_t{p.num_tokens} * p.hidden),
           .rounding = 2 * f32_sum_error(p.hidden) + f32_sum_error(p.intermediate)}};
}

// ---- unembed ------------------------------------------------------------------------------------

std::string UnembedCase::name() const { return text("unembed", weights, {rows, hidden, vocab}); }

Built<UnembedParams> build(const UnembedCase& c) {
  Random random(c.seed);
  Built<UnembedParams> built;
  UnembedParams& p = built.params;
  p.num_rows = c.rows, p.hidden = c.hidden;
  const int32_t num_tokens = c.rows + 5;
  std::vector<int32_t> row_idx;
  for (int32_t row = 0; row < c.rows; ++row) row_idx.push_back(random.below(num_tokens));
  p.row_idx = keep(built, std::move(row_idx));
  p.x = keep(built, random.uniforms(int64_t{num_tokens} * c.hidden, 3.0f));
  p.norm_weight = keep(built, near_one(c.hidden, random));
  p.weight = keep(built, random_packed(c.weights, 1, c.vocab, c.hidden, random));
  p.logits = keep(built, std::vector<float>(static_cast<size_t>(c.rows) * c.vocab));
  return built;
}

template <>
void Built<UnembedParams>::reset() {
  std::fill_n(params.logits, int64_t{params.num_rows} * params.weight.rows, kNan);
}

template <>
std::vector<Output> Built<UnembedParams>::outputs() const {
  return {{.name = "logits",
           .width = params.weight.rows,
           .values = doubles(params.logits, int64_t{params.num_rows} * params.weight.rows),
           .rounding = f32_sum_error(params.hidden) + 8 * 0x1p-24}};
}

}  // namespace moxie::testing
