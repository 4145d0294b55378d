// reduce between GPUs: every rank stores its part into the memory of all others and adds all parts
// in the order of ranks. For few tokens as words of three floats: bound by a store's way to another
// GPU and back into a register, about a microsecond. For many tokens in BF16, as rows for many
// tokens round activations: bound by the link.
#include "kernels/reduce/reduce_peers.cuh"

namespace moxie {
namespace {

using reduce::SumParams;

template <bool kIsSingle>
__device__ __forceinline__ float value_of(const float* values, int64_t i) {
  if constexpr (kIsSingle) return values[i];
  return whole(reinterpret_cast<const float2*>(values)[i]);
}
template <bool kIsSingle>
__device__ __forceinline__ void store_value(float* values, int64_t i, float value) {
  if constexpr (kIsSingle) {
    values[i] = value;
  } else {
    reinterpret_cast<float2*>(values)[i] = split_residual(value);
  }
}

// A word's values: three floats, or six in BF16.
template <bool kRounds>
inline constexpr int kValuesOfWord = kRounds ? 6 : 3;
template <bool kRounds>
__device__ __forceinline__ float value_in(const uint32_t (&values)[3], int i) {
  if constexpr (!kRounds) return __uint_as_float(values[i]);
  const uint32_t two = values[i / 2];
  return __uint_as_float(i % 2 == 0 ? two << 16 : two & 0xFFFF0000u);
}

template <int kMost, bool kIsSingle, bool kRounds>
__global__ void __launch_bounds__(mail::kThreads, mail::kBlocksOfSm)
    add_parts(const __grid_constant__ SumParams p) {
  constexpr int kValues = kValuesOfWord<kRounds>;
  struct Early {
    float x[kValues];
  };
  wait_for_previous();
  launch_next();
  const auto load = [&](const float* values, int64_t word) {
    Early loaded;
    if constexpr (kRounds) {  // in pairs: lanes that load one value each leave most of a line
#pragma unroll
      for (int i = 0; i < kValues; i += 2) {
        const int64_t at = kValues * word + i;
        float2 two = make_float2(0.0f, 0.0f);
        if (at < p.count) two = whole(load_residual<kIsSingle>(values, at));
        loaded.x[i] = two.x, loaded.x[i + 1] = two.y;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kValues; ++i) {
        const int64_t at = kValues * word + i;
        loaded.x[i] = at < p.count ? value_of<kIsSingle>(values, at) : 0.0f;
      }
    }
    return loaded;
  };
  const auto mine = [&](int64_t word, uint32_t(&values)[3]) {
    const Early part = load(p.part, word);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      if constexpr (kRounds) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(part.x[2 * i], part.x[2 * i + 1]);
        values[i] = *reinterpret_cast<const uint32_t*>(&two);
      } else {
        values[i] = __float_as_uint(part.x[i]);
      }
    }
  };
  const auto all = [&](int64_t word, const mail::Word* words, const Early& early) {
    float values[kValues];
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      float sum = value_in<kRounds>(words[0].values, i);
#pragma unroll
      for (int32_t rank = 1; rank < kMost; ++rank)
        if (rank < p.mail.size) sum += value_in<kRounds>(words[rank].values, i);
      values[i] = early.x[i] + sum;
    }
    constexpr int kAtOnce = kRounds ? 2 : 1;
#pragma unroll
    for (int i = 0; i < kValues; i += kAtOnce) {
      const int64_t at = kValues * word + i;
      if (at >= p.count) continue;
      if constexpr (kRounds) {
        store_residual<kIsSingle>(p.x, at, make_float2(values[i], values[i + 1]));
        if (p.next_part != nullptr)
          store_residual<kIsSingle>(p.next_part, at, make_float2(0.0f, 0.0f));
      } else {
        store_value<kIsSingle>(p.x, at, values[i]);
        if (p.next_part != nullptr) store_value<kIsSingle>(p.next_part, at, 0.0f);
      }
    }
  };
  mail::send_and_receive<kMost>(
      p.mail, p.extent, mine, [&](int64_t word) { return load(p.x, word); }, all);
}

template <int kMost, reduce::PartOf kPart>
__global__ void __launch_bounds__(mail::kThreads, mail::kBlocksOfSm)
    add_units(const __grid_constant__ SumParams p) {
  wait_for_previous();
  launch_next();
  const auto mine = [&](int64_t unit) { return reduce::unit_of_part<kPart>(p, unit); };
  const auto all = [&](int64_t unit, const uint4* units) {
#pragma unroll
    for (int half = 0; half < reduce::kHalves; ++half) {
      const int64_t at = reduce::first_of<kPart>(unit, half);
      if (at >= p.count) continue;
      ResidualFour<reduce::kXIsSingle<kPart>> x;
      x.load(p.x, at);
      reduce::add_four(p, at, x, reduce::sum_of<kMost>(units, p.mail.size, half));
    }
  };
  mail::send_and_receive_units<kMost>(p.mail, p.rounds, mine, all);
}

/// Of two ranks, whose out has stored its part into the other's memory: all of it is there when the
/// other's kernel begins, which says so to the block of the same number.
template <bool kIsSingle>
__global__ void __launch_bounds__(mail::kThreads, mail::kBlocksOfSm)
    add_sent(const __grid_constant__ SumParams p) {
  wait_for_previous();
  launch_next();
  const uint32_t round = *reinterpret_cast<volatile uint32_t*>(p.mail.state + 1) + 1;
  mail::leave_flags(p.mail, mail::kOfValues, round);
  // Halves of a unit are as those of parts in floats: lanes side by side load what lies side by
  // side.
  const auto place = [](int64_t unit, int half) {
    return reduce::first_of<reduce::PartOf::kOneFloat>(unit, half);
  };
  const auto load_two = [](const uint16_t* values) {
    return __ldcg(reinterpret_cast<const uint2*>(values));
  };
  struct Half {
    ResidualFour<kIsSingle> x;
    uint2 own;
  };
  Half next[reduce::kHalves];
  const auto load = [&](int64_t unit) {
#pragma unroll
    for (int half = 0; half < reduce::kHalves; ++half) {
      const int64_t at = place(unit, half);
      if (at >= p.count) continue;
      next[half].x.load(p.x, at);
      next[half].own = load_two(p.rounded + at);
    }
  };
  const int64_t num_units = p.rounds.num_units, step = int64_t{gridDim.x} * mail::kThreads;
  int64_t unit = int64_t{blockIdx.x} * mail::kThreads + threadIdx.x;
  load(unit);
  if (mail::await_flags(p.mail, mail::kOfValues, round)) {
#pragma unroll 1
    for (; unit < num_units; unit += step) {
      Half now[reduce::kHalves];
      uint2 other[reduce::kHalves];
#pragma unroll
      for (int half = 0; half < reduce::kHalves; ++half) {
        now[half] = next[half];
        other[half] = {};
        if (place(unit, half) < p.count) other[half] = load_two(p.received + place(unit, half));
      }
      load(unit + step);
#pragma unroll
      for (int half = 0; half < reduce::kHalves; ++half) {
        const int64_t at = place(unit, half);
        if (at >= p.count) continue;
        // Two addends have no order.
        const uint4 parts[2] = {{now[half].own.x, now[half].own.y, 0, 0},
                                {other[half].x, other[half].y, 0, 0}};
        reduce::add_four(p, at, now[half].x, reduce::sum_of<2>(parts, 2, 0));
      }
    }
  }
  mail::end_kernel(p.mail.state + 1, p.mail.state + 2, round);
}

/// Whether out has sent the parts that this adds.
bool are_sent(const ReduceParams& p) {
  const bool is_behind_out = leaves_rounded(p.forms.reduce) && p.rounded != nullptr;
  CHECK(!is_behind_out || p.received != nullptr || p.forms.reduce != ReduceForm::kSent,
        "out sends its part, and no memory receives the other rank's");
  return is_behind_out && p.received != nullptr;
}
void add_sent_parts(const char* row, const ReduceParams& p) {
  SumParams params = reduce::params_of(p);
  params.rounds.num_units =
      mail::kThreads * ceil_div<int64_t>(params.count, reduce::kValuesOfUnit * mail::kThreads);
  const auto blocks = static_cast<int32_t>(
      std::min<int64_t>(params.mail.num_blocks, params.rounds.num_units / mail::kThreads));
  launch_kernel(row, p.forms.x == XForm::kF32 ? add_sent<true> : add_sent<false>, params,
                mail::shape_of(blocks, p.launch), launch_stream(p.launch.stream));
}

template <bool kRounds>
void run_words(const char* row, const ReduceParams& p) {
  if (p.num_tokens == 0) return;
  if (kRounds && are_sent(p)) return add_sent_parts(row, p);
  SumParams params = reduce::params_of(p);
  params.extent =
      mail::extent_of(params.mail, ceil_div<int64_t>(params.count, kValuesOfWord<kRounds>));
  mail::with_most_ranks(params.mail.size, [&]<int kMost>() {
    auto* kernel = p.forms.x == XForm::kF32 ? add_parts<kMost, true, kRounds>
                                            : add_parts<kMost, false, kRounds>;
    launch_kernel(row, kernel, params, mail::shape_of(params.extent.num_blocks, p.launch),
                  launch_stream(p.launch.stream));
  });
}

}  // namespace

void reduce_any_one_shot_peers_cuda(const ReduceParams& p) {
  run_words<false>("reduce_any_one_shot_peers_cuda", p);
}
void reduce_any_bf16_peers_cuda(const ReduceParams& p) {
  run_words<true>("reduce_any_bf16_peers_cuda", p);
}

void reduce_any_bf16_units_peers_cuda(const ReduceParams& p) {
  if (p.num_tokens == 0) return;
  if (are_sent(p)) return add_sent_parts("reduce_any_bf16_units_peers_cuda", p);
  SumParams params = reduce::params_of(p);
  constexpr int64_t kOfBlock =
      reduce::kValuesOfUnit * RankMail::kUnitsOfBlock;  // values of a block's round
  params.rounds =
      mail::rounds_of(params.mail, ceil_div(params.count, kOfBlock) * RankMail::kUnitsOfBlock);
  mail::with_most_ranks(params.mail.size, [&]<int kMost>() {
    reduce::with_part(p, [&]<reduce::PartOf kPart>() {
      launch_kernel("reduce_any_bf16_units_peers_cuda", add_units<kMost, kPart>, params,
                    mail::shape_of(params.rounds.num_blocks, p.launch),
                    launch_stream(p.launch.stream));
    });
  });
}

}  // namespace moxie
