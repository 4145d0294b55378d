// For tests and fuzzers of harmony: a tokenizer of single bytes, and a run of the parser that
// checks what must hold on any input.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/bpe.h"
#include "text/harmony_parser.h"

namespace moxie::testing {

/// Ids 0..255 are the bytes, then the nine special tokens of harmony's format in kControlNames'
/// order; no merges.
const Tokenizer& byte_tokenizer();
inline constexpr int32_t kFirstControlId = 256;
inline constexpr const char* kControlNames[] = {"<|start|>",   "<|end|>",       "<|message|>",
                                                "<|channel|>", "<|constrain|>", "<|return|>",
                                                "<|call|>",    "<|endoftext|>", "<|reserved_1|>"};
inline constexpr int32_t kNumControlIds = 9;

/// Feeds `ids` to a parser and CHECKs: the events open, fill and close the messages in order;
/// deltas and tail make up each content; the raw texts make up the bytes of all ids; all text is
/// UTF-8; every repaired message has a warning.
harmony::Parser parse_checked(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                              const harmony::ParserOptions& options);

}  // namespace moxie::testing
