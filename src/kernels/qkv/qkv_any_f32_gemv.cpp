// qkv with F32 activations: the norm, then one task a head, which multiplies, adds the bias,
// rotates and writes q or appends to the cache. One row for each set of LaneKernels.
#include "kernels/gemv/product.h"
#include "kernels/qkv/qkv_head.h"
#include "kernels/qkv/qkv_rows.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

struct Parts {
  float* t;         // [tokens, hidden], normed
  float* prepared;  // rows of t in the lanes' form
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

// Computes the head's outputs of up to kTokenBlock tokens.
void multiply_head(const QkvParams& p, const LaneKernels& lanes, Activations t, int32_t head,
                   int32_t first_token, int32_t end_token) {
  const int32_t tiles = p.head_dim / 16, first_tile = head * tiles;
  float heads[kTokenBlock][kMaxHeadDim];
  product_of_tiles(
      lanes, p.weight, first_tile, first_tile + tiles, first_token, end_token,
      [&](int32_t i) { return t.row(i); },
      [&](int32_t tile, int32_t token, int32_t num_tokens, const float* y) {
        const float* bias = p.bias + tile * 16;
        for (int32_t i = 0; i < num_tokens; ++i) {
          float* to = heads[token - first_token + i] + (tile - first_tile) * 16;
          for (int32_t lane = 0; lane < 16; ++lane) to[lane] = y[i * 16 + lane] + bias[lane];
        }
      });
  for (int32_t token = first_token; token < end_token; ++token)
    finish_head(p, token, head, heads[token - first_token]);
}

}  // namespace

uint64_t gemv_workspace(const QkvParams& p, const LaneKernels& lanes) {
  return lay_out(p, lanes, nullptr).bytes;
}

void gemv_run(const QkvParams& p, const LaneKernels& lanes) {
  const Parts parts = lay_out(p, lanes, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t num_tokens = p.batch.num_tokens;
  parallel_rms_norm(
      pool, lanes, [&](int32_t i) { return p.x + int64_t{i} * p.hidden; }, num_tokens, p.hidden,
      p.norm_weight, p.rms_eps, parts.t);

  const Activations t =
      prepare_rows(pool, lanes, parts.t, p.hidden, num_tokens, p.hidden, parts.prepared);
  const int32_t num_heads = p.num_heads + 2 * p.num_kv_heads;
  const int64_t num_blocks = ceil_div(num_tokens, kTokenBlock), num_units = num_heads * num_blocks;
  const double total_ns =
      product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, num_tokens);
  split_work(pool, num_units, total_ns, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const auto head = static_cast<int32_t>(unit % num_heads);
      const auto first = static_cast<int32_t>(unit / num_heads) * kTokenBlock;
      multiply_head(p, lanes, t, head, first, std::min(first + kTokenBlock, num_tokens));
    }
  });
}

double gemv_cost(const QkvParams& p, const LaneKernels& lanes) {
  return product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, p.batch.num_tokens);
}

const char* gemv_refuses(const QkvParams& p, const LaneKernels& lanes) {
  if (const char* why = head_refuses(p)) return why;
  return product_refuses(lanes, p.weight);
}

}  // namespace moxie
