// ldmatrix: matrices of 8 x 8 16-bit elements from shared memory, as mma.sync reads them.
#pragma once

#include <cstdint>

namespace moxie {

/// Four matrices; lane 8 i + r gives the address of row r of matrix i. Word i of a lane holds
/// elements 2 (lane % 4) and the next of row lane / 4 of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t at, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at));
}
/// The same, each matrix transposed.
__device__ __forceinline__ void load_transposed(uint32_t at, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at));
}

}  // namespace moxie
