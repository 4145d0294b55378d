// The weights of a draft head, packed for one device.
#pragma once

#include <vector>

#include "core/device.h"
#include "model/draft_checkpoint.h"
#include "model/weights.h"

namespace moxie {

struct DraftLayer {
  const float* input_norm = nullptr;   // [hidden], of the embedding in layer 0 of EAGLE heads
  const float* hidden_norm = nullptr;  // [hidden], of the feature, there only
  const float* post_norm = nullptr;    // [hidden]
  const float* q_norm = nullptr;       // [head_dim]; null: none
  const float* k_norm = nullptr;       // [head_dim]; null: none
  PackedMatrix qkv;                    // [q + k + v rows, hidden or 2 * hidden]
  PackedMatrix keys;                   // the rows of k and v of qkv
  PackedMatrix out;                    // [hidden, q width]
  PackedMatrix gate_up;                // [2 * intermediate, hidden]: gate rows, then up rows
  PackedMatrix down;                   // [hidden, intermediate]
  const float* qkv_bias = nullptr;     // [qkv rows]; zeros where the head has none
  const float* out_bias = nullptr;     // [hidden]; likewise
};

/// Pointers are into memory of the device, which `storage` or the target owns.
struct DraftWeights {
  std::vector<DraftLayer> layers;
  RowTable embedding;    // the target's where the head has none
  PackedMatrix fc;       // [hidden, k * hidden]; no rows: the head has none
  PackedMatrix context;  // kDflash: the rows of k and v of all layers
  const float* context_bias = nullptr;
  PackedMatrix head;                    // [draft vocab, hidden]; the target's likewise
  const float* input_norm = nullptr;    // [k * hidden]
  std::vector<const float*> fc_norms;   // k of [hidden]
  const float* final_norm = nullptr;    // [hidden], before the logits
  const float* feature_norm = nullptr;  // DFlash: hidden_norm; takes_final_norm: the target's
  const float* mask_hidden = nullptr;   // kPeagle: [k * hidden]
  const float* mask_row = nullptr;      // kDflash: [hidden], the embedding of mask_id; null: none
  const int32_t* target_ids = nullptr;  // [draft vocab]; null: the ids are the target's
  const float* zeros = nullptr;         // as wide as any bias
  std::vector<Buffer> storage;
  uint64_t bytes = 0;
};

/// Whether the head has no output matrix of its own, and multiplies by the target's.
bool takes_target_unembed(const DraftCheckpoint& checkpoint);

/// `format`: of the matrices, kMXFP4 or kBF16; one whose columns MXFP4's blocks do not divide is
/// BF16. `target`: with all rows of what the head takes of it. Fails, naming it, if a tensor is
/// missing or holds what it must not.
Result<DraftWeights> load_draft_weights(const DraftCheckpoint& checkpoint,
                                        const ModelWeights& target, DType format, Device& device,
                                        Stream& stream);

/// The bytes that load_draft_weights() will hold.
uint64_t draft_weights_bytes(const DraftCheckpoint& checkpoint, DType format);

}  // namespace moxie
