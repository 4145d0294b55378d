// The model that is linked into the binary, so that one file answers anywhere.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace moxie {

struct EmbeddedModel {
  std::span<const std::byte> weights;  ///< a whole safetensors file, 64-byte aligned
  std::string_view config_json, tokenizer_json;
};
/// A draft head for it.
struct EmbeddedHead {
  std::span<const std::byte> weights;  ///< a whole safetensors file, 64-byte aligned
  std::string_view config_json;
};

/// models/tiny as it was when the binary was built; empty if it did not exist then.
const EmbeddedModel& embedded_model();
/// models/tiny/eagle3 and models/tiny/dflash; likewise.
const EmbeddedHead& embedded_eagle3();
const EmbeddedHead& embedded_dflash();

}  // namespace moxie
