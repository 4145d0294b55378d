// The configuration of a draft head, from each form in which heads are published.
//
// Boundary k is the residual stream after k layers of the target: 0 is the embedding, the number of
// layers is x before the final norm. A head's features are the target's x at its boundaries.
// Sources of the forms: vLLM and the speculators package ("speculators"), NVIDIA's Model-Optimizer
// ("ModelOpt"), SpecForge, Amazon's P-EAGLE heads, z-lab's DFlash, llama.cpp (GGUF).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base.h"
#include "model/config.h"

namespace moxie {

enum class DraftKind : uint8_t {
  kEagle3,  ///< one layer over (token, feature) pairs, token by token
  kPeagle,  ///< the same and plain layers; all tokens in one pass, the later ones from a mask
  kDflash   ///< layers over a block of masks, which see the features of all tokens before
};

struct DraftConfig {
  DraftKind kind = DraftKind::kEagle3;
  std::string form;  ///< "speculators", "ModelOpt", "SpecForge", "P-EAGLE", "z-lab", "GGUF"
  std::vector<int32_t> boundaries;  ///< ascending
  bool takes_final_norm = false;    ///< no fc: the feature is the target's x behind its final norm
  int32_t hidden = 0, intermediate = 0, num_layers = 0;
  int32_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int32_t vocab = 0;              ///< of the target
  int32_t draft_vocab = 0;        ///< rows of the head's own lm_head
  int32_t num_target_layers = 0;  ///< 0: not stated
  float rms_eps = 1e-6f;
  bool norm_before_residual = false, norm_before_fc = false, fc_norm = false, norm_output = false;
  std::vector<int32_t> windows;  ///< [num_layers] keys seen, self included; 0: all
  int32_t block = 0;             ///< kDflash: rows of a block, the anchor included
  int32_t mask_id = -1;          ///< kDflash, kPeagle: the token of rows that are not known yet
  int32_t num_drafts = 3;        ///< drafted tokens where nothing else is asked for
  YarnFrequencies rotary;

  int32_t q_width() const { return num_heads * head_dim; }
  int32_t kv_width() const { return num_kv_heads * head_dim; }
  int32_t qkv_width() const { return q_width() + 2 * kv_width(); }
};

/// `has_tensor` says which tensors the head's files hold. `target` gives what the head's
/// configuration leaves to it. `layer_id_offset` is added to the layer ids of the configuration;
/// -1: what the form means. Fails with the reason if the configuration is of no known kind, of one
/// that is refused, or does not fit the target.
using HasTensor = std::function<bool(const std::string& name)>;
Result<DraftConfig> parse_draft_config(const std::string& text, const std::string& where,
                                       const GptOssConfig& target, int32_t layer_id_offset,
                                       const HasTensor& has_tensor);

/// "boundaries 2, 12, 21 of the target", as a start-up line says it.
std::string describe_boundaries(const DraftConfig& config);

}  // namespace moxie
