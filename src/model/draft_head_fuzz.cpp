// Any bytes as a head in GGUF for a small target: no crash, and what is found is inside the file
// and of the shape that the configuration says.
#include <cstddef>
#include <cstdint>

#include "model/draft_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  GptOssConfig target;
  target.num_layers = 4;
  target.hidden = 32;
  target.vocab = 64;
  const auto head = DraftCheckpoint::open_gguf(MappedFile::borrow("fuzz", {bytes, size}), target);
  if (!head) {
    CHECK(!head.error().message().empty());
    return 0;
  }
  const DraftConfig& config = head->config();
  CHECK(config.hidden == 32 && config.vocab == 64 && !config.boundaries.empty());
  CHECK(config.rotary.inverse.size() == static_cast<size_t>(config.head_dim / 2));
  for (const int32_t boundary : config.boundaries) CHECK(boundary >= 0 && boundary <= 4);
  for (const char* name : {"fc.weight", "norm.weight", "layers.0.self_attn.q_proj.weight", "d2t"}) {
    const auto* found = head->find(name);
    if (found == nullptr) continue;
    CHECK(found->tensor->offset <= size && found->tensor->bytes <= size - found->tensor->offset);
  }
  return 0;
}
