// What this machine can do at most, measured: how fast all threads read memory, and the arithmetic
// peaks by number format. Every speed the project prints is given as a share of these.
//
// The limits are measured in the same run as the figures compared with them: machines of one name
// differ, and on shared machines the limits change with the load of others.
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
  std::string gpu;       ///< set by code that uses a GPU; empty: none
  std::string features;  ///< feature_names() of what was allowed
  int num_threads = 0;
  double read_gb_s = 0;          ///< 1e9 bytes a second: median over the passes
  double read_gb_s_best = 0;     ///< the fastest pass
  std::string read_instruction;  ///< "avx512 vmovdqu64"
  uint64_t read_buffer_bytes = 0;
  Peak fp32;  ///< gigaflop/s
  Peak bf16;  ///< BF16 products, F32 sums; the F32 peak if there is no such instruction
  Peak int8;  ///< INT8 products, INT32 sums; giga-operations/s
  Peak fp8;   ///< E5M2 x E4M3 products, F32 sums; GPUs only
  /// GPUs: BF16 products by mma.sync, which portable rows use; not in records.
  double bf16_mma_gflops = 0;
  /// GPUs: kernels that the host starts in a second, measured beside samples that it bounds; 0: not
  /// measured. Not in a record's machine, but in its series.
  double launches_s = 0;
};

struct MachineOptions {
  /// Only rows these features allow are tried.
  Features features = cpu_features();
  /// 0: eight times the last-level caches, so that these hold little of it from pass to pass; at
  /// least 256 MiB, at most a quarter of the free memory.
  uint64_t read_buffer_bytes = 0;
  /// Where eight times the caches are more than 1 GiB, takes 1 GiB, or twice the caches if that is
  /// more. For a process that others wait for or share the memory with: in a virtual machine the
  /// caches are those of its host, and touching the pages takes the most time. The rates may be
  /// some percent higher.
  bool spares_memory = false;
  /// Passes over the buffer; the first one after the pages are touched is not counted.
  int read_passes = 7;
  /// Seconds for one arithmetic loop on all threads together; 0: measures only reads.
  double seconds_per_loop = 0.02;
  /// An earlier measurement: tries only the instructions that were fastest there, which takes a
  /// fifth of a second.
  const MachineLimits* again = nullptr;
  /// Called before each pass over the buffer; returning true ends the measurement, which fails.
  std::function<bool()> gives_up = [] { return false; };
};

/// Bytes of the buffer that is read, where the caches and the free memory are so large; 0
/// `available_bytes`: unknown.
uint64_t read_buffer_bytes(const MachineOptions& options, uint64_t cache_bytes,
                           uint64_t available_bytes);

/// Measures the CPU `device` with its thread pool; takes under a second on most machines. Fails if
/// the device is not a CPU or the buffer cannot be allocated.
Result<MachineLimits> measure_machine(Device& device, const MachineOptions& options = {});

/// The mean rates of one or more measurements of one machine.
MachineLimits mean_of(std::span<const MachineLimits> measured);

/// The "machine" object of `moxie bench --json`: cpu, gpu (or null), threads, features, read_gb_s,
/// peak {fp32_gflops, bf16_gflops, int8_gops, fp8_gflops}, and the instructions that reached them.
nlohmann::ordered_json to_json(const MachineLimits& limits);

/// Bytes of all last-level data caches of this machine together; 0 where the system does not say.
uint64_t last_level_cache_bytes();

/// The peak for products of BF16 activations: the BF16 peak, or the F32 peak if that is higher.
const Peak& best_peak(const MachineLimits& limits);
/// The peak for products of a row, by its name: the 8-bit peak for rows with activations in E4M3 or
/// int8, else best_peak().
const Peak& peak_of_row(const MachineLimits& limits, std::string_view row);

/// The share of the limit reached (may exceed 1): the least time over `seconds`. The least time is
/// the greater of reading `bytes` at the measured rate and doing `operations` at `peak`.
double share_of_limit(const MachineLimits& limits, const Peak& peak, double bytes,
                      double operations, double seconds);

}  // namespace moxie
