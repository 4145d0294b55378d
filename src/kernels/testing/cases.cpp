// Builds the cases: random contents of the sizes asked for.
#include "kernels/testing/cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/formats.h"
#include "kernels/testing/case_parts.h"

namespace moxie::testing {
namespace {

constexpr int32_t kPageTokens = 4, kMaxPositions = 64;
constexpr int32_t kQkvSeqs = 3, kAttendPageTokens = 16;

// Contents for a matrix that has sizes and a format.
template <typename P>
void fill(Built<P>& built, PackedMatrix& matrix, Random& random, int32_t gate_up_outputs = 0) {
  built.weights.push_back(random_packed(matrix.format, matrix.num_experts, matrix.rows, matrix.cols,
                                        random, gate_up_outputs));
  matrix = built.weights.back().matrix;
}

// Pages of as many sequences, out of order.
std::vector<int32_t> shuffled_pages(int32_t num_pages, Random& random) {
  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  for (size_t i = pages.size(); i > 1; --i)
    std::swap(pages[i - 1], pages[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
  return pages;
}

void store_cache_values(const KvLayer& kv, const std::vector<float>& values, std::byte* to) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (kv.dtype == DType::kF32) {
      reinterpret_cast<float*>(to)[i] = values[i];
    } else if (kv.dtype == DType::kBF16) {
      reinterpret_cast<uint16_t*>(to)[i] = f32_to_bf16(values[i]);
    } else {
      reinterpret_cast<uint8_t*>(to)[i] = f32_to_e4m3(values[i]);
    }
  }
}

}  // namespace

// ---- embed --------------------------------------------------------------------------------------

std::string EmbedCase::name() const { return text("embed", table, {tokens, hidden, vocab}); }

EmbedParams EmbedCase::sizes() const {
  return {.num_tokens = tokens, .table = {.format = table, .rows = vocab, .cols = hidden}};
}

Built<EmbedParams> build(const EmbedCase& c) {
  Random random(1);
  Built<EmbedParams> built{.params = c.sizes()};
  EmbedParams& p = built.params;
  // Any bytes without the highest bit of the exponents, Q8_0's scales' too: finite in every format.
  std::vector<std::byte>& table = built.bytes.emplace_back(p.table.bytes());
  for (std::byte& byte : table) byte = static_cast<std::byte>(random.below(256) & 0xBF);
  p.table.data = table.data();
  std::vector<int32_t> ids;
  for (int32_t token = 0; token < c.tokens; ++token) ids.push_back(random.below(c.vocab));
  p.token_ids = keep(built, std::move(ids));
  p.x = keep(built, std::vector<float>(static_cast<size_t>(c.tokens) * c.hidden));
  return built;
}

template <>
void Built<EmbedParams>::reset() {
  std::fill_n(params.x, int64_t{params.num_tokens} * params.table.cols, kNan);
}

template <>
std::vector<Output> Built<EmbedParams>::outputs() const {
  const int64_t width = params.table.cols;
  return {{.name = "x", .width = width, .values = doubles(params.x, params.num_tokens * width)}};
}

// ---- qkv ----------------------------------------------------------------------------------------

std::string QkvCase::name() const {
  return text("qkv", weights, {tokens, hidden, heads, kv_heads, head_dim}) + " cache " +
         std::string(dtype_name(cache));
}

QkvParams QkvCase::sizes() const {
  return {.batch = {.num_tokens = tokens, .num_seqs = kQkvSeqs},
          .hidden = hidden,
          .num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .weight = {.format = weights, .rows = (heads + 2 * kv_heads) * head_dim, .cols = hidden},
          .kv = {.page_tokens = kPageTokens, .dtype = cache}};
}

Built<QkvParams> build(const QkvCase& c) {
  Random random(c.seed);
  Built<QkvParams> built{.params = c.sizes()};
  // Three sequences in turn with pages out of order, each starting at a position of its own.
  const int32_t first = c.first_position;
  int32_t next[kQkvSeqs] = {first, first + 3, first + 17};
  const int32_t max_positions = std::max(kMaxPositions, first + 17 + ceil_div(c.tokens, kQkvSeqs));
  const int32_t pages_per_seq = ceil_div(max_positions, kPageTokens);
  std::vector<int32_t> positions, seqs;
  for (int32_t token = 0; token < c.tokens; ++token) {
    seqs.push_back(token % kQkvSeqs);
    positions.push_back(next[token % kQkvSeqs]++);
  }
  std::vector<int32_t> pages = shuffled_pages(kQkvSeqs * pages_per_seq, random);
  QkvParams& p = built.params;
  p.batch.positions = keep(built, std::move(positions));
  p.batch.seq_idx = keep(built, std::move(seqs));
  p.x = keep(built, random.uniforms(int64_t{c.tokens} * c.hidden, 3.0f));
  p.norm_weight = keep(built, near_one(c.hidden, random));
  fill(built, p.weight, random);
  p.bias = keep(built, random.uniforms(p.weight.rows, 0.5f));
  std::vector<float> table;
  for (int32_t position = 0; position < max_positions; ++position) {
    for (int32_t i = 0; i < c.head_dim; ++i) {
      const double angle = position * std::pow(150.0, -2.0 * (i % (c.head_dim / 2)) / c.head_dim);
      table.push_back(static_cast<float>(i < c.head_dim / 2 ? std::cos(angle) : std::sin(angle)));
    }
  }
  p.rotary = {.table = keep(built, std::move(table)), .max_positions = max_positions};
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
  add_cache(p.kv, bytes, p.head_dim, rounding, &list);
  return list;
}

// ---- attend -------------------------------------------------------------------------------------

std::string AttendCase::name() const {
  return text("attend", cache, {seqs, tokens, depth, heads, kv_heads, head_dim}) + " window " +
         std::to_string(window);
}

AttendParams AttendCase::sizes() const {
  return {.batch = {.num_tokens = seqs * tokens, .num_seqs = seqs},
          .num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .window = window,
          .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
          .kv = {.page_tokens = kAttendPageTokens, .dtype = cache}};
}

Built<AttendParams> build(const AttendCase& c) {
  Random random(1);
  Built<AttendParams> built{.params = c.sizes()};
  AttendParams& p = built.params;
  std::vector<int32_t> positions, seqs, offsets = {0};
  for (int32_t seq = 0; seq < c.seqs; ++seq) {
    for (int32_t i = 0; i < c.tokens; ++i) positions.push_back(c.depth + 3 * seq + i);
    seqs.insert(seqs.end(), static_cast<size_t>(c.tokens), seq);
    offsets.push_back(c.tokens * (seq + 1));
  }
  KvLayer& kv = p.kv;
  kv.table_stride = ceil_div(positions.back() + 1, kAttendPageTokens);
  kv.page_stride_bytes = c.kv_heads * kAttendPageTokens * kv.row_bytes(c.head_dim);
  kv.page_table = keep(built, shuffled_pages(c.seqs * kv.table_stride, random));
  // What no token may see stays NaN, which is all ones in every format.
  const int64_t cache_bytes = kv.page_stride_bytes * c.seqs * kv.table_stride;
  built.bytes.assign(2, std::vector<std::byte>(cache_bytes, std::byte{0xFF}));
  kv.k = built.bytes[0].data(), kv.v = built.bytes[1].data();
  for (int32_t seq = 0; seq < c.seqs; ++seq) {
    const int32_t end = c.depth + 3 * seq + c.tokens;
    const int32_t first_seen = c.window > 0 ? std::max(0, end - c.tokens - c.window + 1) : 0;
    for (int32_t at = first_seen; at < end; ++at) {
      for (int32_t head = 0; head < c.kv_heads; ++head) {
        const int64_t offset = kv.offset(kv.page_of(seq, at), head, at, c.head_dim);
        store_cache_values(kv, random.uniforms(c.head_dim, 2.0f), kv.k + offset);
        store_cache_values(kv, random.uniforms(c.head_dim, 2.0f), kv.v + offset);
      }
    }
  }
  p.batch.positions = keep(built, std::move(positions));
  p.batch.seq_idx = keep(built, std::move(seqs));
  p.batch.row_offsets = keep(built, std::move(offsets));
  const int64_t num_values = int64_t{p.batch.num_tokens} * c.heads * c.head_dim;
  p.q = keep(built, random.uniforms(num_values, 2.0f));
  p.sinks = keep(built, random.uniforms(c.heads, 2.0f));
  p.a = keep(built, std::vector<float>(static_cast<size_t>(num_values)));
  return built;
}

template <>
void Built<AttendParams>::reset() {
  std::fill_n(params.a, int64_t{params.batch.num_tokens} * params.num_heads * params.head_dim,
              kNan);
}

template <>
std::vector<Output> Built<AttendParams>::outputs() const {
  const AttendParams& p = params;
  const int64_t width = int64_t{p.num_heads} * p.head_dim;
  // Logits are at most about 6: their error is that much of a weight. Then two sums over the keys.
  const int32_t num_keys = p.batch.positions[p.batch.num_tokens - 1] + 1;
  return {{.name = "a",
           .width = width,
           .values = doubles(p.a, p.batch.num_tokens * width),
           .rounding = 6 * f32_sum_error(p.head_dim) + 2 * f32_sum_error(num_keys)}};
}

// ---- out ----------------------------------------------------------------------------------------

std::string OutCase::name() const {
  return text(overwrites ? "out overwrites" : "out", weights, {tokens, rows, cols});
}

OutParams OutCase::sizes() const {
  return {.num_tokens = tokens,
          .weight = {.format = weights, .rows = rows, .cols = cols},
          .overwrites = overwrites};
}

Built<OutParams> build(const OutCase& c) {
  Random random(c.seed);
  Built<OutParams> built{.params = c.sizes()};
  OutParams& p = built.params;
  p.a = keep(built, random.uniforms(int64_t{c.tokens} * c.cols, 2.0f));
  fill(built, p.weight, random);
  p.bias = keep(built, random.uniforms(c.rows));
  built.initial_x = random.uniforms(int64_t{c.tokens} * c.rows, 3.0f);
  if (c.overwrites) std::fill(built.initial_x.begin(), built.initial_x.end(), kNan);
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

RouteParams RouteCase::sizes() const {
  return {.num_tokens = tokens,
          .hidden = hidden,
          .top_k = top_k,
          .weight = {.format = weights, .rows = experts, .cols = hidden}};
}

Built<RouteParams> build(const RouteCase& c) {
  Random random(c.seed);
  Built<RouteParams> built{.params = c.sizes()};
  RouteParams& p = built.params;
  p.x = keep(built, random.uniforms(int64_t{c.tokens} * c.hidden, 3.0f));
  p.norm_weight = keep(built, near_one(c.hidden, random));
  fill(built, p.weight, random);
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
  const std::string name = text(avoids_held ? "experts of others" : "experts", weights,
                                {tokens, hidden, intermediate, experts, top_k, before, behind});
  return activation == DType::kBF16
             ? name
             : name + ", activations in " + std::string(dtype_name(activation));
}

ExpertsParams ExpertsCase::sizes() const {
  const PackedMatrix gate_up{.format = weights,
                             .num_experts = experts,
                             .rows = 2 * round_up(intermediate, 16),
                             .cols = hidden};
  PackedMatrix down = gate_up;
  down.rows = hidden, down.cols = intermediate;
  return {.num_tokens = tokens,
          .hidden = hidden,
          .intermediate = intermediate,
          .top_k = top_k,
          .num_routed = before + experts + behind,
          .first_expert = before,
          .gate_up = gate_up,
          .down = down,
          .activation = activation};
}

Built<ExpertsParams> build(const ExpertsCase& c) {
  Random random(c.seed);
  Built<ExpertsParams> built{.params = c.sizes()};
  ExpertsParams& p = built.params;
  const int32_t gate_up_rows = p.gate_up.rows;
  p.t = keep(built, random.uniforms(int64_t{c.tokens} * c.hidden, 2.0f * c.input_scale));
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int32_t token = 0; token < c.tokens; ++token) {
    const int32_t num_experts = c.avoids_held ? c.before : c.before + c.experts + c.behind;
    std::vector<int32_t> all(static_cast<size_t>(num_experts));
    std::iota(all.begin(), all.end(), 0);
    float sum = 0;
    for (int32_t slot = 0; slot < c.top_k; ++slot) {
      // Uneven: groups of very different sizes.
      const bool is_any = token % 2 == 0 || !c.is_uneven;
      const int32_t num_choices = is_any ? num_experts : std::min(num_experts, c.top_k + 1);
      std::swap(all[slot], all[slot + random.below(num_choices - slot)]);
      ids.push_back(all[slot]);
      weights.push_back(1.05f + random.uniform());
      sum += weights.back();
    }
    for (int32_t slot = 0; slot < c.top_k; ++slot) weights[weights.size() - 1 - slot] /= sum;
  }
  p.expert_ids = keep(built, std::move(ids));
  p.expert_weights = keep(built, std::move(weights));
  fill(built, p.gate_up, random, c.intermediate);
  fill(built, p.down, random);
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

UnembedParams UnembedCase::sizes() const {
  return {.num_rows = rows,
          .hidden = hidden,
          .weight = {.format = weights, .rows = vocab, .cols = hidden}};
}

Built<UnembedParams> build(const UnembedCase& c) {
  Random random(c.seed);
  Built<UnembedParams> built{.params = c.sizes()};
  UnembedParams& p = built.params;
  const int32_t num_tokens = c.rows + 5;
  std::vector<int32_t> row_idx;
  for (int32_t row = 0; row < c.rows; ++row) row_idx.push_back(random.below(num_tokens));
  p.row_idx = keep(built, std::move(row_idx));
  p.x = keep(built, random.uniforms(int64_t{num_tokens} * c.hidden, 3.0f));
  p.norm_weight = keep(built, near_one(c.hidden, random));
  fill(built, p.weight, random);
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

// ---- sample -------------------------------------------------------------------------------------

std::string SampleCase::name() const {
  return text("sample", DType::kF32, {rows, vocab}) + " logprobs " + std::to_string(num_logprobs);
}

SampleParams SampleCase::sizes() const { return {.num_rows = rows, .vocab = vocab}; }

Built<SampleParams> build(const SampleCase& c) {
  const SampleRequest kinds[] = {{.temperature = 1},
                                 {},
                                 {.temperature = 0.7f, .top_k = 40, .top_p = 0.9f},
                                 {.temperature = 1.5f, .min_p = 0.05f}};
  Random random(1);
  Built<SampleParams> built{.params = c.sizes()};
  SampleParams& p = built.params;
  p.logits = keep(built, random.uniforms(int64_t{c.rows} * c.vocab, 4.0f));
  built.bytes.emplace_back(c.rows * sizeof(SampleRequest));
  built.bytes.emplace_back(c.rows * sizeof(SampleAnswer));
  auto* requests = reinterpret_cast<SampleRequest*>(built.bytes[0].data());
  for (int32_t row = 0; row < c.rows; ++row) {
    requests[row] = kinds[row % 4];
    requests[row].num_logprobs = c.num_logprobs;
    requests[row].step = static_cast<uint64_t>(row);
  }
  p.requests = requests;
  p.answers = reinterpret_cast<SampleAnswer*>(built.bytes[1].data());
  return built;
}

template <>
void Built<SampleParams>::reset() {
  std::fill_n(params.answers, params.num_rows, SampleAnswer{.token = -2, .logprob = kNan});
}

template <>
std::vector<Output> Built<SampleParams>::outputs() const {
  // Log-probabilities are rounded to F32 once, from sums in double.
  Output tokens{.name = "token", .width = 1};
  Output logprobs{.name = "logprob", .width = 1, .relative = 0x1p-22};
  for (int32_t row = 0; row < params.num_rows; ++row) {
    tokens.values.push_back(params.answers[row].token);
    logprobs.values.push_back(params.answers[row].logprob);
  }
  return {tokens, logprobs};
}

// ---- moe_fp8_block_scale ------------------------------------------------------------------------

std::string MoeFp8Case::name() const {
  return text("moe_fp8_block_scale", DType::kF8E4M3,
              {tokens, hidden, intermediate, experts, top_k});
}

MoeFp8Params MoeFp8Case::sizes() const {
  return {.num_tokens = tokens,
          .num_experts = experts,
          .num_local_experts = experts / 4,
          .hidden = hidden,
          .intermediate = intermediate,
          .num_groups = experts / 4,
          .kept_groups = experts / 8,
          .top_k = top_k,
          .local_expert_offset = experts / 4,
          .routed_scaling_factor = 2.5f};
}

Built<MoeFp8Params> build(const MoeFp8Case& c) {
  Random random(1);
  Built<MoeFp8Params> built{.params = c.sizes()};
  MoeFp8Params& p = built.params;
  const int64_t blocks_in = c.hidden / kFp8Block, blocks_mid = c.intermediate / kFp8Block;
  const int64_t weights = int64_t{p.num_local_experts} * c.hidden * c.intermediate;
  const auto take_bytes = [&](int64_t count) {
    built.bytes.emplace_back(static_cast<size_t>(count));
    return built.bytes.back().data();
  };
  // Any code but NaN, of either sign.
  const auto codes = [&](int64_t count) {
    auto* to = reinterpret_cast<uint8_t*>(take_bytes(count));
    for (int64_t i = 0; i < count; ++i)
      to[i] = static_cast<uint8_t>(random.below(127) | random.below(2) << 7);
    return to;
  };
  built.bytes.reserve(8);
  p.routing_logits = keep(built, random.uniforms(int64_t{c.tokens} * c.experts, 3.0f));
  auto* bias = reinterpret_cast<uint16_t*>(take_bytes(2 * c.experts));
  for (int32_t e = 0; e < c.experts; ++e) bias[e] = f32_to_bf16(random.uniform());
  p.routing_bias = bias;
  p.hidden_states = codes(int64_t{c.tokens} * c.hidden);
  p.gemm1_weights = codes(2 * weights);
  p.gemm2_weights = codes(weights);
  // Signed scales that make gates of a few units, where the SiLU bends.
  const float scale = 0x1p-5f / std::sqrt(static_cast<float>(c.hidden));
  p.hidden_states_scale = keep(built, random.uniforms(blocks_in * c.tokens, 0x1p-6f));
  p.gemm1_weights_scale = keep(
      built, random.uniforms(int64_t{p.num_local_experts} * 2 * blocks_mid * blocks_in, scale));
  p.gemm2_weights_scale =
      keep(built, random.uniforms(int64_t{p.num_local_experts} * blocks_in * blocks_mid));
  p.output = reinterpret_cast<uint16_t*>(take_bytes(2 * int64_t{c.tokens} * c.hidden));
  return built;
}

template <>
void Built<MoeFp8Params>::reset() {
  std::fill_n(params.output, int64_t{params.num_tokens} * params.hidden, uint16_t{0x7FC0});
}

template <>
std::vector<Output> Built<MoeFp8Params>::outputs() const {
  const MoeFp8Params& p = params;
  Output output{.name = "output",
                .width = p.hidden,
                .rounding = 2 * f32_sum_error(p.hidden) + f32_sum_error(p.intermediate) + 0x1p-16,
                .relative = 0x1p-7};  // neighbours in BF16
  for (int64_t i = 0; i < int64_t{p.num_tokens} * p.hidden; ++i)
    output.values.push_back(bf16_to_f32(p.output[i]));
  return {output};
}

}  // namespace moxie::testing
