// What every kernel with Hopper's wgmma needs besides the products: their order, descriptors of
// operands in shared memory, and registers moved between warpgroups. All for sm_90a only.
//
// Operands in shared memory are tiles of rows of 128 bytes, 16-byte chunks exclusive-or'd with the
// row modulo 8 (the 128-byte swizzle), from addresses that are multiples of 1,024; or of rows of 64
// bytes, chunks exclusive-or'd with half the row modulo 4 (the 64-byte swizzle), from multiples of
// 512.
#pragma once

#include "kernels/ptx.cuh"

namespace moxie {

/// Takes more registers a thread, or gives some back; called by all warps of the warpgroup.
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Needed before the first product, and after writes to registers that a product reads or adds to.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending groups of products are incomplete.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// The descriptor of a swizzled tile of rows of kRowBytes. The next wgmma along the rows is 32
/// bytes further: add 32 to the address, or 32 / 16 to the descriptor.
template <int kRowBytes = 128>
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  static_assert(kRowBytes == 128 || kRowBytes == 64);
  constexpr uint64_t kSwizzle = uint64_t{kRowBytes == 128 ? 1 : 2} << 62;
  constexpr uint64_t kGroupStride = uint64_t{8 * kRowBytes / 16} << 32;  // of eight rows
  return kSwizzle | kGroupStride | uint64_t{1} << 16 | (address & 0x3FFFF) >> 4;
}
template <int kRowBytes = 128>
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile) {
  return tile_descriptor<kRowBytes>(shared_address(tile));
}

}  // namespace moxie
