// GPUs by name: what their makers' data sheets say, and what of it is expected to be reached. For
// predictions on machines that have no such card.
#pragma once

#include <span>
#include <string>

#include "core/base.h"
#include "kernels/features.h"

namespace moxie {

/// A figure that is not known exactly.
struct Range {
  double low = 0, mid = 0, high = 0;
};

/// Rates are of dense products with F32 sums; 0: the card has no such products.
struct GpuCard {
  const char* name;
  int32_t compute_capability, num_sms;
  double clock_ghz;  ///< boost
  double memory_gb;  ///< 1e9 bytes, as the data sheet says or (H100, H200) the driver
  double memory_gb_s;
  double bf16_tflops, fp8_tflops, fp4_tflops;
  double l2_mb;
  int32_t shared_kb;    ///< of an SM
  double system_gb;     ///< of the memory, what the operating system takes: unified memory alone
  Range read_share;     ///< of memory_gb_s that kernels read
  Range product_share;  ///< of bf16_tflops that products of the card's rows for many tokens reach
  const char* measured_by;  ///< records; empty: the card was never at hand
};

std::span<const GpuCard> gpu_cards();

/// By name, in any case, without regard to spaces and dashes; or an error that lists all names.
Result<const GpuCard*> gpu_card(const std::string& name);

/// Features by the code that a release has (`make ARCHS="80 90a 100a 120f"`), whatever this build
/// was compiled for.
Features features_of(const GpuCard& card);

/// What the rows for a few tokens read at most: memory's rate, or that of making operands.
double read_gb_s_of(const GpuCard& card, double share);

}  // namespace moxie
