// Builds the cases of the operations that draft heads need: the target's taps, and what their
// layers have beside the model's.
#include <algorithm>

#include "kernels/testing/case_parts.h"

namespace moxie::testing {

// ---- tap ----------------------------------------------------------------------------------------

std::string TapCase::name() const { return text("tap", DType::kF32, {tokens, hidden}); }

TapParams TapCase::sizes() const { return {.num_tokens = tokens, .hidden = hidden}; }

Built<TapParams> build(const TapCase& c) {
  Random random(1);
  Built<TapParams> built{.params = c.sizes()};
  built.params.x = keep(built, random.uniforms(int64_t{c.tokens} * c.hidden, 3.0f));
  built.params.to = keep(built, std::vector<float>(static_cast<size_t>(c.tokens) * c.hidden));
  return built;
}

template <>
void Built<TapParams>::reset() {
  std::fill_n(params.to, int64_t{params.num_tokens} * params.hidden, kNan);
}

template <>
std::vector<Output> Built<TapParams>::outputs() const {
  return {{.name = "to",
           .width = params.hidden,
           .values = doubles(params.to, int64_t{params.num_tokens} * params.hidden)}};
}

// ---- rms_norm -----------------------------------------------------------------------------------

std::string RmsNormCase::name() const {
  return text(is_copy ? "rms_norm copies" : "rms_norm", DType::kF32, {tokens, width, gap});
}

RmsNormParams RmsNormCase::sizes() const {
  return {.num_tokens = tokens, .width = width, .x_stride = width + gap, .y_stride = width + gap};
}

Built<RmsNormParams> build(const RmsNormCase& c) {
  Random random(1);
  Built<RmsNormParams> built{.params = c.sizes()};
  RmsNormParams& p = built.params;
  p.x = keep(built, random.uniforms(c.tokens * p.x_stride, 3.0f));
  if (!c.is_copy) p.weight = keep(built, near_one(c.width, random));
  p.y = keep(built, std::vector<float>(static_cast<size_t>(c.tokens * p.y_stride)));
  return built;
}

template <>
void Built<RmsNormParams>::reset() {
  std::fill_n(params.y, params.num_tokens * params.y_stride, 0.5f);
}

template <>
std::vector<Output> Built<RmsNormParams>::outputs() const {
  return {{.name = "y",
           .width = params.y_stride,
           .values = doubles(params.y, params.num_tokens * params.y_stride),
           .rounding = f32_sum_error(params.width) + 8 * 0x1p-24}};
}

// ---- gate ---------------------------------------------------------------------------------------

std::string GateCase::name() const { return text("gate", DType::kF32, {tokens, width}); }

GateParams GateCase::sizes() const { return {.num_tokens = tokens, .width = width}; }

Built<GateParams> build(const GateCase& c) {
  Random random(1);
  Built<GateParams> built{.params = c.sizes()};
  built.params.gate_up = keep(built, random.uniforms(int64_t{2} * c.tokens * c.width, 9.0f));
  built.params.y = keep(built, std::vector<float>(static_cast<size_t>(c.tokens) * c.width));
  return built;
}

template <>
void Built<GateParams>::reset() {
  std::fill_n(params.y, int64_t{params.num_tokens} * params.width, kNan);
}

template <>
std::vector<Output> Built<GateParams>::outputs() const {
  return {{.name = "y",
           .width = params.width,
           .values = doubles(params.y, int64_t{params.num_tokens} * params.width),
           .rounding = 16 * 0x1p-24}};
}

// ---- rotate -------------------------------------------------------------------------------------

std::string RotateCase::name() const {
  return text("rotate", cache, {tokens, heads, kv_heads, head_dim}) + (norms ? " norms" : "") +
         (keys_only ? " keys only" : "") + (gap > 0 ? " apart" : "");
}

namespace {

QkvCase qkv_case(const RotateCase& c) {
  return {.tokens = c.tokens,
          .hidden = 32,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .cache = c.cache};
}

}  // namespace

RotateParams RotateCase::sizes() const {
  const QkvParams qkv = qkv_case(*this).sizes();
  return {.batch = qkv.batch,
          .num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .qkv_stride = gap > 0 ? int64_t{heads + 2 * kv_heads} * head_dim + gap : 0,
          .kv = qkv.kv};
}

// The tokens, pages and angles are those of a case of qkv.
Built<RotateParams> build(const RotateCase& c) {
  Random random(2);
  Built<QkvParams> qkv = build(qkv_case(c));
  Built<RotateParams> built{.params = c.sizes(),
                            .weights = {},
                            .floats = std::move(qkv.floats),
                            .ints = std::move(qkv.ints),
                            .bytes = std::move(qkv.bytes),
                            .initial_x = {}};
  RotateParams& p = built.params;
  p.batch = qkv.params.batch;
  p.rotary = qkv.params.rotary;
  p.kv = qkv.params.kv;
  built.initial_x = random.uniforms(c.tokens * p.row_stride(), 3.0f);
  p.qkv = keep(built, built.initial_x);
  if (c.norms) {
    p.q_norm = keep(built, near_one(c.head_dim, random));
    p.k_norm = keep(built, near_one(c.head_dim, random));
  }
  if (!c.keys_only) p.q = qkv.params.q;
  return built;
}

template <>
void Built<RotateParams>::reset() {
  for (auto& cache : bytes) std::fill(cache.begin(), cache.end(), std::byte{0});
  std::copy(initial_x.begin(), initial_x.end(), params.qkv);
  if (params.q != nullptr)
    std::fill_n(params.q, int64_t{params.batch.num_tokens} * params.num_heads * params.head_dim,
                kNan);
}

template <>
std::vector<Output> Built<RotateParams>::outputs() const {
  const RotateParams& p = params;
  const double rounding = f32_sum_error(p.head_dim) + 8 * 0x1p-24;
  const int64_t q_width = int64_t{p.num_heads} * p.head_dim;
  std::vector<Output> list;
  if (p.q != nullptr)
    list.push_back({.name = "q",
                    .width = q_width,
                    .values = doubles(p.q, p.batch.num_tokens * q_width),
                    .rounding = rounding});
  add_cache(p.kv, bytes, p.head_dim, rounding, &list);
  return list;
}

}  // namespace moxie::testing
