// The functions behind open_checkpoint, one for each form of checkpoint.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint.h"

namespace moxie {

using CheckpointResult = Result<std::unique_ptr<Checkpoint>>;

/// A folder with config.json and safetensors (Hugging Face or original names, one file or an
/// index), or with `original/` only, or with one GGUF.
CheckpointResult open_checkpoint_folder(const std::string& folder);
/// One .safetensors file with config.json beside it.
CheckpointResult open_safetensors_checkpoint(const std::string& path);
/// A .gguf file; for a split one, any of its parts.
CheckpointResult open_gguf_checkpoint(const std::string& path);
/// The model linked into the binary.
CheckpointResult open_embedded_checkpoint();
/// `spec` is what follows "synthetic:".
CheckpointResult open_synthetic_checkpoint(const std::string& spec);

/// The snapshot folder of "org/name" in the local Hugging Face cache; the error lists the folders
/// searched.
Result<std::string> find_in_hub_cache(const std::string& repo_id);

/// Adds config.faults() as faults of the file `where`; true if there are none.
bool add_config_faults(const GptOssConfig& config, const std::string& where, FaultList* faults);

/// Reads a whole small file of at most `max_bytes`.
Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes);

}  // namespace moxie
