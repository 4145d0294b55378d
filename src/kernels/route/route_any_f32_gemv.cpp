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

// The top_k greatest by insertion: scanning upwards and moving only past strictly lesser logits
// keeps the lower index on ties.
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

float* part_of(const RouteParams& p, int32_t part, int32_t token) {
  return p.parts + (int64_t{part} * p.num_tokens + token) * route_part_stride(p.weight.rows);
}

// A token's logits, of parts to which the norm's factor is still to be applied.
void add_parts(const RouteParams& p, int32_t token, float* logits) {
  const int32_t num_experts = p.weight.rows, width = round_up(num_experts, 16);
  std::fill_n(logits, num_experts, 0.0f);
  double squares = 0;
  for (int32_t part = 0; part < p.hidden / kRoutePartColumns; ++part) {
    const float* sums = part_of(p, part, token);
    for (int32_t e = 0; e < num_experts; ++e) logits[e] += sums[e];
    squares += static_cast<double>(sums[width]);
  }
  const auto factor = static_cast<float>(1 / std::sqrt(squares / p.hidden + p.rms_eps));
  for (int32_t e = 0; e < num_experts; ++e) logits[e] = logits[e] * factor + p.bias[e];
}

}  // namespace

const char* gemv_refuses(const RouteParams& p, const LaneKernels& lanes) {
  if (p.top_k > kMaxTopK || p.top_k > p.weight.rows) return "top_k above 16 or the experts";
  return product_refuses(lanes, p.weight);
}

uint64_t gemv_workspace(const RouteParams& p, const LaneKernels&) {
  return lay_out(p, nullptr).bytes;
}

void gemv_part(const RouteParams& p, const LaneKernels& lanes, int32_t part, int32_t first_token,
               int32_t num_tokens) {
  const int32_t num_experts = p.weight.rows, column = part * kRoutePartColumns;
  const float* norm = p.norm_weight + column;
  for (int32_t token = first_token; token < first_token + num_tokens; ++token) {
    const float* x = p.x + int64_t{token} * p.hidden + column;
    float* sums = part_of(p, part, token);
    float scaled[kRoutePartColumns], squares = 0;
    for (int32_t i = 0; i < kRoutePartColumns; ++i) {
      scaled[i] = x[i] * norm[i];
      squares += x[i] * x[i];
    }
    sums[round_up(num_experts, 16)] = squares;
    const auto product = products_of_format(lanes, p.weight.format).tile;
    const float* row = scaled;
    for (int32_t tile = 0; tile < p.weight.num_tiles(); ++tile) {
      const int64_t before = p.weight.tile_bytes() * column / p.weight.cols;
      product(p.weight.tile(0, tile) + before, kRoutePartColumns, &row, 1, sums + tile * 16);
    }
  }
}

void gemv_run(const RouteParams& p, const LaneKernels& lanes) {
  const Parts parts = lay_out(p, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t num_experts = p.weight.rows;
  parallel_rms_norm(
      pool, lanes, [&](int32_t i) { return p.x + int64_t{i} * p.hidden; }, p.num_tokens, p.hidden,
      p.norm_weight, p.rms_eps, p.t);
  if (p.parts != nullptr) {
    for (int32_t token = 0; token < p.num_tokens; ++token) {
      add_parts(p, token, parts.logits + int64_t{token} * num_experts);
      choose(p, parts.logits + int64_t{token} * num_experts, token);
    }
    return;
  }
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
