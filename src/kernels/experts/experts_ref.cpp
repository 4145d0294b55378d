// The reference row of experts: double precision. (token, slot) pairs are sorted by expert, so
// that every weight is decoded once; a token's sum runs in order of the expert's index. With an MX
// format of activations, the inputs of both products are rounded to it, from F32.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/experts/experts_mx.h"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemv/reference_product.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

struct Parts {
  int32_t* offsets;  // [experts + 1] pairs of expert e
  int32_t* pairs;    // [tokens * top_k] token * top_k + slot, by expert
  double* h;         // [tokens * top_k, intermediate], in the order of `pairs`
  float* t;          // [tokens, hidden], rounded; with an MX format
  double* sum;       // [tokens, hidden]
  uint64_t bytes;
};

Parts lay_out(const ExpertsParams& p, std::byte* base) {
  const int64_t num_pairs = int64_t{p.num_tokens} * p.top_k;
  Scratch scratch(base);
  Parts parts;
  parts.offsets = scratch.take<int32_t>(p.gate_up.num_experts + 1);
  parts.pairs = scratch.take<int32_t>(num_pairs);
  parts.h = scratch.take<double>(num_pairs * p.intermediate);
  parts.t = scratch.take<float>(has_mx_activations(p) ? int64_t{p.num_tokens} * p.hidden : 0);
  parts.sum = scratch.take<double>(int64_t{p.num_tokens} * p.hidden);
  parts.bytes = scratch.bytes();
  return parts;
}

void sort_pairs(const ExpertsParams& p, const Parts& parts) {
  const int32_t num_pairs = p.num_tokens * p.top_k;
  int32_t num_sorted = 0;
  for (int32_t e = 0; e < p.gate_up.num_experts; ++e) {
    parts.offsets[e] = num_sorted;
    for (int32_t pair = 0; pair < num_pairs; ++pair) {
      if (p.expert_ids[pair] - p.first_expert == e) parts.pairs[num_sorted++] = pair;
    }
  }
  parts.offsets[p.gate_up.num_experts] = num_sorted;
}

double activate(double gate, double up, double alpha, double limit) {
  const double g = std::min(gate, limit);
  const double u = std::clamp(up, -limit, limit);
  return g / (1.0 + std::exp(-alpha * g)) * (u + 1.0);
}

}  // namespace

const char* experts_reference_refuses(const ExpertsParams& p) {
  return is_reference_layout(p.gate_up) && is_reference_layout(p.down)
             ? nullptr
             : "weights are not in the CPU's packed layout";
}

uint64_t experts_reference_workspace(const ExpertsParams& p) { return lay_out(p, nullptr).bytes; }

void experts_reference(const ExpertsParams& p) {
  const Parts parts = lay_out(p, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  sort_pairs(p, parts);
  const float* all_t = p.t;
  if (has_mx_activations(p)) {
    std::copy(p.t, p.t + int64_t{p.num_tokens} * p.hidden, parts.t);
    for (int32_t token = 0; token < p.num_tokens; ++token)
      round_row_to_mx(p.activation, parts.t + int64_t{token} * p.hidden, p.hidden);
    all_t = parts.t;
  }

  auto gate_up_of = [&](int64_t task, int) {
    static thread_local ReferenceRow gate_row(kMaxReferenceCols), up_row(kMaxReferenceCols);
    const auto e = static_cast<int32_t>(task / p.intermediate);
    const auto i = static_cast<int32_t>(task % p.intermediate);
    if (parts.offsets[e] == parts.offsets[e + 1]) return;
    const int32_t gate_idx = gate_up_packed_row(i, 0), up_idx = gate_up_packed_row(i, 1);
    const float* bias = p.gate_up_bias + int64_t{e} * p.gate_up.rows;
    read_packed_row(p.gate_up.expert(e), gate_idx, gate_row.data());
    read_packed_row(p.gate_up.expert(e), up_idx, up_row.data());
    for (int32_t at = parts.offsets[e]; at < parts.offsets[e + 1]; ++at) {
      const float* t = all_t + int64_t{parts.pairs[at] / p.top_k} * p.hidden;
      const double gate = reference_dot(gate_row.data(), t, p.hidden) + bias[gate_idx];
      const double up = reference_dot(up_row.data(), t, p.hidden) + bias[up_idx];
      parts.h[int64_t{at} * p.intermediate + i] =
          activate(gate, up, p.swiglu_alpha, p.swiglu_limit);
    }
  };
  pool.run(int64_t{p.gate_up.num_experts} * p.intermediate, gate_up_of);
  if (has_mx_activations(p)) {
    std::vector<float> row(static_cast<size_t>(p.intermediate));
    for (int32_t at = 0; at < parts.offsets[p.gate_up.num_experts]; ++at) {
      double* h = parts.h + int64_t{at} * p.intermediate;
      std::transform(h, h + p.intermediate, row.begin(),
                     [](double value) { return static_cast<float>(value); });
      round_row_to_mx(p.activation, row.data(), p.intermediate);
      std::copy(row.begin(), row.end(), h);
    }
  }

  auto down_of = [&](int64_t task, int) {
    static thread_local ReferenceRow row(kMaxReferenceCols);
    const auto r = static_cast<int32_t>(task);
    for (int32_t token = 0; token < p.num_tokens; ++token) {
      parts.sum[int64_t{token} * p.hidden + r] = 0;
    }
    for (int32_t e = 0; e < p.down.num_experts; ++e) {
      if (parts.offsets[e] == parts.offsets[e + 1]) continue;
      read_packed_row(p.down.expert(e), r, row.data());
      const double bias = p.down_bias[int64_t{e} * p.hidden + r];
      for (int32_t at = parts.offsets[e]; at < parts.offsets[e + 1]; ++at) {
        const int32_t pair = parts.pairs[at];
        const double y =
            reference_dot(row.data(), parts.h + int64_t{at} * p.intermediate, p.intermediate);
        parts.sum[int64_t{pair / p.top_k} * p.hidden + r] += p.expert_weights[pair] * (y + bias);
      }
    }
    for (int32_t token = 0; token < p.num_tokens; ++token) {
      const int64_t at = int64_t{token} * p.hidden + r;
      p.x[at] = static_cast<float>(p.x[at] + parts.sum[at]);
    }
  };
  pool.run(p.hidden, down_of);
}

}  // namespace moxie
