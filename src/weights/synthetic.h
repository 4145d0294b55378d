// Random weights of a model's true shapes, made directly in the packed layout, in place and in
// parallel: for benchmarks, plans and tests that need a model's size but not its knowledge.
//
// Values depend on the seed and their place only, not on the number of threads. They have mean 0
// and about the standard deviation asked for (within a factor of 1.5: scales are powers of two).
#pragma once

#include "core/tensor.h"
#include "core/threads.h"

namespace moxie {

/// Fills `matrix`, whose data lies in writable memory of the CPU: kBF16, kF32 or kMXFP4 tiles.
/// Padding rows are zeros.
void fill_random_matrix(const PackedMatrix& matrix, double deviation, uint64_t seed,
                        ThreadPool& pool);
/// Fills a table of BF16 or F32 rows.
void fill_random_table(const RowTable& table, double deviation, uint64_t seed, ThreadPool& pool);

}  // namespace moxie
