// The loops that measure the machine's limits, one for each instruction set. Each loop is compiled
// in its own source with its own flags and run only if the CPU has its features.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/features.h"

namespace moxie {

/// Reads a buffer once. The return value depends on every byte, so that no read is optimised away.
struct ReadLoop {
  const char* instruction;
  Features needs;
  /// `bytes` is a multiple of kReadGrain.
  uint64_t (*run)(const std::byte* data, uint64_t bytes);
};
inline constexpr uint64_t kReadGrain = 32768;
/// A core's hardware prefetchers follow one stream a page: reading eight pages side by side moved
/// half as much again as one after the other on a Sapphire Rapids core (20 against 13 GB/s). Both
/// orders are measured, since others differ.
inline constexpr int kReadStreams = 8;

enum class NumberFormat : uint8_t { kF32, kBF16, kInt8 };

/// Multiplies and adds in registers, without memory accesses.
struct ArithmeticLoop {
  NumberFormat format;
  const char* instruction;
  Features needs;
  double operations_per_iteration;  ///< a multiply-add counts as two
  /// The return value depends on every operation.
  float (*run)(int64_t num_iterations);
};

std::span<const ReadLoop> read_loops_portable();
std::span<const ArithmeticLoop> arithmetic_loops_portable();

#if defined(__x86_64__)
std::span<const ReadLoop> read_loops_avx2();
std::span<const ReadLoop> read_loops_avx512();
std::span<const ArithmeticLoop> arithmetic_loops_avx2();
std::span<const ArithmeticLoop> arithmetic_loops_avx_vnni();
std::span<const ArithmeticLoop> arithmetic_loops_avx512();
std::span<const ArithmeticLoop> arithmetic_loops_avx512_bf16();
std::span<const ArithmeticLoop> arithmetic_loops_avx512_vnni();
std::span<const ArithmeticLoop> arithmetic_loops_amx();
#elif defined(__aarch64__)
std::span<const ReadLoop> read_loops_neon();
std::span<const ArithmeticLoop> arithmetic_loops_neon();
std::span<const ArithmeticLoop> arithmetic_loops_neon_dot();
std::span<const ArithmeticLoop> arithmetic_loops_neon_i8mm();
std::span<const ArithmeticLoop> arithmetic_loops_neon_bf16();
#endif

}  // namespace moxie
