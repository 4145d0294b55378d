// rotate by definition.
#include <algorithm>
#include <vector>

#include "kernels/norm/reference_norm.h"
#include "kernels/rotate/reference_head.h"
#include "kernels/rotate/rotate_rows.h"

namespace moxie {
void rotate_reference(const RotateParams& p) {
  const int32_t dim = p.head_dim, num_keyed = p.num_heads + p.num_kv_heads;
  std::vector<double> head(static_cast<size_t>(dim));
  for (int32_t token = 0; token < p.batch.num_tokens; ++token) {
    const int32_t position = p.batch.positions[token];
    const int32_t page = p.kv.page_of(p.batch.seq_idx[token], position);
    for (int32_t h = 0; h < num_keyed + p.num_kv_heads; ++h) {
      const float* from = p.qkv + token * p.row_stride() + int64_t{h} * dim;
      std::copy_n(from, dim, head.begin());
      const float* norm = h < p.num_heads ? p.q_norm : h < num_keyed ? p.k_norm : nullptr;
      if (norm != nullptr) reference_rms_norm(from, norm, dim, p.rms_eps, head.data());
      if (h < num_keyed) reference_rotate(p.rotary, dim, position, head.data());
      if (h >= p.num_heads) {
        std::byte* cache = h < num_keyed ? p.kv.k : p.kv.v;
        const int32_t kv_head = (h - p.num_heads) % p.num_kv_heads;
        reference_append(p.kv.dtype, cache + p.kv.offset(page, kv_head, position, dim), head.data(),
                         dim);
      } else if (p.q != nullptr) {
        for (int32_t i = 0; i < dim; ++i)
          p.q[(int64_t{token} * p.num_heads + h) * dim + i] =
              static_cast<float>(head[static_cast<size_t>(i)]);
      }
    }
  }
}

}  // namespace moxie
