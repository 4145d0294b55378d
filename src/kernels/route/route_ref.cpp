// The reference row of route: double precision from the norm to the softmax.
#include <cmath>

#include "kernels/gemv/reference_product.h"
#include "kernels/norm/reference_norm.h"
#include "kernels/route/route_rows.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

struct Parts {
  double* t;       // [tokens, hidden]
  double* logits;  // [tokens, experts]
  uint64_t bytes;
};

Parts lay_out(const RouteParams& p, std::byte* base) {
  Scratch scratch(base);
  Parts parts;
  parts.t = scratch.take<double>(int64_t{p.num_tokens} * p.hidden);
  parts.logits = scratch.take<double>(int64_t{p.num_tokens} * p.weight.rows);
  parts.bytes = scratch.bytes();
  return parts;
}

// Takes the greatest top_k times, ties to the lower index; chosen logits are overwritten.
void choose(const RouteParams& p, int32_t token, double* logits) {
  int32_t* ids = p.expert_ids + int64_t{token} * p.top_k;
  float* weights = p.expert_weights + int64_t{token} * p.top_k;
  double exps[kMaxTopK], greatest = 0, sum = 0;
  for (int32_t slot = 0; slot < p.top_k; ++slot) {
    int32_t best = 0;
    for (int32_t e = 1; e < p.weight.rows; ++e) {
      if (logits[e] > logits[best]) best = e;
    }
    if (slot == 0) greatest = logits[best];
    exps[slot] = std::exp(logits[best] - greatest);
    sum += exps[slot];
    ids[slot] = best;
    logits[best] = -INFINITY;
  }
  for (int32_t slot = 0; slot < p.top_k; ++slot) {
    weights[slot] = static_cast<float>(exps[slot] / sum);
  }
}

}  // namespace

const char* route_reference_refuses(const RouteParams& p) {
  if (p.top_k > kMaxTopK || p.top_k > p.weight.rows) return "top_k above 16 or the experts";
  return is_reference_layout(p.weight) ? nullptr : "weights are not in the CPU's packed layout";
}

uint64_t route_reference_workspace(const RouteParams& p) { return lay_out(p, nullptr).bytes; }

void route_reference(const RouteParams& p) {
  const Parts parts = lay_out(p, p.launch.workspace);
  const int32_t num_experts = p.weight.rows;
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    double* t = parts.t + token * p.hidden;
    reference_rms_norm(p.x + token * p.hidden, p.norm_weight, p.hidden, p.rms_eps, t);
    for (int32_t i = 0; i < p.hidden; ++i) p.t[token * p.hidden + i] = static_cast<float>(t[i]);
  }
  reference_product(*p.launch.stream->pool, p.weight, parts.t, p.num_tokens,
                    [&](int32_t token, int32_t row, double value) {
                      parts.logits[int64_t{token} * num_experts + row] = value + p.bias[row];
                    });
  for (int32_t token = 0; token < p.num_tokens; ++token) {
    choose(p, token, parts.logits + int64_t{token} * num_experts);
  }
}

}  // namespace moxie
