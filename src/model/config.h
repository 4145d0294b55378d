// The configuration of a gpt-oss model, from config.json (either form of the rope fields), from
// original/config.json, or from GGUF keys; and values derived from it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base.h"
#include "core/rank_link.h"

namespace moxie {

/// What an expert computes from its gate g and up u.
enum class Activation : uint8_t {
  kClampedSwiglu,  ///< g' sigmoid(swiglu_alpha g') (u' + 1), g' and u' clamped at swiglu_limit
  kSwiglu          ///< g sigmoid(g) u: plain Llama layers; no row computes it yet
};

/// How many ranks hold a model together, and whether they divide its experts or each expert's
/// columns.
struct Ranks {
  int32_t size = 1;
  bool splits_experts = false;
  LinkKind link = LinkKind::kThreads;
  bool first_holds_unembed = false;  ///< the first rank has all rows of it: for a draft head
  bool has_taps = false;             ///< the first rank reads x between layers
};

/// What one rank of several holds of a model; model/shard.h divides it. The configuration of a rank
/// has the rank's numbers of heads and its columns of each expert, and here where they begin.
struct Share {
  int32_t rank = 0, num_ranks = 1;
  LinkKind link = LinkKind::kNone;
  int32_t first_head = 0, first_kv_head = 0;
  int32_t first_column = 0;               ///< of each expert's intermediate values
  int32_t column_unit = 0;                ///< in which these are divided
  int32_t first_expert = 0, experts = 0;  ///< 0 experts: all
  int32_t first_logit = 0, logits = 0;    ///< rows of the head that it computes; 0: all
  bool holds_unembed = false;             ///< all rows of the head, of which its own are the first
  bool has_taps = false;                  ///< a rank reads x between layers: it is whole there
  /// Experts are divided, and not the columns of each.
  bool splits_experts() const { return experts > 0; }
};

struct GptOssConfig {
  int32_t num_layers = 0;
  int32_t hidden = 0;
  int32_t intermediate = 0;  ///< of one expert
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 64;
  int32_t num_experts = 0;
  int32_t top_k = 4;
  int32_t vocab = 0;
  int32_t sliding_window = 128;    ///< keys seen on window layers, self included
  std::vector<uint8_t> is_window;  ///< [num_layers] 1: sliding, 0: full; default: even layers slide
  int32_t max_positions = 131072;
  float rms_eps = 1e-5f;
  Activation activation = Activation::kClampedSwiglu;
  float swiglu_alpha = 1.702f;  ///< kClampedSwiglu only, as is the limit
  float swiglu_limit = 7.0f;
  // Weights that a model may lack (model/weight_table.h). True: its files must hold them; false:
  // its files must not.
  bool attention_bias = true;  ///< of q, k, v and out
  bool attention_sinks = true;
  bool mlp_bias = true;    ///< of the experts' gate, up and down
  bool mlp_router = true;  ///< false: one expert, which every token takes
  bool mlp_router_bias = true;
  double rope_theta = 150000.0;
  double rope_factor = 32.0;
  double rope_beta_fast = 32.0;
  double rope_beta_slow = 1.0;
  int32_t rope_original_context = 4096;
  bool rope_truncate = false;
  int32_t eos_id = -1;  ///< as stated; generation also stops at harmony's stop tokens
  int32_t pad_id = -1;
  Share share;  ///< of a rank; a whole model: all

  int32_t q_width() const { return num_heads * head_dim; }
  int32_t kv_width() const { return num_kv_heads * head_dim; }
  int32_t qkv_width() const { return q_width() + 2 * kv_width(); }
  int32_t experts_held() const { return share.experts > 0 ? share.experts : num_experts; }
  int32_t logits_held() const { return share.logits > 0 ? share.logits : vocab; }
  int32_t unembed_rows() const { return share.holds_unembed ? vocab : logits_held(); }
  int32_t num_window_layers() const;
  int32_t num_full_layers() const { return num_layers - num_window_layers(); }

  /// All impossible or absurd values (zero, negative, not dividing, over the limits of sane
  /// models), one line each; empty if sound. Limits guard allocation against hostile files.
  std::vector<std::string> faults() const;
};

/// The switches of GptOssConfig by the names of their fields in both kinds of JSON and, behind the
/// architecture, in GGUF.
struct ConfigSwitch {
  const char* name;
  bool GptOssConfig::*member;
};
inline constexpr ConfigSwitch kConfigSwitches[] = {
    {"attention_bias", &GptOssConfig::attention_bias},
    {"attention_sinks", &GptOssConfig::attention_sinks},
    {"mlp_bias", &GptOssConfig::mlp_bias},
    {"mlp_router", &GptOssConfig::mlp_router},
    {"mlp_router_bias", &GptOssConfig::mlp_router_bias},
};

/// The field that names the activation, and its values. parse_activation(): false if `text` is
/// neither value.
inline constexpr const char* kActivationField = "mlp_activation";
inline constexpr const char* kActivationChoices = "\"clamped_swiglu\" or \"swiglu\"";
bool parse_activation(const std::string& text, Activation* out);

/// Parses the text of config.json or original/config.json. `where` names the file in errors.
Result<GptOssConfig> parse_config_json(const std::string& text, const std::string& where);

/// The text of a Hugging Face config.json of this model.
std::string config_json(const GptOssConfig& config);

/// YaRN by parts, in double: inverse frequencies [head_dim / 2] and the concentration that
/// multiplies cos and sin. Heads with other rotations have frequencies of their own in it. Source:
/// gpt-oss reference; correction dimensions are floored and ceiled only when rope_truncate is set.
struct YarnFrequencies {
  std::vector<double> inverse;
  double concentration = 1;
};
YarnFrequencies yarn_frequencies(const GptOssConfig& config);

/// Fills [num_positions, head_dim] from `first`: cos then sin of position * inverse, times the
/// concentration, computed in double.
void fill_rotary_table(const YarnFrequencies& frequencies, int32_t first, int32_t num_positions,
                       float* table);
/// The same with yarn_frequencies(config).
void fill_rotary_table(const GptOssConfig& config, int32_t first, int32_t num_positions,
                       float* table);

}  // namespace moxie
