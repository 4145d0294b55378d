// Draft heads in GGUF, in the terms of the safetensors forms: names of tensors, and a configuration
// that parse_draft_config() reads.
//
// Sources: llama.cpp's converters (conversion/llama.py, conversion/qwen.py) and what it loads and
// computes (src/models/eagle3.cpp, src/models/dflash.cpp), in several versions. None of this was
// verified against a published file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "model/draft_config.h"
#include "weights/gguf.h"

namespace moxie {

/// What general.architecture says of a head.
enum class GgufHeadKind : uint8_t { kEagle3, kDflash };
/// Empty for anything but "eagle3" and "dflash".
std::optional<GgufHeadKind> gguf_head_kind(const GgufFile& file);

/// "layers.0.self_attn.q_proj.weight" of "blk.0.attn_q.weight"; empty for a tensor that no head of
/// this kind is known to have.
std::string draft_name_of_gguf(GgufHeadKind kind, const std::string& gguf_name);
/// The inverse: the name as it stands, if GGUF has no such tensor.
std::string gguf_name_of_draft(GgufHeadKind kind, const std::string& name);
/// Tensors that carry no weights: factors of the rotation, and t2d.
bool is_gguf_side_tensor(const std::string& gguf_name);

/// How many rows a head of attention has if the rows of queries and keys are interleaved: stored
/// row 2j + p of a head is the model's row p * head_dim / 2 + j. 0: they lie as in the model.
/// llama.cpp converts eagle3 so (its rotation turns neighbours), and dflash not.
int32_t interleaved_head_dim(GgufHeadKind kind, const std::string& name, const DraftConfig& config);

/// The configuration of a head whose file is sound. `layer_id_offset` is added to the layer
/// numbers; -1: those of eagle3 are boundaries, and those of dflash boundaries or outputs from 0,
/// by the rules in docs/speculation.md.
Result<DraftConfig> parse_gguf_draft_config(const GgufFile& file, GgufHeadKind kind,
                                            const GptOssConfig& target, int32_t layer_id_offset,
                                            const HasTensor& has_tensor);

}  // namespace moxie
