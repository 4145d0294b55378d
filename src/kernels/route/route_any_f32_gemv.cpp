// route with F32 activations: norm, router, then the choice of each token. One row for each set of
// LaneKernels.
#include <cmath>

#include "kernels/gemv/product.h"
#include "kernels/route/route_rows.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

struct Parts {
  float* logits;  // [tokens, experts]
  uint64_t bytes;
};

Parts lay_out(const RouteParams& p, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.logits = scratch.take<float>(int64_t{p.num_tokens} * p.weight.rows);
  parts.bytes = scratch.bytes();
  return parts;
}

// The top_k greatest by insertion: logits are taken in the order of the experts, and each moves
// only past strictly lesser ones, which keeps the lower index on ties.
void choose(const RouteParams& p, const float* logits, int64_t token) {
  int32_t* ids = p.expert_ids + token * p.top_k;
  float* weights = p.expert_weights + token * p.top_k;
  int32_t num_kept = 0;
  for (int32_t e = 0; e < p.weight.rows; ++e) {
    if (num_kept == p.top_k && !(logits[e] > logits[ids[num_kept - 1]])) continue;
    int32_t at = num_kept < p.top_k ? num_kept++ : num_kept - 1;
    for (; at > 0 && logits[e] > logits[ids[at - 1]]; --at) ids[at] = ids[at - 1];
    ids[at] = e;
  }
  float sum = 0;
  for (int32_t slot = 0; slot < p.top_k; ++slot) {
    weights[slot] = std::exp(logits[ids[slot]] - logits[ids[0]]);
    sum += weights[slot];
  }
  for (int32_t slot = 0; slot < p.top_k; ++slot) weights[slot] /= sum;
}

}  // namespace

const char* gemv_refuses(const RouteParams& p, const LaneKernels& lanes) {
  if (p.top_k > kMaxTopK || p.top_k > p.weight.rows) return "top_k above 16 or the experts";
  return product_refuses(lanes, p.weight);
}

uint64_t gemv_workspace(const RouteParams& p, const LaneKernels&) {
  return lay_out(p, nullptr).bytes;
}

void gemv_run(const RouteParams& p, const LaneKernels& lanes) {
  const Parts parts = lay_out(p, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t num_experts = p.weight.rows;
  parallel_rms_norm(
      pool, lanes, [&](int32_t i) { return p.x + int64_t{i} * p.hidden; }, p.num_tokens, p.hidden,
      p.norm_weight, p.rms_eps, p.t);
  parallel_product(pool, lanes, p.weight, {p.t, p.hidden}, p.num_tokens,
                   [&](int32_t tile, int32_t token, int32_t num_tokens, const float* y) {
                     const int32_t num_lanes = std::min(16, num_experts - tile * 16);
                     for (int32_t i = 0; i < num_tokens; ++i) {
                       float* logits = parts.logits + int64_t{token + i} * num_experts + tile * 16;
                       for (int32_t lane = 0; lane < num_lanes; ++lane) {
                         logits[lane] = y[i * 16 + lane] + p.bias[tile * 16 + lane];
                       }
                     }
                   });
  split_work(pool, p.num_tokens, 3.0 * p.num_tokens * num_experts, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      choose(p, parts.logits + token * num_experts, token);
    }
  });
}

double gemv_cost(const RouteParams& p, const LaneKernels& lanes) {
  return product_ns(lanes, static_cast<double>(p.weight.rows) * p.weight.cols, p.num_tokens);
}

}  // namespace moxie
