// How outputs of low-precision operations are judged in the public traces: an output is off only if
// its absolute and its relative error are both above their tolerances, and a share of the outputs
// must not be off.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "core/base.h"

namespace moxie {

struct LowBitTolerance {
  double rtol = 1e-2, atol = 1e-2, required_matched_ratio = 0.95;
};

/// What a command line sets; it overrides every file.
struct LowBitOverrides {
  std::optional<double> rtol, atol, required_matched_ratio;
};

/// The tolerances of a definition. Each of the three comes from the first of these that has it: the
/// overrides, `config`'s definition_config of this name, its op_type_config of this type, its own
/// top level, the defaults above. Fails on a config that is no such object, a number out of range
/// and, in these three objects, a key of another name.
Result<LowBitTolerance> low_bit_tolerance(const nlohmann::ordered_json& config,
                                          const std::string& definition, const std::string& op_type,
                                          const LowBitOverrides& overrides,
                                          const std::string& where);

struct LowBitVerdict {
  double max_absolute_error = 0, max_relative_error = 0, matched_ratio = 1;
  bool is_finite = true;  ///< no NaN or infinity in the output; with one, the rest is not computed
  bool passes = false;
};

/// BF16 outputs against the reference's. The relative error is |difference| / (|reference| + 1e-8).
/// Both spans have the same length. No outputs match as a whole.
LowBitVerdict judge_low_bit(std::span<const uint16_t> output, std::span<const uint16_t> reference,
                            const LowBitTolerance& tolerance);

}  // namespace moxie
