// What this machine can do at most, measured: how fast all threads read memory, and the arithmetic
// peaks by number format. Every speed the project prints is given as a share of these.
//
// Measured in the same run as what is compared with them: machines of one name differ, and on
// shared ones the limit moves with the neighbours.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "core/base.h"
#include "core/device.h"
#include "kernels/features.h"

namespace moxie {

/// The greatest rate seen, and the instruction that reached it.
struct Peak {
  double rate = 0;          ///< 1e9 operations a second; a multiply-add counts as two
  std::string instruction;  ///< "amx tdpbf16ps", "avx512 vfmadd231ps"
};

struct MachineLimits {
  std::string cpu;       ///< model name, as the system gives it
  std::string gpu;       ///< filled by who uses one; empty: none
  std::string features;  ///< feature_names() of what was allowed
  int num_threads = 0;
  double read_gb_s = 0;          ///< 1e9 bytes a second: median over the passes
  double read_gb_s_best = 0;     ///< the fastest pass
  std::string read_instruction;  ///< "avx512 vmovdqu64"
  uint64_t read_buffer_bytes = 0;
  Peak fp32;  ///< gigaflop/s
  Peak bf16;  ///< BF16 products, F32 sums; without such an instruction F32's
  Peak int8;  ///< INT8 products, INT32 sums; giga-operations/s
  Peak fp8;   ///< E5M2 x E4M3 products, F32 sums; GPUs alone
};

struct MachineOptions {
  /// Only rows these features allow are tried.
  Features features = cpu_features();
  /// 0: eight times the last-level caches, which else hold a good part of it from pass to pass; 256
  /// MiB at least, a quarter of the free memory at most.
  uint64_t read_buffer_bytes = 0;
  /// Passes over the buffer; the first one after the pages are touched is not counted.
  int read_passes = 7;
  /// Time for one arithmetic loop, all threads together; 0: reads alone are measured.
  double seconds_per_loop = 0.02;
  /// What was measured before: only the instructions that were fastest there are tried, which takes
  /// a fifth of a second.
  const MachineLimits* again = nullptr;
  /// Asked before each pass over the buffer: true ends the measurement, which then fails.
  std::function<bool()> gives_up = [] { return false; };
};

/// Measures the CPU `device` with its own thread pool; under a second on most machines. Fails if
/// the device is no CPU or the buffer cannot be had.
Result<MachineLimits> measure_machine(Device& device, const MachineOptions& options = {});

/// Of several measurements of one machine, at least one: the means of their rates.
MachineLimits mean_of(std::span<const MachineLimits> measured);

/// The "machine" object of `moxie bench --json`: cpu, gpu (null without), threads, features,
/// read_gb_s, peak {fp32_gflops, bf16_gflops, int8_gops, fp8_gflops}, and how they were reached.
nlohmann::ordered_json to_json(const MachineLimits& limits);

/// Bytes of all last-level data caches of this machine together; 0 where the system does not say.
uint64_t last_level_cache_bytes();

/// The peak that the products of BF16 activations are held against: BF16's, or F32's where that is
/// faster.
const Peak& best_peak(const MachineLimits& limits);
/// The peak that the products of a row (a kernel's name) are held against: that of its 8 bits for
/// rows with activations in E4M3 or in int8, else best_peak().
const Peak& peak_of_row(const MachineLimits& limits, std::string_view row);

/// The share (0..1 and more) of the nearer limit that `seconds` is: the least time that `bytes`
/// read and `operations` at `peak` need, whichever is greater, over the time taken.
double share_of_limit(const MachineLimits& limits, const Peak& peak, double bytes,
                      double operations, double seconds);

}  // namespace moxie
