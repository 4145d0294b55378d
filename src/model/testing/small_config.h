// A model of two layers with sizes that fill neither tiles nor units.
#pragma once

#include "model/config.h"

namespace moxie {

inline GptOssConfig small_config() {
  GptOssConfig config{.num_layers = 2,
                      .hidden = 160,
                      .intermediate = 96,
                      .num_heads = 4,
                      .num_kv_heads = 2,
                      .num_experts = 5,
                      .top_k = 2,
                      .vocab = 500};
  config.is_window = {1, 0};
  return config;
}

}  // namespace moxie
