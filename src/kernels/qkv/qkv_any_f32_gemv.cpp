// qkv with F32 activations: the norm, then one task a head that multiplies, adds the bias, rotates
// and writes q or appends to the cache. One row for each set of LaneKernels.
#include <cstring>

#include "core/formats.h"
#include "kernels/gemv/product.h"
#include "kernels/qkv/qkv_rows.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

constexpr int32_t kMaxHeadDim = 256;

struct Parts {
  float* t;         // [tokens, hidden], normed
  float* prepared;  // rows of t as the lanes want them
  uint64_t bytes;
};

Parts lay_out(const QkvParams& p, const LaneKernels& lanes, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.t = scratch.take<float>(int64_t{p.batch.num_tokens} * p.hidden);
  parts.prepared = scratch.take<float>(prepared_floats(lanes, p.batch.num_tokens, p.hidden));
  parts.bytes = scratch.bytes();
  return parts;
}

// Half-split: pair (i, i + d/2) turned by the angle of i.
void rotate(const QkvParams& p, int32_t position, float* head) {
  const int32_t half = p.head_dim / 2;
  const float* cos = p.rotary.table + int64_t{position} * p.head_dim;
  const float* sin = cos + half;
  for (int32_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

void append(DType dtype, const float* values, int32_t n, std::byte* at) {
  if (dtype == DType::kF32) {
    std::memcpy(at, values, static_cast<size_t>(n) * 4);
  } else if (dtype == DType::kBF16) {
    auto* out = reinterpret_cast<uint16_t*>(at);
    for (int32_t i = 0; i < n; ++i) out[i] = f32_to_bf16(values[i]);
  } else {
    auto* out = reinterpret_cast<uint8_t*>(at);
    for (int32_t i = 0; i < n; ++i) out[i] = f32_to_e4m3(values[i]);
  }
}

// One head of one token, bias added: rotated if q or k, and written where it belongs.
void finish_head(const QkvParams& p, int32_t token, int32_t head, float* values) {
  const int32_t position = p.batch.positions[token];
  if (head < p.num_heads + p.num_kv_heads) rotate(p, position, values);
  if (head < p.num_heads) {
    float* q = p.q + (int64_t{token} * p.num_heads + head) * p.head_dim;
    std::memcpy(q, values, static_cast<size_t>(p.head_dim) * 4);
    return;
  }
  const int32_t kv_head = (head - p.num_heads) % p.num_kv_heads;
  std::byte* cache = head < p.num_heads + p.num_kv_heads ? p.kv.k : p.kv.v;
  const int32_t page = p.kv.page_of(p.batch.seq_idx[token], position);
  append(p.kv.dtype, values, p.head_dim, cache + p.kv.offset(page, kv_head, position, p.head_dim));
}

void multiply_head(const QkvParams& p, const LaneKernels& lanes, Activations t, int32_t head,
                   int32_t token, int32_t num_tokens) {
  const TileProduct product = product_of_format(lanes, p.weight.format);
  const int32_t tiles = p.head_dim / 16;
  const float* x[kMaxTileTokens];
  float y[kMaxTileTokens * 16];
  float heads[kMaxTileTokens][kMaxHeadDim];
  for (int32_t i = 0; i < num_tokens; ++i) x[i] = t.row(token + i);
  for (int32_t tile = 0; tile < tiles; ++tile) {
    product(p.weight.tile(0, head * tiles + tile), p.weight.cols, x, num_tokens, y);
    const float* bias = p.bias + head * p.head_dim + tile * 16;
    for (int32_t i = 0; i < num_tokens; ++i) {
      for (int32_t lane = 0; lane < 16; ++lane) {
        heads[i][tile * 16 + lane] = y[i * 16 + lane] + bias[lane];
      }
    }
  }
  for (int32_t i = 0; i < num_tokens; ++i) finish_head(p, token + i, head, heads[i]);
}

void run(const QkvParams& p, const LaneKernels& lanes) {
  const Parts parts = lay_out(p, lanes, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t num_tokens = p.batch.num_tokens;
  parallel_rms_norm(
      pool, lanes, [&](int32_t i) { return p.x + int64_t{i} * p.hidden; }, num_tokens, p.hidden,
      p.norm_weight, p.rms_eps, parts.t);

  const Activations t =
      prepare_rows(pool, lanes, parts.t, p.hidden, num_tokens, p.hidden, parts.prepared);
  const int64_t num_heads = p.num_heads + 2 * p.num_kv_heads;
  const int64_t num_blocks = ceil_div(num_tokens, kTokenBlock);
  const double total_ns =
      product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, num_tokens);
  split_work(pool, num_heads * num_blocks, total_ns, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const auto head = static_cast<int32_t>(unit % num_heads);
      const auto first = static_cast<int32_t>(unit / num_heads) * kTokenBlock;
      const int32_t last = std::min(first + kTokenBlock, num_tokens);
      for (int32_t token = first; token < last; token += kMaxTileTokens) {
        multiply_head(p, lanes, t, head, token, std::min(kMaxTileTokens, last - token));
      }
    }
  });
}

double cost(const QkvParams& p, const LaneKernels& lanes) {
  return product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, p.batch.num_tokens);
}

const char* refuses(const QkvParams& p, const LaneKernels& lanes) {
  if (p.head_dim % 32 != 0 || p.head_dim > kMaxHeadDim) {
    return "head_dim is not a multiple of 32 up to 256";
  }
  if (p.kv.dtype != DType::kF32 && p.kv.dtype != DType::kBF16 && p.kv.dtype != DType::kF8E4M3) {
    return "the cache is not f32, bf16 or fp8_e4m3";
  }
  return product_refuses(lanes, p.weight);
}

}  // namespace

const char* qkv_any_f32_gemv_refuses(const QkvParams& p) { return refuses(p, kLanesPortable); }

uint64_t qkv_any_f32_gemv_workspace(const QkvParams& p) {
  return lay_out(p, kLanesPortable, nullptr).bytes;
}

double qkv_any_f32_gemv_portable_cost(const QkvParams& p) { return cost(p, kLanesPortable); }
void qkv_any_f32_gemv_portable(const QkvParams& p) { run(p, kLanesPortable); }

#if defined(__x86_64__)
double qkv_any_f32_gemv_avx2_cost(const QkvParams& p) { return cost(p, kLanesAvx2); }
void qkv_any_f32_gemv_avx2(const QkvParams& p) { run(p, kLanesAvx2); }
double qkv_any_f32_gemv_avx512_cost(const QkvParams& p) { return cost(p, kLanesAvx512); }
void qkv_any_f32_gemv_avx512(const QkvParams& p) { run(p, kLanesAvx512); }

const char* qkv_mxfp4_i16_gemv_refuses(const QkvParams& p) { return refuses(p, kLanesAvx512Vnni); }
uint64_t qkv_mxfp4_i16_gemv_workspace(const QkvParams& p) {
  return lay_out(p, kLanesAvx512Vnni, nullptr).bytes;
}
double qkv_mxfp4_i16_gemv_avx512vnni_cost(const QkvParams& p) { return cost(p, kLanesAvx512Vnni); }
void qkv_mxfp4_i16_gemv_avx512vnni(const QkvParams& p) { run(p, kLanesAvx512Vnni); }
#endif

}  // namespace moxie
