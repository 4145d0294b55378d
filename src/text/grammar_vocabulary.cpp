#include "text/grammar_vocabulary.h"

#include <algorithm>
#include <memory>

#include "text/grammar_counted.h"

namespace moxie::grammar {

Result<std::shared_ptr<const Vocabulary>> Vocabulary::create(const Tokenizer& tokenizer,
                                                             int32_t vocab_size) {
  auto control = harmony::ControlTokens::find(tokenizer);
  if (!control) return fail(control.error());
  if (vocab_size < tokenizer.vocab_size()) {
    return fail("a vocabulary of " + std::to_string(vocab_size) + " ids for a tokenizer of " +
                    std::to_string(tokenizer.vocab_size()),
                "structured output");
  }
  auto vocabulary = std::make_shared<Vocabulary>();
  vocabulary->size_ = vocab_size;
  vocabulary->control_ = *control;
  vocabulary->text_.resize(static_cast<size_t>(tokenizer.vocab_size()));
  vocabulary->text_mask_.resize(static_cast<size_t>(ceil_div(vocab_size, 32)));
  vocabulary->unmarked_mask_.resize(vocabulary->text_mask_.size());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_special(id)) continue;
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.empty()) continue;
    vocabulary->text_[static_cast<size_t>(id)] = bytes;
    vocabulary->sorted_.push_back(id);
    set_bit(vocabulary->text_mask_, id);
    if (!has_mark_byte(bytes)) set_bit(vocabulary->unmarked_mask_, id);
  }
  std::sort(vocabulary->sorted_.begin(), vocabulary->sorted_.end(),
            [&](int32_t a, int32_t b) { return vocabulary->text_of(a) < vocabulary->text_of(b); });
  return vocabulary;
}

}  // namespace moxie::grammar
