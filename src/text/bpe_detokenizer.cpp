// The held bytes never exceed a truncated character: each push gives out all before it.
#include "text/bpe_detokenizer.h"

#include "text/utf8.h"

namespace moxie {

std::string IncrementalDetokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  held_ += tokenizer_->token_bytes(id);
  const size_t tail_bytes = incomplete_utf8_tail_bytes(held_);
  const size_t ready_bytes = held_.size() - tail_bytes;
  std::string text = repaired_utf8(std::string_view(held_).substr(0, ready_bytes));
  held_.erase(0, ready_bytes);
  return text;
}

std::string IncrementalDetokenizer::flush() {
  std::string text = repaired_utf8(held_);
  held_.clear();
  return text;
}

}  // namespace moxie
