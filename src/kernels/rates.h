// A device's greatest rates, as the planner uses them, and times predicted from them.
#pragma once

#include <algorithm>

#include "core/base.h"
#include "kernels/features.h"
#include "kernels/gemm/tile_model.h"
#include "kernels/step.h"

namespace moxie {

/// The defaults are an H200's, as measured (docs/records).
struct DeviceRates {
  double read_gb_s = 4600;        ///< 1e9 bytes a second
  double bf16_gflops = 790e3;     ///< BF16 products, F32 sums; 1e9 operations a second
  double mma_gflops = 480e3;      ///< BF16 products by mma.sync, the same on older and smaller GPUs
  double fp8_gflops = 1500e3;     ///< 8-bit products
  int32_t num_sms = 0;            ///< CUDA
  double operand_gb_s_of_sm = 0;  ///< CUDA: packed weights of which an SM makes operands
  int32_t num_threads = 1;        ///< CPU: that share a step
  double bf16_dot_cost = 1;       ///< CPU: of rows by vdpbf16ps (features.h)
};

/// Bytes of packed MXFP4 weights of which an SM's rows for a few tokens make operands in a clock.
/// 12,240 bytes take 0.32 us on an H200 at 1.98 GHz
/// (docs/decisions/2026-11-21-decode-chain-on-cuda.md).
inline constexpr double kOperandBytesAClock = 19.3;

/// A GPU's rates, from the driver's properties; a missing property is that of an H200. A CPU's: the
/// number of threads, for rows that know the time of one thread, and 25 GB/s a thread, up to what
/// eight memory channels give.
inline DeviceRates rates_of(DeviceKind kind, const DeviceProperties& device) {
  DeviceRates rates;
  if (kind == DeviceKind::kCpu) {
    rates.num_threads = std::max(1, device.num_units);
    rates.read_gb_s = std::min(25.0 * rates.num_threads, 160.0);
    rates.bf16_gflops = 100.0 * rates.num_threads;
    rates.bf16_dot_cost = bf16_dot_cost();
    return rates;
  }
  // About 96% of memory's rate can be read, and about 80% of the tensor cores' rate reached.
  if (device.memory_gb_s > 0) rates.read_gb_s = 0.96 * device.memory_gb_s;
  const int cc = device.compute_capability;
  const double of_sm = cc >= 120   ? 1024
                       : cc >= 100 ? 8192
                       : cc >= 90  ? 4096
                       : cc == 80  ? 2048
                                   : 1024;
  // A GeForce has half of its chip's rate where sums are F32 (NVIDIA's data sheets).
  const double share = device.name.find("GeForce") != std::string::npos ? 0.5 : 1.0;
  if (device.clock_ghz > 0 && device.num_units > 0)
    rates.bf16_gflops = 0.8 * share * of_sm * device.num_units * device.clock_ghz;
  rates.fp8_gflops = 1.9 * rates.bf16_gflops;
  rates.num_sms = device.num_units;
  rates.operand_gb_s_of_sm = kOperandBytesAClock * (device.clock_ghz > 0 ? device.clock_ghz : 1.98);
  // On a B200 it is taken to be a Hopper's an SM, which nobody has measured.
  rates.mma_gflops = cc >= 100 && cc < 120  ? 0.3 * rates.bf16_gflops
                     : cc >= 90 && cc < 120 ? 0.6 * rates.bf16_gflops
                                            : rates.bf16_gflops;
  return rates;
}

/// What the tile models know of a device of these rates.
inline gemm::TileDevice tile_device_of(const DeviceRates& rates) {
  return {.num_sms = rates.num_sms,
          .read_gb_s = rates.read_gb_s,
          .mma_gflops = rates.mma_gflops,
          .operand_gb_s_of_sm = rates.operand_gb_s_of_sm};
}

/// The shares of the rates that a row reaches, and its time without any work.
struct Efficiency {
  double read = 1, products = 1;  ///< shares of the rates, 0 to 1
  double fixed_us = 0;            ///< of a launch
};

/// Microseconds of work at a device's rates; the slower of both limits counts.
inline double limit_us(const Work& work, double read_gb_s, double gflops) {
  return 1e-3 * std::max(work.bytes / read_gb_s, work.flops / gflops);
}
inline double predicted_us(const Work& work, const DeviceRates& rates, double gflops,
                           const Efficiency& reached) {
  return reached.fixed_us +
         limit_us(work, rates.read_gb_s * reached.read, gflops * reached.products);
}

/// The time of a CUDA row that takes tokens in groups: it reads the weights once a group.
inline double grouped_us(const Work& work, double weight_bytes, int32_t num_tokens, int32_t group,
                         const DeviceRates& rates, const Efficiency& reached) {
  const double num_groups = ceil_div(num_tokens, group);
  const Work all{.bytes = work.bytes + (num_groups - 1) * weight_bytes, .flops = 0};
  return num_groups * reached.fixed_us + 1e-3 * all.bytes / (rates.read_gb_s * reached.read);
}

}  // namespace moxie
