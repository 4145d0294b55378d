// The weights of a loaded model, packed for one device. model/weight_table.h says what each is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"
#include "model/config.h"

namespace moxie {

/// Vectors are F32; pointers lie in ModelWeights::storage.
struct LayerWeights {
  const float* input_norm = nullptr;    // [hidden]
  PackedMatrix qkv;                     // [q + k + v rows, hidden]
  const float* qkv_bias = nullptr;      // [qkv rows]
  const float* sinks = nullptr;         // [heads]; null where the model has none
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

/// Seconds of each stage of a start. Reading, copying and repacking overlap: their sum may exceed
/// the elapsed time. The loader sets read, copy, repack and weights; the engine sets the others.
struct StartupTimeline {
  double open_s = 0;            ///< checkpoint found, headers checked
  double plan_s = 0;            ///< memory planned
  double read_s = 0;            ///< mean over the threads that read files
  double copy_s = 0;            ///< CUDA: the copy engine busy, host to device
  double repack_s = 0;          ///< CUDA: repack kernels; synthetic weights: making them
  double weights_s = 0;         ///< elapsed from the first allocation to all weights in place
  double self_test_s = 0;       ///< beside the loading; 0: all was proven before
  double self_test_wait_s = 0;  ///< of these, after all weights were in place
  double graphs_s = 0;          ///< CUDA: graphs captured
  double ready_s = 0;           ///< elapsed from the start to ready
  uint64_t read_bytes = 0;      ///< read from files
};

struct ModelWeights {
  RowTable embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;  // [hidden]
  PackedMatrix head;                  // [GptOssConfig::unembed_rows(), hidden]
  std::vector<Buffer> storage;        // owns all of the above
  uint64_t packed_bytes = 0;          // sum over storage in use
  StartupTimeline timeline;           // times of loading

  /// The rows of head that a rank with this configuration computes logits by: the first.
  PackedMatrix head_of(const GptOssConfig& config) const {
    PackedMatrix rows = head;
    rows.rows = config.logits_held();
    return rows;
  }
};

/// The dense layers quantised at load: a list of qkv, o and lm_head, or `all`; empty for none.
/// `--mxfp4-layers` accepts `moe` too, without effect: experts stay as the checkpoint has them.
struct DenseLayers {
  bool qkv = false, o = false, lm_head = false;
  /// `flag` names the flag in the error.
  static Result<DenseLayers> parse(const std::string& text,
                                   const std::string& flag = "--mxfp4-layers");
};
using Mxfp4Layers = DenseLayers;

}  // namespace moxie
