#include "text/grammar_testing.h"

#include <algorithm>

#include "core/testing/paths.h"
#include "text/harmony_testing.h"

namespace moxie::testing {
namespace {

uint64_t next_random(uint64_t& state) {  // splitmix64
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

bool ends_things(std::string_view text) {
  return text.empty() || text.find_first_not_of("\"}]") == std::string_view::npos;
}

std::unique_ptr<grammar::Compiler> make_compiler(const Tokenizer& tokenizer) {
  auto compiler = grammar::Compiler::create(tokenizer, tokenizer.vocab_size());
  CHECK(compiler.has_value(), compiler.error().message());
  return std::move(*compiler);
}

std::vector<uint32_t> empty_mask(const grammar::Vocabulary& vocabulary) {
  return std::vector<uint32_t>(vocabulary.text_mask().size(), 0xFFFFFFFF);
}

}  // namespace

const Tokenizer& tiny_tokenizer() {
  static const auto kTokenizer = [] {
    auto loaded = Tokenizer::load(source_dir() + "/models/tiny/tokenizer.json");
    CHECK(loaded.has_value(), loaded.error().message());
    return std::move(*loaded);
  }();
  return kTokenizer;
}

grammar::Compiler& tiny_compiler() {
  static const auto kCompiler = make_compiler(tiny_tokenizer());
  return *kCompiler;
}

grammar::Compiler& byte_compiler() {
  static const auto kCompiler = make_compiler(byte_tokenizer());
  return *kCompiler;
}

int32_t random_token(const grammar::Vocabulary& vocabulary, const std::vector<uint32_t>& mask,
                     uint64_t& state) {
  std::vector<int32_t> ids, enders;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const auto id = static_cast<int32_t>(word * 32) + __builtin_ctz(bits);
      ids.push_back(id);
      if (ends_things(vocabulary.text_of(id))) enders.push_back(id);
    }
  }
  if (ids.empty()) return -1;
  const std::vector<int32_t>& from = !enders.empty() && next_random(state) % 3 == 0 ? enders : ids;
  return from[next_random(state) % from.size()];
}

Walk random_text(const grammar::Vocabulary& vocabulary, const grammar::GrammarPtr& grammar,
                 uint64_t seed, int max_tokens) {
  Walk walk;
  grammar::Matcher matcher(grammar);
  std::vector<uint32_t> mask = empty_mask(vocabulary);
  while (static_cast<int>(walk.ids.size()) < max_tokens) {
    matcher.fill_mask(mask);
    const int32_t id = random_token(vocabulary, mask, seed);
    if (matcher.is_complete() && (id < 0 || next_random(seed) % 2 == 0)) {
      walk.ended = true;
      return walk;
    }
    if (id < 0) {
      walk.fault = "a dead end";
      return walk;
    }
    walk.ids.push_back(id);
    walk.text += vocabulary.text_of(id);
    if (!matcher.accept(id)) {
      walk.fault = "a token of the mask was refused: " + std::to_string(id);
      return walk;
    }
  }
  return walk;
}

Walk random_answer(const Tokenizer& tokenizer, const grammar::Vocabulary& vocabulary,
                   grammar::AnswerConstraint& answer, uint64_t seed, int max_tokens) {
  Walk walk;
  std::vector<uint32_t> mask = empty_mask(vocabulary);
  while (static_cast<int>(walk.ids.size()) < max_tokens && !answer.is_done()) {
    answer.fill_mask(mask);
    const int32_t id = random_token(vocabulary, mask, seed);
    if (id < 0) {
      walk.fault = "a dead end";
      return walk;
    }
    walk.ids.push_back(id);
    walk.text += tokenizer.token_bytes(id);
    if (const Status status = answer.accept(id); !status) {
      walk.fault = status.error().message();
      return walk;
    }
  }
  walk.ended = answer.is_done();
  return walk;
}

bool accepts(const Tokenizer& tokenizer, const grammar::GrammarPtr& grammar,
             std::string_view text) {
  grammar::Matcher matcher(grammar);
  for (const int32_t id : tokenizer.encode(text)) {
    if (!matcher.accept(id)) return false;
  }
  return matcher.is_complete();
}

}  // namespace moxie::testing
