// The weights of a loaded model, packed for one device, and the one list of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "model/config.h"

namespace moxie {

/// One weight as the checkpoint must hold it (Hugging Face names and shapes).
struct WeightSpec {
  std::string name;  ///< "model.layers.3.self_attn.q_proj.weight"; experts without _blocks/_scales
  Shape shape;       ///< logical: experts' gate_up [E, 2I, H], down [E, H, I]
  bool is_expert_matrix = false;  ///< MXFP4 blocks + scales, or dense
  bool is_vector = false;         ///< norm, bias or sinks: kept as F32
};

/// The only list of weights: loader, plan, inspect and converters walk it.
void for_each_weight(const GptOssConfig& config,
                     const std::function<void(const WeightSpec&)>& visit);

/// Vectors are F32; pointers lie in ModelWeights::storage.
struct LayerWeights {
  const float* input_norm = nullptr;    // [hidden]
  PackedMatrix qkv;                     // [q + k + v rows, hidden]
  const float* qkv_bias = nullptr;      // [qkv rows]
  const float* sinks = nullptr;         // [heads]
  PackedMatrix out;                     // [hidden, q width]
  const float* out_bias = nullptr;      // [hidden]
  const float* post_norm = nullptr;     // [hidden]
  PackedMatrix router;                  // [experts, hidden]
  const float* router_bias = nullptr;   // [experts]
  PackedMatrix gate_up;                 // experts x [2 * round_up(intermediate, 16), hidden]
  const float* gate_up_bias = nullptr;  // [experts, gate_up.rows], packed order
  PackedMatrix down;                    // experts x [hidden, intermediate]
  const float* down_bias = nullptr;     // [experts, hidden]
};

struct ModelWeights {
  RowTable embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;  // [hidden]
  PackedMatrix head;                  // [vocab, hidden]
  std::vector<Buffer> storage;        // owns all of the above
  uint64_t packed_bytes = 0;          // sum over storage in use
};

/// Which dense layers are quantised to MXFP4 at load: `--mxfp4-layers moe,qkv,o,lm_head` or `all`.
/// `moe` means as the checkpoint has them and is always on.
struct Mxfp4Layers {
  bool qkv = false, o = false, lm_head = false;
  static Result<Mxfp4Layers> parse(const std::string& text);
};

}  // namespace moxie
