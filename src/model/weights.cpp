// The one list of weights, and the switches that name dense layers.
#include "model/weights.h"

namespace moxie {

void for_each_weight(const GptOssConfig& config,
                     const std::function<void(const WeightSpec&)>& visit) {
  const int64_t hidden = config.hidden, inter = config.intermediate, vocab = config.vocab;
  const int64_t experts = config.num_experts, heads = config.num_heads;
  const int64_t q = config.q_width(), kv = config.kv_width();
  visit({"model.embed_tokens.weight", {vocab, hidden}});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    const auto matrix = [&](const char* name, Shape shape) { visit({at + name, shape}); };
    const auto vector = [&](const char* name, Shape shape) {
      visit({.name = at + name, .shape = shape, .is_vector = true});
    };
    const auto expert_matrix = [&](const char* name, Shape shape) {
      visit({.name = at + name, .shape = shape, .is_expert_matrix = true});
    };
    vector("input_layernorm.weight", {hidden});
    matrix("self_attn.q_proj.weight", {q, hidden});
    vector("self_attn.q_proj.bias", {q});
    matrix("self_attn.k_proj.weight", {kv, hidden});
    vector("self_attn.k_proj.bias", {kv});
    matrix("self_attn.v_proj.weight", {kv, hidden});
    vector("self_attn.v_proj.bias", {kv});
    vector("self_attn.sinks", {heads});
    matrix("self_attn.o_proj.weight", {hidden, q});
    vector("self_attn.o_proj.bias", {hidden});
    vector("post_attention_layernorm.weight", {hidden});
    matrix("mlp.router.weight", {experts, hidden});
    vector("mlp.router.bias", {experts});
    expert_matrix("mlp.experts.gate_up_proj", {experts, 2 * inter, hidden});
    vector("mlp.experts.gate_up_proj_bias", {experts, 2 * inter});
    expert_matrix("mlp.experts.down_proj", {experts, hidden, inter});
    vector("mlp.experts.down_proj_bias", {experts, hidden});
  }
  visit({.name = "model.norm.weight", .shape = {hidden}, .is_vector = true});
  visit({"lm_head.weight", {vocab, hidden}});
}

Result<DenseLayers> DenseLayers::parse(const std::string& text, const std::string& flag) {
  const bool takes_moe = flag == "--mxfp4-layers";
  DenseLayers layers;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (word == "qkv")
      layers.qkv = true;
    else if (word == "o")
      layers.o = true;
    else if (word == "lm_head")
      layers.lm_head = true;
    else if (word == "all")
      layers = {true, true, true};
    else if (!(takes_moe && word == "moe") && !text.empty())
      return fail("found \"" + word + "\"", flag,
                  takes_moe ? "a list of moe, qkv, o, lm_head, or all"
                            : "a list of qkv, o, lm_head, or all");
  }
  return layers;
}

}  // namespace moxie
