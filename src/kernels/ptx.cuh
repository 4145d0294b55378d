// Instructions that C++ has no name for, one wrapper each, and the sum over a warp, for several
// CUDA rows.
#pragma once

#include <cstdint>

#include "core/formats.h"

namespace moxie {

__device__ __forceinline__ uint32_t shared_address(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

/// Copies 16 bytes to shared memory, past L1, without waiting.
__device__ __forceinline__ void copy_async_16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
/// What such copies bring leaves L2 first: for data that is read once (weights), so that code,
/// activations and biases stay there. What `createpolicy.fractional.L2::evict_first` with 1.0 makes
/// on every architecture that has it, as a constant: what that instruction makes is kept in general
/// registers and moved to uniform ones for each copy.
inline constexpr uint64_t kStreamedPolicy = 0x12F0000000000000;
/// Copies of 4, 8 or 16 bytes that leave L2 first.
template <int kBytes>
__device__ __forceinline__ void copy_streamed(uint32_t to, const void* from) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(from), "l"(kStreamedPolicy)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %3, %2;" ::"r"(to),
                 "l"(from), "l"(kStreamedPolicy), "n"(kBytes)
                 : "memory");
  }
}
__device__ __forceinline__ void copy_streamed_16(uint32_t to, const void* from) {
  copy_streamed<16>(to, from);
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kPending of this thread's latest groups of copies are incomplete.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// 32 neighbouring bytes, aligned to 32, of data that no kernel writes: one load of 256 bits from
/// sm_100 on (compiled only), of which no line stays in L1; otherwise two loads of 128 bits.
__device__ __forceinline__ void load_constant_32(const void* at, uint4 (&v)[2]) {
#if __CUDA_ARCH__ >= 1000
  asm volatile("ld.global.nc.L1::no_allocate.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
               : "=r"(v[0].x), "=r"(v[0].y), "=r"(v[0].z), "=r"(v[0].w), "=r"(v[1].x), "=r"(v[1].y),
                 "=r"(v[1].z), "=r"(v[1].w)
               : "l"(at));
#else
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[0].x), "=r"(v[0].y), "=r"(v[0].z), "=r"(v[0].w)
               : "l"(at));
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v[1].x), "=r"(v[1].y), "=r"(v[1].z), "=r"(v[1].w)
               : "l"(static_cast<const std::byte*>(at) + 16));
#endif
}

/// A barrier of some of the block's warps, numbered 1 to 15: reports that this warp has arrived, or
/// waits for all `num_threads`.
__device__ __forceinline__ void barrier_arrive(int barrier, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}
__device__ __forceinline__ void barrier_wait(int barrier, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(num_threads) : "memory");
}

// Clusters, bulk copies and their barriers. Code for older architectures has them by name alone:
// the host asks code_has_clusters() before it launches a kernel that would call them.
#if __CUDA_ARCH__ >= 900

/// This block's number in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Reports that this block has arrived at the cluster's barrier; does not order memory.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
/// Waits for all blocks of the cluster. This empties L1 and waits for copies in flight: call it
/// before the wait for the previous kernel, where it costs nothing.
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// Makes a barrier of 8 bytes in shared memory. A phase completes when expect_bytes was called once
/// and that many bytes have arrived from the cluster; then the next phase begins. Other blocks may
/// send after a cluster_arrive of this thread and their own cluster_wait.
__device__ __forceinline__ void init_barrier(uint64_t* barrier, uint32_t num_arrivals = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(num_arrivals)
               : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
/// One of a barrier's arrivals.
__device__ __forceinline__ void arrive_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// The same at the barrier of block `rank` of the cluster; orders no writes for that block.
__device__ __forceinline__ void arrive_barrier(const uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{.reg .b32 at; mapa.shared::cluster.u32 at, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [at];}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
/// Waits for the end of a phase: 0, 1, 0, 1, ...; then this block's earlier writes and copies are
/// visible.
__device__ __forceinline__ void wait_barrier(uint64_t* barrier, uint32_t phase) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; "
      "@!done bra again;}" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
}
/// The same, if other blocks of the cluster write; it empties L1.
__device__ __forceinline__ void wait_cluster_barrier(uint64_t* barrier, uint32_t phase) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, "
      "[%0], %1; @!done bra again;}" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
}
/// Copies global to shared memory, without waiting; the barrier counts the bytes. Addresses and
/// `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, uint32_t bytes,
                                          uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
/// The same for what leaves L2 first.
__device__ __forceinline__ void copy_bulk_streamed(void* to, const void* from, uint32_t bytes,
                                                   uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(kStreamedPolicy)
      : "memory");
}
/// Copies a box of a matrix to shared memory, without waiting; the barrier counts the bytes of the
/// whole box, and what lies outside of the matrix becomes zeros. `map` is a CUtensorMap among the
/// kernel's parameters.
__device__ __forceinline__ void copy_box(void* to, const void* map, int32_t column, int32_t row,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
/// The same for what leaves L2 first.
__device__ __forceinline__ void copy_box_streamed(void* to, const void* map, int32_t column,
                                                  int32_t row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "l"(kStreamedPolicy)
      : "memory");
}
/// As copy_box(), to the same place of each block of the cluster whose bit is set in `blocks`; each
/// block's own barrier counts.
__device__ __forceinline__ void copy_box_to(uint32_t blocks, void* to, const void* map,
                                            int32_t column, int32_t row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)),
      "h"(static_cast<uint16_t>(blocks))
      : "memory");
}
/// Copies shared to global memory, without waiting. fence_bulk_copies() and a barrier must follow
/// the block's writes to the source. Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void store_bulk(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until all of this thread's bulk stores have read their source.
__device__ __forceinline__ void wait_for_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until all of this thread's bulk stores are complete.
__device__ __forceinline__ void wait_for_bulk_stores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/// Orders this thread's writes and reads of shared memory before bulk copies that start after a
/// synchronisation with this thread, such as a barrier.
__device__ __forceinline__ void fence_bulk_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// Stores a word in block `rank` of the cluster, at the address that `at` has in this block. The
/// barrier of block `rank` counts its bytes.
__device__ __forceinline__ void send(const void* at, const uint64_t* barrier, int rank,
                                     uint32_t word) {
  asm volatile(
      "{.reg .b32 to, signal; mapa.shared::cluster.u32 to, %0, %2; "
      "mapa.shared::cluster.u32 signal, %1, %2; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %3, [signal];}" ::"r"(
          shared_address(at)),
      "r"(shared_address(barrier)), "r"(rank), "r"(word)
      : "memory");
}
/// Two floats in the same way.
__device__ __forceinline__ void send(const void* at, const uint64_t* barrier, int rank, float x,
                                     float y) {
  asm volatile(
      "{.reg .b32 to, signal; mapa.shared::cluster.u32 to, %0, %2; "
      "mapa.shared::cluster.u32 signal, %1, %2; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3,%4}, [signal];}" ::
          "r"(shared_address(at)),
      "r"(shared_address(barrier)), "r"(rank), "f"(x), "f"(y)
      : "memory");
}

/// Stores four 8 x 8 matrices of 16-bit elements transposed. Each lane has a pair of a row's
/// elements, as mma leaves them. Column r of matrix i becomes the 16 bytes at the address of lane 8
/// i + r.
__device__ __forceinline__ void store_transposed(uint32_t address, const uint32_t (&words)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
      : "memory");
}

#else

__device__ __forceinline__ uint32_t cluster_rank() { return 0; }
__device__ __forceinline__ void cluster_arrive() {}
__device__ __forceinline__ void cluster_wait() {}
__device__ __forceinline__ void init_barrier(uint64_t*, uint32_t = 1) { __trap(); }
__device__ __forceinline__ void expect_bytes(uint64_t*, uint32_t) { __trap(); }
__device__ __forceinline__ void arrive_barrier(uint64_t*) { __trap(); }
__device__ __forceinline__ void arrive_barrier(const uint64_t*, uint32_t) { __trap(); }
__device__ __forceinline__ void wait_barrier(uint64_t*, uint32_t) { __trap(); }
__device__ __forceinline__ void wait_cluster_barrier(uint64_t*, uint32_t) { __trap(); }
__device__ __forceinline__ void copy_bulk(void*, const void*, uint32_t, uint64_t*) { __trap(); }
__device__ __forceinline__ void copy_bulk_streamed(void*, const void*, uint32_t, uint64_t*) {
  __trap();
}
__device__ __forceinline__ void copy_box(void*, const void*, int32_t, int32_t, uint64_t*) {
  __trap();
}
__device__ __forceinline__ void copy_box_streamed(void*, const void*, int32_t, int32_t, uint64_t*) {
  __trap();
}
__device__ __forceinline__ void copy_box_to(uint32_t, void*, const void*, int32_t, int32_t,
                                            uint64_t*) {
  __trap();
}
__device__ __forceinline__ void store_bulk(void*, const void*, uint32_t) { __trap(); }
__device__ __forceinline__ void wait_for_bulk_reads() { __trap(); }
__device__ __forceinline__ void wait_for_bulk_stores() { __trap(); }
__device__ __forceinline__ void fence_bulk_copies() { __trap(); }
__device__ __forceinline__ void send(const void*, const uint64_t*, int, uint32_t) { __trap(); }
__device__ __forceinline__ void send(const void*, const uint64_t*, int, float, float) { __trap(); }
__device__ __forceinline__ void store_transposed(uint32_t, const uint32_t (&)[4]) { __trap(); }

#endif

/// Two floats to a BF16 pair, nearest even; `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
/// Two floats as two E4M3; greater values become the greatest (448).
__device__ __forceinline__ uint16_t pack_e4m3(float low, float high) {
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return static_cast<uint16_t>(f32_to_e4m3(low) | f32_to_e4m3(high) << 8);
#endif
}

/// Four E4M3 to two FP16 pairs, exactly; NaN stays NaN.
__device__ __forceinline__ void widen_e4m3(uint32_t codes, uint32_t& low, uint32_t& high) {
#if __CUDA_ARCH__ >= 890
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; "
      "cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
#else
  // The bits of E4M3 are those of an FP16 that is 2^-8 of it, subnormals too.
  const auto widened = [](uint32_t pair) {  // the codes in the high bytes of both halves
    constexpr uint32_t kAll = 0x7F007F00u, kFactor = 0x5C005C00u;  // 2^8
    const uint32_t bits = (pair & 0x80008000u) | ((pair & kAll) >> 1);
    uint32_t value;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(value) : "r"(bits), "r"(kFactor));
    const uint32_t is_nan = __vcmpeq2(pair & kAll, kAll);
    return value | (is_nan & 0x7FFF7FFFu);
  };
  low = widened(__byte_perm(codes, 0, 0x1404));
  high = widened(__byte_perm(codes, 0, 0x3424));
#endif
}

/// c += a b: a 16 x 16 (row-major fragment), b 16 x 8, BF16; c F32.
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The same in FP16.
__device__ __forceinline__ void mma_f16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                        uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// The same in BF16, for chains of products whose written order the compiler must keep.
__device__ __forceinline__ void mma_in_order(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

/// The sum over lanes 0 to this one.
__device__ __forceinline__ int32_t warp_sum_up_to(int32_t value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const int32_t other = __shfl_up_sync(~0u, value, offset);
    if (lane >= offset) value += other;
  }
  return value;
}

}  // namespace moxie
