// Streaming decode: tokens in, text out as soon as it is whole characters. Tokens may end inside a
// character; its bytes are held until the rest comes. Broken bytes become U+FFFD, one for each
// maximal invalid subpart, so that all pieces joined equal repaired_utf8(decode(all ids)).
#pragma once

#include <cstdint>
#include <string>

#include "text/bpe.h"

namespace moxie {

class IncrementalDetokenizer {
 public:
  /// The tokenizer must outlive this. With `skip_special`, special tokens add no text.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  /// The text that `id` completes, always valid UTF-8, often empty. Ids without a token add none.
  std::string push(int32_t id);

  /// The end of the text: what is still held, as U+FFFD. Ready for a new text afterwards.
  std::string flush();

  /// Bytes held because they begin a character (0..3).
  size_t held_bytes() const { return held_.size(); }

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;
};

}  // namespace moxie
