// Which weights a run had: where they came from, and a hash that tells two checkpoints apart.
#pragma once

#include "lab/record.h"
#include "model/checkpoint.h"

namespace moxie {

/// The hash is XXH3-128 over each stored tensor's name, type and shape, and over samples of each
/// file: its size and up to 64 pieces of 64 KiB, evenly spread. So a checkpoint of 60 GB takes
/// milliseconds; two that differ in a few values only may share the hash. Empty for synthetic
/// weights, which their recipe and seed describe, and where a file cannot be read.
WeightsOrigin weights_origin(const Checkpoint& checkpoint, uint64_t packed_bytes);

}  // namespace moxie
