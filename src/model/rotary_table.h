// Rotary tables in a device's memory.
#pragma once

#include "core/device.h"
#include "model/config.h"

namespace moxie {

/// The table of the positions below `num_positions` (fill_rotary_table), once the stream has it.
Result<Buffer> make_rotary_table(Device& device, Stream& stream, const YarnFrequencies& frequencies,
                                 int32_t num_positions);

}  // namespace moxie
