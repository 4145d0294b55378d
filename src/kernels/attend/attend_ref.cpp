// The definition of attend in double precision: the formula of attend.h, keys one by one through
// the page table; a token and a query head is a task of the pool. Slow on purpose.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/formats.h"
#include "core/threads.h"
#include "kernels/attend/attend_rows.h"

namespace moxie {
namespace {

double load_element(const std::byte* row, DType dtype, int32_t i) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, row + 4 * static_cast<int64_t>(i), 4);
    return value;
  }
  if (dtype == DType::kBF16) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * static_cast<int64_t>(i), 2);
    return bf16_to_f32(bits);
  }
  return e4m3_to_f32(static_cast<uint8_t>(row[i]));
}

void attend_one(const AttendParams& params, int32_t token, int32_t head,
                std::vector<double>& weights, std::vector<double>& sum) {
  const KvLayer& kv = params.kv;
  const int32_t kv_head = head / (params.num_heads / params.num_kv_heads);
  const int32_t seq = params.batch.seq_idx[token];
  const int32_t position = params.batch.positions[token];
  const int32_t first = params.window > 0 ? std::max(0, position - params.window + 1) : 0;
  const int64_t row = (static_cast<int64_t>(token) * params.num_heads + head) * params.head_dim;
  const float* q = params.q + row;

  auto offset = [&](int32_t key) {
    const int32_t page = kv.page_of(seq, key);
    CHECK(page >= 0, "attend: key " + std::to_string(key) + " of sequence row " +
                         std::to_string(seq) + " has no page");
    return kv.offset(page, kv_head, key, params.head_dim);
  };

  double greatest = params.sinks != nullptr ? static_cast<double>(params.sinks[head]) : -INFINITY;
  weights.assign(static_cast<size_t>(position - first + 1), 0.0);
  for (int32_t key = first; key <= position; ++key) {
    const std::byte* k = kv.k + offset(key);
    double dot = 0;
    for (int32_t i = 0; i < params.head_dim; ++i) dot += q[i] * load_element(k, kv.dtype, i);
    weights[static_cast<size_t>(key - first)] = params.scale * dot;
    greatest = std::max(greatest, params.scale * dot);
  }
  double denominator =
      params.sinks != nullptr ? std::exp(static_cast<double>(params.sinks[head]) - greatest) : 0.0;
  sum.assign(static_cast<size_t>(params.head_dim), 0.0);
  for (int32_t key = first; key <= position; ++key) {
    const double weight = std::exp(weights[static_cast<size_t>(key - first)] - greatest);
    denominator += weight;
    const std::byte* v = kv.v + offset(key);
    for (int32_t i = 0; i < params.head_dim; ++i)
      sum[static_cast<size_t>(i)] += weight * load_element(v, kv.dtype, i);
  }
  for (int32_t i = 0; i < params.head_dim; ++i)
    params.a[row + i] = static_cast<float>(sum[static_cast<size_t>(i)] / denominator);
}

}  // namespace

void attend_reference(const AttendParams& params) {
  auto one_head = [&](int64_t task, int) {
    static thread_local std::vector<double> weights, sum;
    attend_one(params, static_cast<int32_t>(task / params.num_heads),
               static_cast<int32_t>(task % params.num_heads), weights, sum);
  };
  params.launch.stream->pool->run(int64_t{params.batch.num_tokens} * params.num_heads, one_head);
}

}  // namespace moxie
