// rotate on the CPU.
#include <cmath>

#include "core/threads.h"
#include "kernels/rotate/rotate_head.h"
#include "kernels/rotate/rotate_rows.h"

namespace moxie {
namespace {

void norm_head(const RotateParams& p, const float* weight, float* head) {
  float sum = 0;
  for (int32_t i = 0; i < p.head_dim; ++i) sum += head[i] * head[i];
  const float factor = 1.0f / std::sqrt(sum / static_cast<float>(p.head_dim) + p.rms_eps);
  for (int32_t i = 0; i < p.head_dim; ++i) head[i] *= factor * weight[i];
}

}  // namespace

const char* rotate_f32_portable_refuses(const RotateParams& p) { return head_refuses(p); }

void rotate_f32_portable(const RotateParams& p) {
  constexpr int64_t kTokensOfTask = 4;
  const int32_t num_keyed = p.num_heads + p.num_kv_heads, num_all = num_keyed + p.num_kv_heads;
  p.launch.stream->pool->share(p.batch.num_tokens, kTokensOfTask, [&](int64_t begin, int64_t end) {
    for (auto token = static_cast<int32_t>(begin); token < end; ++token) {
      for (int32_t h = p.q == nullptr ? p.num_heads : 0; h < num_all; ++h) {
        float* head = p.qkv + token * p.row_stride() + int64_t{h} * p.head_dim;
        const float* norm = h < p.num_heads ? p.q_norm : h < num_keyed ? p.k_norm : nullptr;
        if (norm != nullptr) norm_head(p, norm, head);
        finish_head(p, token, h, head);
      }
    }
  });
}

}  // namespace moxie
