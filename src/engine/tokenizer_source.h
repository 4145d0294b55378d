// Where a model's tokenizer comes from: its checkpoint, or a file of its own.
#pragma once

#include <memory>
#include <string>

#include "model/checkpoint.h"
#include "text/bpe.h"

namespace moxie {

/// The checkpoint's tokenizer; null if it carries none.
Result<std::unique_ptr<const Tokenizer>> tokenizer_of(const Checkpoint& checkpoint);

/// A tokenizer.json, .tiktoken or .gguf file, or (anything else) the tokenizer of that model.
Result<std::unique_ptr<const Tokenizer>> tokenizer_from(const std::string& path_or_model);

}  // namespace moxie
