// mbarrier from sm_80 on: barriers in shared memory that warps of a block wait for and arrive at,
// each at its own time, and that cp.async arrives at.
#pragma once

#include "kernels/ptx.cuh"

namespace moxie::block {

/// Makes a barrier of 8 bytes at this address of shared memory. A phase ends after `num_arrivals`;
/// then the next begins. __syncthreads() must follow.
__device__ __forceinline__ void init(uint32_t barrier, uint32_t num_arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(num_arrivals) : "memory");
}
/// One arrival; this thread's earlier writes are visible to those who wait.
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared.b64 state, [%0];}" ::"r"(barrier)
               : "memory");
}
/// One arrival, when all earlier cp.async of this thread are complete.
__device__ __forceinline__ void arrive_behind_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
/// Whether a phase has ended; then what arrived is visible, as behind wait().
__device__ __forceinline__ bool has_ended(uint32_t barrier, uint32_t phase) {
  uint32_t done;
  asm volatile(
      "{.reg .pred done; mbarrier.test_wait.parity.shared.b64 done, [%1], %2; "
      "selp.u32 %0, 1, 0, done;}"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done != 0;
}
/// Waits for the end of a phase: 0, 1, 0, 1, ...
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; "
      "@!done bra again;}" ::"r"(barrier),
      "r"(phase)
      : "memory");
#else
  asm volatile(
      "{.reg .pred done; again: mbarrier.test_wait.parity.shared.b64 done, [%0], %1; "
      "@!done bra again;}" ::"r"(barrier),
      "r"(phase)
      : "memory");
#endif
}

}  // namespace moxie::block
