// What hardware can do, as bits. Found at run time: one binary serves every machine.
#pragma once

#include <cstdint>
#include <string>

namespace moxie {

using Features = uint64_t;

enum Feature : Features {
  kFeatureNone = 0,
  // x86-64; a bit is set only if the operating system saves the registers too (XCR0).
  kAvx2 = 1u << 0,  ///< with FMA and F16C
  kAvxVnni = 1u << 1,
  kAvx512 = 1u << 2,  ///< F, BW, DQ, VL
  kAvx512Vnni = 1u << 3,
  kAvx512Bf16 = 1u << 4,
  kAmxInt8 = 1u << 5,  ///< granted by arch_prctl as well
  kAmxBf16 = 1u << 6,
  kAvx512Vbmi = 1u << 7,  ///< permutes of bytes: all that have BF16 or AMX but Cooper Lake
  // aarch64
  kNeon = 1u << 12,
  kNeonDot = 1u << 13,  ///< products of four bytes (sdot, udot)
  kNeonI8mm =
      1u << 14,  ///< products of small matrices of bytes (smmla), and of mixed signs (usdot)
  kNeonBf16 = 1u << 15,  ///< BF16 products (bfdot, bfmmla)
  // CUDA, by the code that the device can run
  kCudaAny = 1u << 20,
  kSm90a = 1u << 21,
  kSm100a = 1u << 22,
  kSm120f = 1u << 23,
  kClusters = 1u << 24,      ///< and bulk copies: sm_90 and later
  kNoMxProducts = 1u << 25,  ///< CUDA without block-scaled mma.sync: fragments are emulated
};

/// Features of this CPU, asked once.
Features cpu_features();

/// Whether this CPU's cores get most of the memory's bandwidth by reading in the order of
/// addresses: so on AMD's, as on a Zen 4. Others, such as a Sapphire Rapids, get it with
/// several streams side by side.
bool reads_in_order();
/// What products by vdpbf16ps cost on this CPU, in the time that they take on AMD's: on a Zen 4 an
/// instruction takes as long as a multiply-add of half as many values, on an Emerald Rapids four
/// times as long.
double bf16_dot_cost();

/// Features of a CUDA device that runs this code (core/cuda_archs.h: 80, 90, 100, 120); none for 0.
Features features_of_code(int32_t code);
/// Features of a CUDA device of this compute capability (90, 100, 103, 120, 121).
Features cuda_features(int compute_capability);

/// Shared memory of a block, in bytes, that rows for CUDA devices of these features may plan with;
/// 0: as much as the device has. Code for any GPU keeps to what the least of them has, and so does
/// a device that has no more.
uint64_t most_shared_bytes(Features features);
/// What each GPU since sm_80 has: sm_86, 89 and 120 no more.
inline constexpr uint64_t kPortableSharedBytes = 99 * 1024;

/// "avx2 avx512 avx512_vnni"; "none" for no bits.
std::string feature_names(Features features);

}  // namespace moxie
