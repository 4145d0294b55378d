// Tells the kinds of tokenizer files apart.
#include "engine/tokenizer_source.h"

#include <filesystem>

namespace moxie {
namespace {

Result<std::unique_ptr<const Tokenizer>> boxed(Result<Tokenizer> tokenizer) {
  if (!tokenizer) return fail(std::move(tokenizer.error()));
  return std::make_unique<const Tokenizer>(std::move(*tokenizer));
}

}  // namespace

Result<std::unique_ptr<const Tokenizer>> tokenizer_of(const Checkpoint& checkpoint) {
  auto source = checkpoint.tokenizer();
  if (!source) return fail(std::move(source.error()));
  if (!source->json.empty()) {
    return boxed(Tokenizer::from_tokenizer_json(source->json, source->path));
  }
  if (!source->gguf_tokens.empty()) {
    return boxed(Tokenizer::from_gguf_parts(source->gguf_tokens, source->gguf_types,
                                            source->gguf_merges, true, source->path));
  }
  return nullptr;
}

Result<std::unique_ptr<const Tokenizer>> tokenizer_from(const std::string& path_or_model) {
  const std::filesystem::path path(path_or_model);
  std::error_code error;
  if (path.extension() != ".gguf" && path.extension() != ".safetensors" &&
      std::filesystem::is_regular_file(path, error)) {
    return boxed(Tokenizer::load(path));
  }
  auto checkpoint = open_checkpoint(path_or_model);
  if (!checkpoint) return fail(std::move(checkpoint.error()));
  auto tokenizer = tokenizer_of(**checkpoint);
  if (tokenizer && *tokenizer == nullptr) {
    return fail("carries no tokenizer", path_or_model,
                "name a tokenizer.json or .tiktoken file with --tokenizer");
  }
  return tokenizer;
}

}  // namespace moxie
