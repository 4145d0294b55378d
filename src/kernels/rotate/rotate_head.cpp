// Rotates a head and writes it to q or to the cache.
#include "kernels/rotate/rotate_head.h"

#include <cstring>

#include "core/formats.h"

namespace moxie {
namespace {

// Half-split: pair (i, i + d/2) is rotated by the angle of i.
void rotate(const RotateParams& p, int32_t position, float* head) {
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

}  // namespace

const char* head_refuses(const RotateParams& p) {
  if (p.head_dim % 32 != 0 || p.head_dim > kMaxHeadDim) {
    return "head_dim is not a multiple of 32 up to 256";
  }
  if (p.kv.dtype != DType::kF32 && p.kv.dtype != DType::kBF16 && p.kv.dtype != DType::kF8E4M3) {
    return "the cache is not f32, bf16 or fp8_e4m3";
  }
  return nullptr;
}

void finish_head(const RotateParams& p, int32_t token, int32_t head, float* values) {
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

}  // namespace moxie
