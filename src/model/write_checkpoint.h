// Writes a checkpoint of true shapes and random weights in Hugging Face form: config.json, shards
// of safetensors and their index. For measuring how fast real files are loaded, and for tests.
#pragma once

#include <functional>
#include <string>

#include "core/base.h"
#include "model/config.h"

namespace moxie {

struct WriteCheckpointOptions {
  uint64_t seed = 0;
  uint64_t shard_bytes = uint64_t{5} << 30;  ///< a shard closes once it holds as much
  int num_threads = 0;                       ///< 0: one a usable core
  /// Called between pieces with the bytes written and their total.
  std::function<void(uint64_t done, uint64_t total)> on_progress;
};

/// Dense weights are BF16, experts MXFP4 (_blocks and _scales), norms ones, biases and sinks zeros;
/// sizes of values as in `synthetic:` models. Values depend on the seed and their place only. Makes
/// `folder`. Fails before writing if the folder holds a checkpoint or the disk lacks the room. If
/// writing fails, removes what it wrote.
Status write_checkpoint(const GptOssConfig& config, const std::string& folder,
                        const WriteCheckpointOptions& options = {});

}  // namespace moxie
