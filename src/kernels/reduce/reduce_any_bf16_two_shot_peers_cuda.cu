// reduce between three GPUs or more, for many tokens: each rank owns a slice of the values. Every
// rank sends to each owner its part of the owner's slice, in BF16; the owner adds all parts in the
// order of ranks, rounds the sum to BF16 and sends it to all others. So a rank sends
// 2 (N - 1) / N of its part instead of N - 1 times the part: half as much among four.
//
// A round of a block is a unit a thread of each owner's slice. Its parts lie in the first half of a
// block's place in the mailbox, its sums in the second, each with a flag of its own. A block sends
// the parts of the next round before it awaits this one's, and awaits the sums of a round once it
// has sent those of the next, so that there is always something on the link. Four places are
// enough: a rank that sends the parts of round r + 3 has the sums of round r from every other rank,
// which has read its parts for them; and one that sends the sums of round r + 3 has the parts of
// round r + 3 from every other, which has read the sums of round r before it sent these. What a
// rank sends first in the next kernel, two rounds, overwrites what has been read for the same
// reasons.
#include "kernels/reduce/reduce_peers.cuh"

namespace moxie {
namespace {

using reduce::SumParams;

static_assert(RankMail::kUnitsOfBlock == 2 * mail::kThreads, "parts and sums: a unit a thread");

// What a thread does in the rounds of its block.
template <int kMost, reduce::PartOf kPart>
struct Slices {
  const SumParams& p;
  const RankMail& mail;
  const uint32_t before;  // rounds of earlier kernels

  __device__ uint32_t number_of(int32_t r) const { return before + static_cast<uint32_t>(r) + 1; }
  // The thread's unit in the slice of a rank.
  __device__ int32_t unit_of(int32_t r, int32_t owner) const {
    const auto round = r * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
    return (round * mail.size + owner) * mail::kThreads + static_cast<int32_t>(threadIdx.x);
  }
  __device__ bool has_unit(int32_t r, int32_t owner) const {
    return unit_of(r, owner) < static_cast<int32_t>(p.rounds.num_units);
  }
  // The owner that this rank turns to as number i. 0 is the rank itself, and each begins with the
  // next one, so that not all send to the same.
  __device__ int32_t owner_of(int i) const {
    const int32_t owner = mail.rank + i;
    return owner < mail.size ? owner : owner - mail.size;
  }
  __device__ uint4* part_at(int32_t to, int32_t from, int32_t r) const {
    return mail::units_at(mail, to, from, number_of(r)) + threadIdx.x;
  }
  __device__ uint4* sum_at(int32_t to, int32_t owner, int32_t r) const {
    return part_at(to, owner, r) + mail::kThreads;
  }

  // Returns the part of this rank's own slice.
  __device__ uint4 send_parts(int32_t r) const {
    uint4 parts[kMost];
#pragma unroll
    for (int i = 0; i < kMost; ++i)
      if (i < mail.size && has_unit(r, owner_of(i)))
        parts[i] = reduce::unit_of_part<kPart>(p, unit_of(r, owner_of(i)));
#pragma unroll
    for (int i = 1; i < kMost; ++i)
      if (i < mail.size && has_unit(r, owner_of(i))) *part_at(owner_of(i), mail.rank, r) = parts[i];
    mail::leave_flags(mail, mail::kOfValues, number_of(r));
    return parts[0];
  }

  // Adds all parts of this rank's slice, `own` among them; returns the sum as all ranks get it.
  __device__ uint4 send_sum(int32_t r, const uint4& own) const {
    uint4 sum = make_uint4(0, 0, 0, 0);
    if (has_unit(r, mail.rank)) {
      uint4 parts[kMost];
#pragma unroll
      for (int32_t from = 0; from < kMost; ++from)
        if (from < mail.size)
          parts[from] = from == mail.rank ? own : __ldcg(part_at(mail.rank, from, r));
#pragma unroll
      for (int half = 0; half < reduce::kHalves; ++half)
        reduce::round_half(&sum, half, reduce::sum_of<kMost>(parts, mail.size, half));
      for (int i = 1; i < mail.size; ++i) *sum_at(owner_of(i), mail.rank, r) = sum;
    }
    mail::leave_flags(mail, mail::kOfSums, number_of(r));
    return sum;
  }

  // Adds the sums of all slices to x, `own` among them.
  __device__ void add_sums(int32_t r, const uint4& own) const {
    for (int i = 0; i < mail.size; ++i) {
      const int32_t owner = owner_of(i);
      if (!has_unit(r, owner)) continue;
      const uint4 sum = i == 0 ? own : __ldcg(sum_at(mail.rank, owner, r));
      ResidualFour<reduce::kXIsSingle<kPart>> x[reduce::kHalves];
#pragma unroll
      for (int half = 0; half < reduce::kHalves; ++half) {
        const int64_t at = reduce::first_of<kPart>(unit_of(r, owner), half);
        if (at < p.count) x[half].load(p.x, at);
      }
#pragma unroll
      for (int half = 0; half < reduce::kHalves; ++half) {
        const int64_t at = reduce::first_of<kPart>(unit_of(r, owner), half);
        if (at < p.count) reduce::add_four(p, at, x[half], reduce::values_of(sum, half));
      }
    }
  }
};

// After a fault nothing more is added to x.
template <int kMost, reduce::PartOf kPart>
__global__ void __launch_bounds__(mail::kThreads, mail::kBlocksOfSm)
    add_slices(const __grid_constant__ SumParams p) {
  wait_for_previous();
  launch_next();
  const RankMail& m = p.mail;
  const uint32_t before = *reinterpret_cast<volatile uint32_t*>(m.state + 1);
  const int32_t num_rounds = p.rounds.num_rounds;
  const Slices<kMost, kPart> slices{p, m, before};
  uint4 part = slices.send_parts(0), sum{};
  for (int32_t r = 0; r <= num_rounds; ++r) {
    const uint4 last_sum = sum;
    uint4 next_part{};
    if (r + 1 < num_rounds) next_part = slices.send_parts(r + 1);
    if (r < num_rounds) {
      if (!mail::await_flags(m, mail::kOfValues, slices.number_of(r))) break;
      sum = slices.send_sum(r, part);
    }
    if (r > 0) {
      if (!mail::await_flags(m, mail::kOfSums, slices.number_of(r - 1))) break;
      slices.add_sums(r - 1, last_sum);
    }
    part = next_part;
  }
  mail::end_kernel(m.state + 1, m.state + 2, before + static_cast<uint32_t>(num_rounds));
}

}  // namespace

void reduce_any_bf16_two_shot_peers_cuda(const ReduceParams& p) {
  if (p.num_tokens == 0) return;
  SumParams params = reduce::params_of(p);
  const int64_t units =
      mail::kThreads * ceil_div<int64_t>(params.count, reduce::kValuesOfUnit * mail::kThreads);
  params.rounds = mail::rounds_of(params.mail, units, int64_t{params.mail.size} * mail::kThreads);
  mail::with_most_ranks(params.mail.size, [&]<int kMost>() {
    reduce::with_part(p, [&]<reduce::PartOf kPart>() {
      launch_kernel("reduce_any_bf16_two_shot_peers_cuda", add_slices<kMost, kPart>, params,
                    mail::shape_of(params.rounds.num_blocks, p.launch),
                    launch_stream(p.launch.stream));
    });
  });
}

}  // namespace moxie
