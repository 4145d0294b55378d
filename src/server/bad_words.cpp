// From words to tokens, from tokens to bits of the mask.
#include "server/bad_words.h"

#include <algorithm>

namespace moxie {

BannedWords banned_words(const Tokenizer& tokenizer, const std::vector<std::string>& words) {
  BannedWords list;
  for (const std::string& word : words) {
    for (const std::string& text : {word, " " + word}) list.push_back(tokenizer.encode(text));
  }
  return list;
}

BadWords::BadWords(std::shared_ptr<const BannedWords> words, const harmony::ControlTokens* control,
                   std::shared_ptr<TokenConstraint> inner)
    : words_(std::move(words)),
      control_(control),
      inner_(std::move(inner)),
      in_header_(control != nullptr) {
  for (const auto& word : *words_) longest_ = std::max(longest_, word.size());
}

bool BadWords::fill_mask(std::span<uint32_t> mask) {
  const bool bound = inner_ != nullptr && inner_->fill_mask(mask);
  if (in_header_) return bound;
  std::vector<int32_t> barred;
  for (const auto& word : *words_) {
    const auto before = static_cast<std::ptrdiff_t>(word.size()) - 1;
    if (std::cmp_less(written_.size(), before)) continue;
    if (std::equal(word.begin(), word.begin() + before, written_.end() - before)) {
      barred.push_back(word.back());
    }
  }
  if (barred.empty()) return bound;
  if (!bound) std::fill(mask.begin(), mask.end(), ~uint32_t{0});
  const auto bits_of = [&](int32_t id) -> uint32_t& { return mask[static_cast<size_t>(id) / 32]; };
  const auto bit_of = [](int32_t id) { return uint32_t{1} << (id % 32); };
  // Tokens that are not allowed anyway must not be restored below.
  std::erase_if(barred, [&](int32_t id) { return (bits_of(id) & bit_of(id)) == 0; });
  for (const int32_t id : barred) bits_of(id) &= ~bit_of(id);
  if (std::all_of(mask.begin(), mask.end(), [](uint32_t bits) { return bits == 0; })) {
    for (const int32_t id : barred) bits_of(id) |= bit_of(id);
  }
  return true;
}

std::unique_ptr<TokenConstraint> BadWords::fork() const {
  auto copy = std::make_unique<BadWords>(*this);
  if (inner_ != nullptr) copy->inner_ = inner_->fork();
  return copy;
}

Status BadWords::accept(int32_t token) {
  if (control_ != nullptr && (token == control_->start || token == control_->channel ||
                              token == control_->constrain || control_->is_stop(token))) {
    in_header_ = true;
  } else if (control_ != nullptr && token == control_->message) {
    in_header_ = false;
    written_.clear();
  } else if (!in_header_) {
    written_.push_back(token);
    if (written_.size() > longest_) written_.erase(written_.begin());
  }
  return inner_ == nullptr ? Status{} : inner_->accept(token);
}

}  // namespace moxie
