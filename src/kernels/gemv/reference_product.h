// y = W x in double precision, straight from the packed values: the product of the reference rows.
// Every row of W is decoded once and applied to all tokens; rows are spread over the pool.
#pragma once

#include <cstdint>
#include <vector>

#include "core/packing.h"
#include "core/threads.h"

namespace moxie {

/// Rows are decoded into memory of the thread (128 KiB).
inline constexpr int32_t kMaxReferenceCols = 16384;

inline bool is_reference_layout(const PackedMatrix& matrix) {
  return matrix.layout == PackedLayout::kRows16 && matrix.cols <= kMaxReferenceCols;
}

// Compiled twice, for registers of 128 and of 256 bits: the same bits, in half the time.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define MOXIE_REFERENCE_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define MOXIE_REFERENCE_CLONES
#endif

/// In eight sums, added up in a fixed order.
template <typename X>  // float or double
MOXIE_REFERENCE_CLONES double reference_dot(const double* w, const X* x, int32_t n) {
  constexpr int32_t kSums = 8;
  double sums[kSums] = {};
  int32_t k = 0;
  for (; k + kSums <= n; k += kSums)
    for (int32_t i = 0; i < kSums; ++i) sums[i] += w[k + i] * static_cast<double>(x[k + i]);
  for (int32_t i = 0; k < n; ++i, ++k) sums[i] += w[k] * static_cast<double>(x[k]);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

#undef MOXIE_REFERENCE_CLONES

/// Room for a row of weights, kept by a thread. Not an array: the memory of thread_local arrays is
/// taken from the stack of every thread of the process, also of those that run no product.
using ReferenceRow = std::vector<double>;

/// Calls store(token, row, value) for every token of x [num_tokens, cols] and row of `matrix`, from
/// several threads, once for each pair.
template <typename X, typename Store>
void reference_product(ThreadPool& pool, const PackedMatrix& matrix, const X* x, int32_t num_tokens,
                       Store store) {
  auto one_row = [&](int64_t row, int) {
    static thread_local ReferenceRow w(kMaxReferenceCols);
    const auto r = static_cast<int32_t>(row);
    read_packed_row(matrix, r, w.data());
    for (int32_t token = 0; token < num_tokens; ++token) {
      store(token, r, reference_dot(w.data(), x + int64_t{token} * matrix.cols, matrix.cols));
    }
  };
  pool.run(matrix.rows, one_row);
}

}  // namespace moxie
