// For loops of products in which each instruction between two products counts: values that stay in
// registers, and what block_barrier.cuh lacks for barriers by their addresses. The functions of
// ptx.cuh take pointers: in a cluster the compiler works an address out anew from the block's rank
// wherever one is used. For sm_90 and later.
#pragma once

#include <cstdint>

#include "kernels/block_barrier.cuh"

namespace moxie {

/// A value that stays in a register, where the compiler would work it out again in each round of a
/// loop.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
/// A value that all lanes have in common, where the compiler cannot know it: descriptors made from
/// it need no moves between kinds of registers. By all lanes.
__device__ __forceinline__ uint32_t same_in_warp(uint32_t value) {
  return __shfl_sync(~0u, value, 0);
}

/// True in one lane, by all lanes of a warp. Where one thread issues copies, choose it so: the
/// compiler then knows that it is alone, and needs no loop over lanes around each copy.
__device__ __forceinline__ bool is_elected() {
  uint32_t is_this;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 %0, 1, 0, p;}" : "=r"(is_this));
  return is_this != 0;
}

/// block::has_ended() that may wait for a moment, as block::wait() does again and again.
__device__ __forceinline__ bool test_barrier(uint32_t barrier, uint32_t phase) {
  uint32_t has_ended;
  asm volatile(
      "{.reg .pred done; mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2; "
      "selp.u32 %0, 1, 0, done;}"
      : "=r"(has_ended)
      : "r"(barrier), "r"(phase)
      : "memory");
  return has_ended != 0;
}

/// The address of the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in_cluster(uint32_t address, uint32_t rank) {
  uint32_t at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(address), "r"(rank));
  return at;
}
/// One of the arrivals at a barrier of the cluster, if wanted: without a branch. Orders no writes
/// for the other block.
__device__ __forceinline__ void arrive_barrier_if(bool is_wanted, uint32_t barrier) {
  asm volatile(
      "{.reg .pred is_wanted; setp.ne.b32 is_wanted, %1, 0; "
      "@is_wanted mbarrier.arrive.shared::cluster.b64 _, [%0];}" ::"r"(barrier),
      "r"(static_cast<uint32_t>(is_wanted))
      : "memory");
}

}  // namespace moxie
