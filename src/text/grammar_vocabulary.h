// A model's tokens for grammars: the text tokens, sorted by their bytes, and harmony's control
// tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "text/bpe.h"
#include "text/harmony.h"

namespace moxie::grammar {

class Vocabulary {
 public:
  static Result<std::shared_ptr<const Vocabulary>> create(const Tokenizer& tokenizer,
                                                          int32_t vocab_size);

  int32_t size() const { return size_; }
  const harmony::ControlTokens& control() const { return control_; }
  /// Empty for control tokens and ids without a token.
  std::string_view text_of(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < text_.size() ? text_[static_cast<size_t>(id)]
                                                             : std::string_view();
  }
  /// The text tokens by their bytes, in order.
  const std::vector<int32_t>& sorted() const { return sorted_; }
  /// A mask of all text tokens.
  const std::vector<uint32_t>& text_mask() const { return text_mask_; }
  /// A mask of the text tokens without a byte of the private characters that are grammars' marks.
  const std::vector<uint32_t>& unmarked_mask() const { return unmarked_mask_; }

 private:
  int32_t size_ = 0;
  harmony::ControlTokens control_;
  std::vector<std::string_view> text_;  // by id
  std::vector<int32_t> sorted_;
  std::vector<uint32_t> text_mask_, unmarked_mask_;
};

inline void set_bit(std::span<uint32_t> mask, int32_t id) {
  mask[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
}

}  // namespace moxie::grammar
