// experts with F32 activations. (token, slot) pairs are sorted by expert, so that each expert's
// weights are read once a launch; then gate/up tiles in pairs -> clamped SwiGLU -> h, down tiles ->
// y, a row a pair, and each token's rows of y added into x. Every thread has the same slice of each
// expert's tiles, however much work the experts have. Both products are one run of the pool: down's
// parts wait for their own expert's h only. One row for each set of LaneKernels, and for those in
// F32 one more, whose inputs of both products are rounded to blocks of an MX format.
#include <algorithm>
#include <cstring>
#include <latch>
#include <new>

#include "kernels/experts/experts_mx.h"
#include "kernels/experts/experts_pairs.h"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemv/product.h"

namespace moxie {
namespace {

struct Parts : SortedPairs {
  float* h;  // [tokens * top_k, h_stride] in the order of `pairs`
  int32_t h_stride;
  float* rounded_t;   // [tokens, hidden], with an MX format
  float* prepared_t;  // rows of t and of h in the lanes' form
  float* prepared_h;
  float* y;  // [tokens * top_k, hidden] in the order of `pairs`
  // [experts] unfinished parts of gate/up of active expert i
  struct alignas(64) Latch {
    std::latch latch;
  };
  Latch* latches;
  uint64_t bytes;
};

Parts lay_out(const ExpertsParams& p, const LaneKernels& lanes, std::byte* base) {
  const int64_t num_pairs = int64_t{p.num_tokens} * p.top_k;
  Scratch scratch(base);
  Parts parts;
  parts.take_from(p, scratch);
  parts.h_stride = round_up(p.intermediate, 16);
  parts.h = scratch.take<float>(num_pairs * parts.h_stride);
  parts.rounded_t =
      scratch.take<float>(has_mx_activations(p) ? int64_t{p.num_tokens} * p.hidden : 0);
  parts.prepared_t = scratch.take<float>(prepared_floats(lanes, p.num_tokens, p.hidden));
  parts.prepared_h = scratch.take<float>(prepared_floats(lanes, num_pairs, p.intermediate));
  parts.y = scratch.take<float>(num_pairs * p.hidden);
  parts.latches = scratch.take<Parts::Latch>(p.gate_up.num_experts);
  parts.bytes = scratch.bytes();
  return parts;
}

// How a product with some experts is shared among threads. Each expert's units (groups of tiles)
// are cut into slices, and tasks go slice by slice, so that a thread has the same units of every
// expert, give or take one: the borders of expert i are i / experts of a unit higher, which makes
// the threads' shares of all experts together equal to within one unit.
struct Slices {
  int64_t num_experts, num_units;  // units of one expert
  int64_t num_threads;             // threads worth waking: 1 if the caller does all
  int64_t parts_a_thread;          // of one expert
  int64_t num_slices;

  // The time of the whole product on one thread decides the number of parts.
  Slices(const ThreadPool& pool, int32_t num_experts, int32_t num_units, double total_ns)
      : num_experts(num_experts), num_units(num_units) {
    const int64_t num_parts = parts_worth(pool, total_ns);
    num_threads = std::min<int64_t>({pool.num_threads(), num_parts, num_units});
    parts_a_thread = std::clamp<int64_t>(num_parts / (num_threads * num_experts), 1,
                                         ceil_div<int64_t>(num_units, num_threads));
    num_slices = num_threads * parts_a_thread;
  }
  int64_t num_tasks() const { return num_slices * num_experts; }

  struct Part {
    int32_t expert, begin, end;
  };
  Part at(int64_t task) const {
    const int64_t of_thread = parts_a_thread * num_experts;
    const int64_t expert = task % of_thread / parts_a_thread;
    const int64_t slice = task / of_thread * parts_a_thread + task % parts_a_thread;
    const auto border = [&](int64_t i) {
      return static_cast<int32_t>((num_units * i * num_experts + expert * num_slices) /
                                  (num_slices * num_experts));
    };
    return {static_cast<int32_t>(expert), border(slice), border(slice + 1)};
  }
};

// Computes gate/up tile pairs begin..end-1 of active expert i.
void gate_up(const ExpertsParams& p, const LaneKernels& lanes, const Parts& parts, Activations t,
             int32_t i, int32_t begin, int32_t end) {
  const int32_t e = parts.active[i], first = parts.offsets[i];
  const float* bias = p.gate_up_bias + int64_t{e} * p.gate_up.rows;
  float gates[kTokenBlock * 16];  // an even tile's outputs, kept for the odd tile
  product_of_tiles(
      lanes, p.gate_up.expert(e), 2 * begin, 2 * end, first, parts.offsets[i + 1],
      [&](int32_t at) { return t.row(parts.pairs[at] / p.top_k); },
      [&](int32_t tile, int32_t at, int32_t num_pairs, const float* y) {
        for (int32_t n = 0; n < num_pairs; ++n) {
          float* gate = gates + (at + n - first) % kTokenBlock * 16;
          float up[16];
          float* target = tile % 2 == 0 ? gate : up;
          for (int32_t lane = 0; lane < 16; ++lane) {
            target[lane] = y[n * 16 + lane] + bias[tile * 16 + lane];
          }
          if (tile % 2 == 0) continue;
          float* h = parts.h + int64_t{at + n} * parts.h_stride + tile / 2 * 16;
          lanes.swiglu(gate, up, p.swiglu_alpha, p.swiglu_limit, h);
          // Pairs of tiles make 16 columns: 32 are complete, or the 16 that are left at the end.
          const bool is_block = tile % 4 == 3;
          if (has_mx_activations(p) && (is_block || tile + 1 == p.gate_up.num_tiles()))
            round_to_mx(mx_element_of(p.activation), h - (is_block ? 16 : 0), is_block ? 32 : 16);
          if (lanes.prepare != nullptr && is_block) {
            lanes.prepare(h - 16, 32,
                          parts.prepared_h + (at + n) * prepared_floats(lanes, 1, p.intermediate) +
                              tile / 4 * lanes.prepared_floats);
          }
        }
      });
}

// Computes down tiles begin..end-1 of active expert i, into y.
void down(const ExpertsParams& p, const LaneKernels& lanes, const Parts& parts, Activations h,
          int32_t i, int32_t begin, int32_t end) {
  product_of_tiles(
      lanes, p.down.expert(parts.active[i]), begin, end, parts.offsets[i], parts.offsets[i + 1],
      [&](int32_t at) { return h.row(at); },
      [&](int32_t tile, int32_t at, int32_t num_pairs, const float* y) {
        const int32_t num_lanes = std::min(16, p.hidden - tile * 16);
        for (int32_t n = 0; n < num_pairs; ++n) {
          std::memcpy(parts.y + int64_t{at + n} * p.hidden + tile * 16, y + n * 16,
                      static_cast<size_t>(num_lanes) * 4);
        }
      });
}

}  // namespace

uint64_t gemv_workspace(const ExpertsParams& p, const LaneKernels& lanes) {
  return lay_out(p, lanes, nullptr).bytes;
}

void gemv_run(const ExpertsParams& p, const LaneKernels& lanes) {
  if (p.num_tokens == 0) return;
  const Parts parts = lay_out(p, lanes, p.launch.workspace);
  ThreadPool& pool = *p.launch.stream->pool;
  const int32_t num_active = sort_pairs(p, parts);
  if (num_active == 0) return;
  const double weights = static_cast<double>(p.hidden) * p.intermediate * num_active;
  const double pairs_per_expert = static_cast<double>(p.num_tokens) * p.top_k / num_active;

  if (has_mx_activations(p)) {
    split_work(pool, p.num_tokens, 10.0 * p.num_tokens * p.hidden, [&](int64_t begin, int64_t end) {
      std::copy(p.t + begin * p.hidden, p.t + end * p.hidden, parts.rounded_t + begin * p.hidden);
      for (int64_t token = begin; token < end; ++token)
        round_row_to_mx(p.activation, parts.rounded_t + token * p.hidden, p.hidden);
    });
  }
  const Activations t = prepare_rows(pool, lanes, has_mx_activations(p) ? parts.rounded_t : p.t,
                                     p.hidden, p.num_tokens, p.hidden, parts.prepared_t);
  // Tiles that are read side by side stay together; they also make 32 columns of h.
  constexpr int32_t kPairs = kTileStreams / 2;
  static_assert(kTileStreams % 4 == 0);
  const int32_t tile_pairs = p.gate_up.num_tiles() / 2, down_tiles = p.down.num_tiles();
  const Slices gate_up_slices(pool, num_active, ceil_div(tile_pairs, kPairs),
                              product_ns(lanes, 2 * weights, pairs_per_expert));
  const Slices down_slices(pool, num_active, ceil_div(down_tiles, kTileStreams),
                           product_ns(lanes, weights, pairs_per_expert));
  for (int32_t i = 0; i < num_active; ++i)
    new (&parts.latches[i]) Parts::Latch{std::latch(gate_up_slices.num_slices)};
  const Activations h =
      lanes.prepare == nullptr
          ? Activations{parts.h, parts.h_stride}
          : Activations{parts.prepared_h, prepared_floats(lanes, 1, p.intermediate)};
  auto gate_up_part = [&](int64_t task, int) {
    const auto [i, begin, end] = gate_up_slices.at(task);
    gate_up(p, lanes, parts, t, i, begin * kPairs, std::min(end * kPairs, tile_pairs));
    parts.latches[i].latch.count_down();
  };
  auto down_part = [&](int64_t task, int) {
    const auto [i, begin, end] = down_slices.at(task);
    wait_for(parts.latches[i].latch);
    down(p, lanes, parts, h, i, begin * kTileStreams, std::min(end * kTileStreams, down_tiles));
  };
  const int64_t num_first = gate_up_slices.num_tasks(), num_second = down_slices.num_tasks();
  if (gate_up_slices.num_threads == 1) {
    auto all_parts = [&](int64_t, int thread) {
      for (int64_t task = 0; task < num_first; ++task) gate_up_part(task, thread);
      for (int64_t task = 0; task < num_second; ++task) down_part(task, thread);
    };
    pool.run(1, all_parts);
  } else {
    pool.run(num_first, gate_up_part, num_second, down_part);
  }
  split_work(pool, p.num_tokens, 0.2 * p.num_tokens * p.top_k * p.hidden,
             [&](int64_t begin, int64_t end) {
               add_outputs(p, parts, parts.y, lanes.add_scaled, begin, end);
             });
}

double gemv_cost(const ExpertsParams& p, const LaneKernels& lanes) {
  // Assumes that the pairs are spread evenly over the experts.
  const double num_pairs = expected_pairs(p);
  const double num_active = std::min<double>(num_pairs, p.gate_up.num_experts);
  return product_ns(lanes, 3.0 * p.hidden * p.intermediate * num_active, num_pairs / num_active);
}

namespace {

const char* refuses_shape(const ExpertsParams& p, const LaneKernels& lanes) {
  if (p.gate_up.rows % 32 != 0) return "gate and up rows are not in pairs of tiles";
  if (const char* why = product_refuses(lanes, p.gate_up)) return why;
  return product_refuses(lanes, p.down);
}

}  // namespace

const char* gemv_refuses(const ExpertsParams& p, const LaneKernels& lanes) {
  if (const char* why = refuses_mx(p)) return why;
  return refuses_shape(p, lanes);
}

const char* mx_gemv_refuses(const ExpertsParams& p, const LaneKernels& lanes) {
  if (const char* why = refuses_without_mx(p)) return why;
  return refuses_shape(p, lanes);
}

}  // namespace moxie
