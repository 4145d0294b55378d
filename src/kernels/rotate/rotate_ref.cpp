// rotate by definition.
#include <cstring>
#include <vector>

#include "core/formats.h"
#include "kernels/norm/reference_norm.h"
#include "kernels/rotate/rotate_rows.h"

namespace moxie {
namespace {

// Half-split: pair (i, i + d/2) is rotated by the angle of i.
void rotate_head(const RotateParams& p, int32_t position, double* head) {
  const int32_t half = p.head_dim / 2;
  const float* cos = p.rotary.table + int64_t{position} * p.head_dim;
  const float* sin = cos + half;
  for (int32_t i = 0; i < half; ++i) {
    const double a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

void append(const RotateParams& p, std::byte* at, const double* values) {
  for (int32_t i = 0; i < p.head_dim; ++i) {
    const auto value = static_cast<float>(values[i]);
    if (p.kv.dtype == DType::kF32) {
      std::memcpy(at + 4 * i, &value, 4);
    } else if (p.kv.dtype == DType::kBF16) {
      const uint16_t bits = f32_to_bf16(value);
      std::memcpy(at + 2 * i, &bits, 2);
    } else {
      at[i] = static_cast<std::byte>(f32_to_e4m3(value));
    }
  }
}

}  // namespace

void rotate_reference(const RotateParams& p) {
  const int32_t dim = p.head_dim, num_keyed = p.num_heads + p.num_kv_heads;
  std::vector<double> head(static_cast<size_t>(dim));
  for (int32_t token = 0; token < p.batch.num_tokens; ++token) {
    const int32_t position = p.batch.positions[token];
    const int32_t page = p.kv.page_of(p.batch.seq_idx[token], position);
    for (int32_t h = 0; h < num_keyed + p.num_kv_heads; ++h) {
      const float* from = p.qkv + (int64_t{token} * (num_keyed + p.num_kv_heads) + h) * dim;
      std::copy_n(from, dim, head.begin());
      const float* norm = h < p.num_heads ? p.q_norm : h < num_keyed ? p.k_norm : nullptr;
      if (norm != nullptr) reference_rms_norm(from, norm, dim, p.rms_eps, head.data());
      if (h < num_keyed) rotate_head(p, position, head.data());
      if (h >= p.num_heads) {
        std::byte* cache = h < num_keyed ? p.kv.k : p.kv.v;
        const int32_t kv_head = (h - p.num_heads) % p.num_kv_heads;
        append(p, cache + p.kv.offset(page, kv_head, position, dim), head.data());
      } else if (p.q != nullptr) {
        for (int32_t i = 0; i < dim; ++i)
          p.q[(int64_t{token} * p.num_heads + h) * dim + i] =
              static_cast<float>(head[static_cast<size_t>(i)]);
      }
    }
  }
}

}  // namespace moxie
