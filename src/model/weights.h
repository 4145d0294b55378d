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

/// Seconds of a start, by part. Reading, copying and repacking overlap: their sum may exceed the
/// time that passed. The loader fills read, copy, repack and weights; the rest is the engine's.
struct StartupTimeline {
  double open_s = 0;        ///< checkpoint found, headers checked
  double plan_s = 0;        ///< memory planned
  double read_s = 0;        ///< mean over the threads that read files
  double copy_s = 0;        ///< CUDA: the copy engine busy, host to device
  double repack_s = 0;      ///< CUDA: repack kernels; synthetic weights: making them
  double weights_s = 0;     ///< from the first allocation to all weights in place, as time passed
  double graphs_s = 0;      ///< CUDA: graphs captured
  double ready_s = 0;       ///< from the start to ready, as time passed
  uint64_t read_bytes = 0;  ///< taken from files
};

struct ModelWeights {
  RowTable embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;  // [hidden]
  PackedMatrix head;                  // [vocab, hidden]
  std::vector<Buffer> storage;        // owns all of the above
  uint64_t packed_bytes = 0;          // sum over storage in use
  StartupTimeline timeline;           // what loading took
};

/// Which dense layers are quantised at load: a list of qkv, o and lm_head, or `all`; nothing for
/// none. `--mxfp4-layers` takes `moe` too, which means as the checkpoint has them and is always on.
struct DenseLayers {
  bool qkv = false, o = false, lm_head = false;
  /// `flag` stands in the error.
  static Result<DenseLayers> parse(const std::string& text,
                                   const std::string& flag = "--mxfp4-layers");
};
using Mxfp4Layers = DenseLayers;

}  // namespace moxie
