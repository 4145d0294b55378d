// Random weights in the CPU's packed layout, for tests and micro-benchmarks.
#pragma once

#include <random>
#include <vector>

#include "core/packing.h"

namespace moxie::testing {

/// Seeded, the same on every machine (no std::normal_distribution, whose values are not fixed).
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int32_t below(int32_t n) { return static_cast<int32_t>(engine_() % static_cast<uint64_t>(n)); }
  /// Uniform in -1..1.
  float uniform() {
    return static_cast<float>(static_cast<double>(engine_() >> 11) * 0x1p-52 - 1.0);
  }
  std::vector<float> uniforms(int64_t n, float scale = 1.0f);

 private:
  std::mt19937_64 engine_;
};

/// A packed matrix and its memory.
struct PackedTensor {
  std::vector<std::byte> memory;
  PackedMatrix matrix;  ///< `data` points into memory
};

/// Values about 1 / sqrt(cols) in size, so that a product keeps the size of its input. MXFP4: all
/// codes, scales over several powers of two. `gate_up_outputs` > 0: rows is
/// 2 * round_up(gate_up_outputs, 16), and the lanes past gate_up_outputs are padding.
PackedTensor random_packed(DType format, int32_t num_experts, int32_t rows, int32_t cols,
                           Random& random, int32_t gate_up_outputs = 0);

}  // namespace moxie::testing
