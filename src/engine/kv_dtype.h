// The values of --kv-dtype.
#pragma once

#include <optional>
#include <string>

#include "core/base.h"
#include "core/tensor.h"

namespace moxie {

/// bf16, fp8_e4m3, f32 or, without a value, auto: see choose_kv_dtype.
inline Result<std::optional<DType>> parse_kv_dtype(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "bf16") return DType::kBF16;
  if (text == "fp8_e4m3" || text == "fp8") return DType::kF8E4M3;
  if (text == "f32") return DType::kF32;
  return fail("unknown type '" + text + "'", "--kv-dtype", "auto, bf16, fp8_e4m3 or f32");
}

}  // namespace moxie
