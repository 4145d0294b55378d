#include "lab/serve_bench_prompts.h"

#include <fmt/format.h>

#include <span>

namespace moxie {
namespace {

// The most common words of English, of which every tokenizer of a language model has some whole.
constexpr const char* kCandidates[] = {
    "the",  "of",   "and",  "to",   "in",    "is",   "you",  "that",  "it",    "he",   "was",
    "for",  "on",   "are",  "as",   "with",  "they", "be",   "at",    "one",   "have", "this",
    "from", "or",   "had",  "by",   "word",  "but",  "not",  "what",  "all",   "were", "we",
    "when", "your", "can",  "said", "there", "use",  "each", "which", "she",   "do",   "how",
    "if",   "will", "up",   "out",  "many",  "then", "them", "these", "so",    "some", "her",
    "make", "like", "him",  "into", "time",  "has",  "look", "two",   "more",  "go",   "see",
    "no",   "way",  "my",   "than", "first", "been", "call", "who",   "its",   "now",  "find",
    "long", "down", "day",  "did",  "get",   "come", "made", "may",   "part",  "over", "new",
    "take", "only", "work", "know", "place", "year", "live", "me",    "back",  "give", "most",
    "very", "name", "good", "man",  "say",   "same", "set",  "three", "small", "end",  "does"};
// The first word stands without a blank before it: it may be several tokens, always the same.
constexpr const char* kFirst = "So";
constexpr size_t kLeastWords = 16;

std::string joined(std::span<const std::string> words) {
  std::string text = kFirst;
  for (const std::string& word : words) text += " " + word;
  return text;
}

// Keeps the words that are one token each: a group whose count is its number of words is all such.
class WordFinder {
 public:
  WordFinder(const PromptMaker::CountTokens& count, int64_t num_tokens_of_none)
      : count_(count), none_(num_tokens_of_none) {}
  Status find(std::span<const std::string> group, std::vector<std::string>* found) {
    if (group.empty()) return {};
    auto tokens = count_({.user = joined(group)});
    if (!tokens) return fail(tokens.error());
    if (*tokens - none_ == static_cast<int64_t>(group.size())) {
      found->insert(found->end(), group.begin(), group.end());
      return {};
    }
    if (group.size() == 1) return {};
    const size_t half = group.size() / 2;
    if (auto status = find(group.first(half), found); !status) return status;
    return find(group.subspan(half), found);
  }

 private:
  const PromptMaker::CountTokens& count_;
  int64_t none_;
};

}  // namespace

Result<PromptMaker> PromptMaker::calibrate(const CountTokens& count, uint64_t seed) {
  PromptMaker maker;
  maker.random_.seed(seed);
  auto none = count({.user = kFirst});
  if (!none) return fail(none.error());
  WordFinder finder(count, *none);
  const std::vector<std::string> candidates(std::begin(kCandidates), std::end(kCandidates));
  // In groups, until there are enough to tell prompts apart.
  constexpr size_t kGroup = 16, kEnough = 64;
  for (size_t at = 0; at < candidates.size() && maker.words_.size() < kEnough; at += kGroup) {
    const size_t size = std::min(kGroup, candidates.size() - at);
    auto status = finder.find(std::span(candidates).subspan(at, size), &maker.words_);
    if (!status) return fail(status.error());
  }
  if (maker.words_.size() < kLeastWords) {
    return fail(fmt::format("only {} of {} common words are one token each for this endpoint",
                            maker.words_.size(), candidates.size()),
                "prompts",
                "its tokenizer, or its counts of tokens, are unlike any language model's");
  }
  maker.plain_overhead_ = *none;
  auto with_context = count({.context = kFirst, .user = kFirst});
  if (!with_context) return fail(with_context.error());
  maker.context_overhead_ = *with_context;
  // The same words again, in another order and more of them: is a word one token everywhere?
  constexpr int64_t kProbe = 200;
  auto probe = count({.user = maker.text_of(kProbe)});
  if (!probe) return fail(probe.error());
  if (*probe != maker.plain_overhead_ + kProbe) {
    return fail(fmt::format("a prompt of {} words has {} tokens where {} were expected", kProbe,
                            *probe, maker.plain_overhead_ + kProbe),
                "prompts", "the endpoint's counts of prompt tokens do not add up");
  }
  return maker;
}

std::string PromptMaker::text_of(int64_t num_words) {
  std::string text = kFirst;
  for (int64_t i = 0; i < num_words; ++i) text += " " + words_[random_() % words_.size()];
  return text;
}

Result<PromptText> PromptMaker::make(int64_t num_prompt, int64_t depth) {
  const int64_t overhead = depth > 0 ? context_overhead_ : plain_overhead_;
  const int64_t words = depth > 0 ? num_prompt - 1 : num_prompt - overhead;
  const int64_t context_words = depth > 0 ? depth + 1 - overhead : 0;
  if (words < 0 || context_words < 0) {
    return fail(fmt::format("{} tokens are too few: the endpoint's template and one word take {}",
                            depth > 0 ? depth : num_prompt, depth > 0 ? overhead - 1 : overhead),
                depth > 0 ? "-d" : "-p", "ask for more, or use --endpoint completions");
  }
  PromptText prompt{.user = text_of(words)};
  if (depth > 0) prompt.context = text_of(context_words);
  return prompt;
}

}  // namespace moxie
