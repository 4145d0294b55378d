// wgmma on Hopper (sm_90a) with the weights as register operand, for each number of columns that
// the products use.
//
//   d[4 i + 0..3] of lane (g, q) of warp w: (row 16 w + g, column 8 i + 2 q), (.., + 1),
//                                           (row 16 w + g + 8, column 8 i + 2 q), (.., + 1)
// a: rows 16 w + g and + 8 of 16 columns, as mma.m16n8k16's first operand. b: a descriptor of the
// columns in shared memory, K-major with the 128-byte swizzle (kernels/wgmma.cuh).
#pragma once

#include <cstdint>

#include "kernels/wgmma.cuh"

namespace moxie::gemm {

/// d += a b, 64 rows x kColumns x 16.
template <int kColumns>
__device__ __forceinline__ void wgmma_bf16(float* d, const uint32_t* a, uint64_t b);
/// d += a b, 64 rows x kColumns x 32 of E5M2 and E4M3: lane (g, q) has columns 4 q .. 4 q + 3 of
/// rows g and g + 8 in a[0] and a[1], columns 16 + 4 q .. of the same rows in a[2] and a[3].
template <int kColumns>
__device__ __forceinline__ void wgmma_fp8(float* d, const uint32_t* a, uint64_t b);

// Names and operands of the sums of so many columns, four for each eight columns.
// clang-format off
#define MOXIE_FOUR_SUMS(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3])
#define MOXIE_NAMES_8 "%0, %1, %2, %3"
#define MOXIE_NAMES_16 MOXIE_NAMES_8 ", " "%4, %5, %6, %7"
#define MOXIE_NAMES_24 MOXIE_NAMES_16 ", " "%8, %9, %10, %11"
#define MOXIE_NAMES_32 MOXIE_NAMES_24 ", " "%12, %13, %14, %15"
#define MOXIE_NAMES_40 MOXIE_NAMES_32 ", " "%16, %17, %18, %19"
#define MOXIE_NAMES_48 MOXIE_NAMES_40 ", " "%20, %21, %22, %23"
#define MOXIE_NAMES_56 MOXIE_NAMES_48 ", " "%24, %25, %26, %27"
#define MOXIE_NAMES_64 MOXIE_NAMES_56 ", " "%28, %29, %30, %31"
#define MOXIE_NAMES_72 MOXIE_NAMES_64 ", " "%32, %33, %34, %35"
#define MOXIE_NAMES_80 MOXIE_NAMES_72 ", " "%36, %37, %38, %39"
#define MOXIE_NAMES_88 MOXIE_NAMES_80 ", " "%40, %41, %42, %43"
#define MOXIE_NAMES_96 MOXIE_NAMES_88 ", " "%44, %45, %46, %47"
#define MOXIE_NAMES_104 MOXIE_NAMES_96 ", " "%48, %49, %50, %51"
#define MOXIE_NAMES_112 MOXIE_NAMES_104 ", " "%52, %53, %54, %55"
#define MOXIE_NAMES_120 MOXIE_NAMES_112 ", " "%56, %57, %58, %59"
#define MOXIE_NAMES_128 MOXIE_NAMES_120 ", " "%60, %61, %62, %63"
#define MOXIE_NAMES_136 MOXIE_NAMES_128 ", " "%64, %65, %66, %67"
#define MOXIE_NAMES_144 MOXIE_NAMES_136 ", " "%68, %69, %70, %71"
#define MOXIE_NAMES_152 MOXIE_NAMES_144 ", " "%72, %73, %74, %75"
#define MOXIE_NAMES_160 MOXIE_NAMES_152 ", " "%76, %77, %78, %79"
#define MOXIE_NAMES_168 MOXIE_NAMES_160 ", " "%80, %81, %82, %83"
#define MOXIE_NAMES_176 MOXIE_NAMES_168 ", " "%84, %85, %86, %87"
#define MOXIE_NAMES_184 MOXIE_NAMES_176 ", " "%88, %89, %90, %91"
#define MOXIE_NAMES_192 MOXIE_NAMES_184 ", " "%92, %93, %94, %95"
#define MOXIE_NAMES_200 MOXIE_NAMES_192 ", " "%96, %97, %98, %99"
#define MOXIE_NAMES_208 MOXIE_NAMES_200 ", " "%100, %101, %102, %103"
#define MOXIE_NAMES_216 MOXIE_NAMES_208 ", " "%104, %105, %106, %107"
#define MOXIE_NAMES_224 MOXIE_NAMES_216 ", " "%108, %109, %110, %111"
#define MOXIE_NAMES_232 MOXIE_NAMES_224 ", " "%112, %113, %114, %115"
#define MOXIE_NAMES_240 MOXIE_NAMES_232 ", " "%116, %117, %118, %119"
#define MOXIE_NAMES_248 MOXIE_NAMES_240 ", " "%120, %121, %122, %123"
#define MOXIE_NAMES_256 MOXIE_NAMES_248 ", " "%124, %125, %126, %127"
#define MOXIE_SUMS_8 MOXIE_FOUR_SUMS(0)
#define MOXIE_SUMS_16 MOXIE_SUMS_8, MOXIE_FOUR_SUMS(4)
#define MOXIE_SUMS_24 MOXIE_SUMS_16, MOXIE_FOUR_SUMS(8)
#define MOXIE_SUMS_32 MOXIE_SUMS_24, MOXIE_FOUR_SUMS(12)
#define MOXIE_SUMS_40 MOXIE_SUMS_32, MOXIE_FOUR_SUMS(16)
#define MOXIE_SUMS_48 MOXIE_SUMS_40, MOXIE_FOUR_SUMS(20)
#define MOXIE_SUMS_56 MOXIE_SUMS_48, MOXIE_FOUR_SUMS(24)
#define MOXIE_SUMS_64 MOXIE_SUMS_56, MOXIE_FOUR_SUMS(28)
#define MOXIE_SUMS_72 MOXIE_SUMS_64, MOXIE_FOUR_SUMS(32)
#define MOXIE_SUMS_80 MOXIE_SUMS_72, MOXIE_FOUR_SUMS(36)
#define MOXIE_SUMS_88 MOXIE_SUMS_80, MOXIE_FOUR_SUMS(40)
#define MOXIE_SUMS_96 MOXIE_SUMS_88, MOXIE_FOUR_SUMS(44)
#define MOXIE_SUMS_104 MOXIE_SUMS_96, MOXIE_FOUR_SUMS(48)
#define MOXIE_SUMS_112 MOXIE_SUMS_104, MOXIE_FOUR_SUMS(52)
#define MOXIE_SUMS_120 MOXIE_SUMS_112, MOXIE_FOUR_SUMS(56)
#define MOXIE_SUMS_128 MOXIE_SUMS_120, MOXIE_FOUR_SUMS(60)
#define MOXIE_SUMS_136 MOXIE_SUMS_128, MOXIE_FOUR_SUMS(64)
#define MOXIE_SUMS_144 MOXIE_SUMS_136, MOXIE_FOUR_SUMS(68)
#define MOXIE_SUMS_152 MOXIE_SUMS_144, MOXIE_FOUR_SUMS(72)
#define MOXIE_SUMS_160 MOXIE_SUMS_152, MOXIE_FOUR_SUMS(76)
#define MOXIE_SUMS_168 MOXIE_SUMS_160, MOXIE_FOUR_SUMS(80)
#define MOXIE_SUMS_176 MOXIE_SUMS_168, MOXIE_FOUR_SUMS(84)
#define MOXIE_SUMS_184 MOXIE_SUMS_176, MOXIE_FOUR_SUMS(88)
#define MOXIE_SUMS_192 MOXIE_SUMS_184, MOXIE_FOUR_SUMS(92)
#define MOXIE_SUMS_200 MOXIE_SUMS_192, MOXIE_FOUR_SUMS(96)
#define MOXIE_SUMS_208 MOXIE_SUMS_200, MOXIE_FOUR_SUMS(100)
#define MOXIE_SUMS_216 MOXIE_SUMS_208, MOXIE_FOUR_SUMS(104)
#define MOXIE_SUMS_224 MOXIE_SUMS_216, MOXIE_FOUR_SUMS(108)
#define MOXIE_SUMS_232 MOXIE_SUMS_224, MOXIE_FOUR_SUMS(112)
#define MOXIE_SUMS_240 MOXIE_SUMS_232, MOXIE_FOUR_SUMS(116)
#define MOXIE_SUMS_248 MOXIE_SUMS_240, MOXIE_FOUR_SUMS(120)
#define MOXIE_SUMS_256 MOXIE_SUMS_248, MOXIE_FOUR_SUMS(124)
// clang-format on

// `a0` to `a3` and `b` are the numbers of the operands behind the sums.
#define MOXIE_WGMMA(function, columns, shape, types, major, a0, a1, a2, a3, b)                  \
  template <>                                                                                   \
  __device__ __forceinline__ void function<columns>(float* d, const uint32_t* a, uint64_t at) { \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns shape types                       \
                 " {" MOXIE_NAMES_##columns "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b \
                                            ", 1, 1, 1" major ";"                               \
                 : MOXIE_SUMS_##columns                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(at));                        \
  }
#define MOXIE_WGMMA_BF16(columns, ...) \
  MOXIE_WGMMA(wgmma_bf16, columns, "k16", ".f32.bf16.bf16", ", 0", __VA_ARGS__)
#define MOXIE_WGMMA_FP8(columns, ...) \
  MOXIE_WGMMA(wgmma_fp8, columns, "k32", ".f32.e5m2.e4m3", "", __VA_ARGS__)

MOXIE_WGMMA_BF16(8, 4, 5, 6, 7, 8)
MOXIE_WGMMA_BF16(16, 8, 9, 10, 11, 12)
MOXIE_WGMMA_BF16(32, 16, 17, 18, 19, 20)
MOXIE_WGMMA_BF16(48, 24, 25, 26, 27, 28)
MOXIE_WGMMA_BF16(64, 32, 33, 34, 35, 36)
MOXIE_WGMMA_BF16(80, 40, 41, 42, 43, 44)
MOXIE_WGMMA_BF16(96, 48, 49, 50, 51, 52)
MOXIE_WGMMA_BF16(112, 56, 57, 58, 59, 60)
MOXIE_WGMMA_BF16(128, 64, 65, 66, 67, 68)
MOXIE_WGMMA_BF16(144, 72, 73, 74, 75, 76)
MOXIE_WGMMA_BF16(160, 80, 81, 82, 83, 84)
MOXIE_WGMMA_BF16(176, 88, 89, 90, 91, 92)
MOXIE_WGMMA_BF16(192, 96, 97, 98, 99, 100)
MOXIE_WGMMA_BF16(208, 104, 105, 106, 107, 108)
MOXIE_WGMMA_BF16(224, 112, 113, 114, 115, 116)
MOXIE_WGMMA_BF16(240, 120, 121, 122, 123, 124)
MOXIE_WGMMA_BF16(256, 128, 129, 130, 131, 132)

MOXIE_WGMMA_FP8(48, 24, 25, 26, 27, 28)
MOXIE_WGMMA_FP8(64, 32, 33, 34, 35, 36)
MOXIE_WGMMA_FP8(80, 40, 41, 42, 43, 44)
MOXIE_WGMMA_FP8(96, 48, 49, 50, 51, 52)
MOXIE_WGMMA_FP8(112, 56, 57, 58, 59, 60)
MOXIE_WGMMA_FP8(128, 64, 65, 66, 67, 68)
MOXIE_WGMMA_FP8(136, 68, 69, 70, 71, 72)
MOXIE_WGMMA_FP8(144, 72, 73, 74, 75, 76)
MOXIE_WGMMA_FP8(160, 80, 81, 82, 83, 84)
MOXIE_WGMMA_FP8(176, 88, 89, 90, 91, 92)
MOXIE_WGMMA_FP8(192, 96, 97, 98, 99, 100)
MOXIE_WGMMA_FP8(208, 104, 105, 106, 107, 108)
MOXIE_WGMMA_FP8(224, 112, 113, 114, 115, 116)
MOXIE_WGMMA_FP8(240, 120, 121, 122, 123, 124)
MOXIE_WGMMA_FP8(256, 128, 129, 130, 131, 132)

}  // namespace moxie::gemm
