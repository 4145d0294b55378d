// What every kernel with Hopper's wgmma needs around the products: their order, descriptors of
// operands in shared memory, and registers moved between warpgroups. All for sm_90a alone.
//
// Operands in shared memory are tiles of rows of 128 bytes, 16-byte chunks exclusive-or'd with the
// row modulo 8 (the 128-byte swizzle), from addresses that are multiples of 1,024.
#pragma once

#include "kernels/ptx.cuh"

namespace moxie {

/// Takes more registers a thread, or gives some back; all warps of the warpgroup.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Before the first product, and after registers that one reads or adds to were written.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending groups of products run.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// The descriptor of a swizzled tile: groups of eight rows are 1,024 bytes apart. 16 BF16 columns
/// lie 32 bytes on; to move on, add to the address, or bytes / 16 to the descriptor.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kGroupStride = uint64_t{1024 / 16} << 32;
  return kSwizzle128 | kGroupStride | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
  return tile_descriptor(shared_address(tile));
}

}  // namespace moxie
