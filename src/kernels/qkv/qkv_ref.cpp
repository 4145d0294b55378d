// The reference row of qkv: double precision, one plain loop after another.
#include "kernels/gemv/reference_product.h"
#include "kernels/norm/reference_norm.h"
#include "kernels/qkv/qkv_rows.h"
#include "kernels/rotate/reference_head.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

struct Parts {
  double* t;  // [tokens, hidden]
  double* y;  // [tokens, (heads + 2 kv_heads) * head_dim]
  uint64_t bytes;
};

Parts lay_out(const QkvParams& p, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.t = scratch.take<double>(int64_t{p.batch.num_tokens} * p.hidden);
  parts.y = scratch.take<double>(int64_t{p.batch.num_tokens} * p.weight.rows);
  parts.bytes = scratch.bytes();
  return parts;
}

}  // namespace

const char* qkv_reference_refuses(const QkvParams& p) {
  return is_reference_layout(p.weight) ? nullptr : "weights are not in the CPU's packed layout";
}

uint64_t qkv_reference_workspace(const QkvParams& p) { return lay_out(p, nullptr).bytes; }

void qkv_reference(const QkvParams& p) {
  const Parts parts = lay_out(p, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t num_tokens = p.batch.num_tokens, rows = p.weight.rows;
  for (int32_t token = 0; token < num_tokens; ++token) {
    const int64_t at = int64_t{token} * p.hidden;
    reference_rms_norm(p.x + at, p.norm_weight, p.hidden, p.rms_eps, parts.t + at);
  }
  reference_product(pool, p.weight, parts.t, num_tokens,
                    [&](int32_t token, int32_t row, double value) {
                      parts.y[int64_t{token} * rows + row] = value + p.bias[row];
                    });
  for (int32_t token = 0; token < num_tokens; ++token) {
    const int32_t position = p.batch.positions[token], seq = p.batch.seq_idx[token];
    double* y = parts.y + int64_t{token} * rows;
    for (int32_t head = 0; head < p.num_heads + p.num_kv_heads; ++head) {
      reference_rotate(p.rotary, p.head_dim, position, y + head * p.head_dim);
    }
    for (int32_t i = 0; i < p.num_heads * p.head_dim; ++i) {
      p.q[int64_t{token} * p.num_heads * p.head_dim + i] = static_cast<float>(y[i]);
    }
    const double* k = y + p.num_heads * p.head_dim;
    const double* v = k + p.num_kv_heads * p.head_dim;
    const int32_t page = p.kv.page_of(seq, position);
    for (int32_t head = 0; head < p.num_kv_heads; ++head) {
      const int64_t offset = p.kv.offset(page, head, position, p.head_dim);
      reference_append(p.kv.dtype, p.kv.k + offset, k + head * p.head_dim, p.head_dim);
      reference_append(p.kv.dtype, p.kv.v + offset, v + head * p.head_dim, p.head_dim);
    }
  }
}

}  // namespace moxie
