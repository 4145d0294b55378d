// Compiles a request's source: translation, checks of a user's EBNF, and the cache.
#include <algorithm>
#include <cctype>
#include <list>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "text/grammar_engine.h"
#include "text/grammar_rules.h"
#include "text/grammar_schema.h"
#include "text/utf8.h"

namespace moxie::grammar {
namespace {

constexpr size_t kMaxEbnfBytes = 64 * 1024;
constexpr int kMaxEbnfDepth = 64;
constexpr int64_t kMaxEbnfRepeats = 2'000;
constexpr int64_t kMaxEbnfCost = 1'000;  // each unit takes some 6 ms of compiling
constexpr size_t kMaxChoices = 2'000;
constexpr size_t kMaxChoiceBytes = 128 * 1024;  // each takes some 35 microseconds of compiling

Result<Translation> translate_choices(const std::vector<std::string>& choices,
                                      const std::string& where) {
  if (choices.empty()) return fail("an empty list of choices", where);
  if (choices.size() > kMaxChoices) {
    return fail("more than " + std::to_string(kMaxChoices) + " choices", where);
  }
  Rules rules;
  std::vector<ExprId> ways;
  size_t num_bytes = 0;
  for (const std::string& choice : choices) {
    if (choice.empty()) return fail("an empty text among the choices", where);
    if (!is_valid_utf8(choice)) return fail("a choice that is no valid UTF-8", where);
    num_bytes += choice.size();
    ways.push_back(rules.text(choice));
  }
  if (num_bytes > kMaxChoiceBytes) {
    return fail("choices of more than " + std::to_string(kMaxChoiceBytes) + " bytes in all", where);
  }
  const RuleId root = rules.add_rule();
  rules.define(root, rules.choice(std::move(ways)));
  return Translation{rules.ebnf(root), {}};
}

bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
}

/// A lexer of EBNF, as far as the checks need one.
class EbnfChecker {
 public:
  EbnfChecker(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Status run() {
    while (pos_ < text_.size()) {
      const char c = text_[pos_];
      Status status;
      if (c == '#') {
        while (pos_ < text_.size() && text_[pos_] != '\n') ++pos_;
      } else if (c == '"' || c == '[') {
        last_was_class_ = c == '[';
        const bool is_broad = last_was_class_ && text_.substr(pos_, 2) == "[^";
        last_cost_ = !last_was_class_ ? 0 : is_broad ? 10 : 1;
        status = skip_to(last_was_class_ ? ']' : '"');
        if (status && !spend(last_cost_)) status = too_costly();
        if (!status) return status;
        continue;
      } else if (is_name_char(c)) {
        status = word();
        last_was_class_ = false;
        if (!status) return status;
        continue;
      } else if (c == '(') {
        if (++depth_ > kMaxEbnfDepth) return error("parentheses nested too deep");
      } else if (c == ')') {
        --depth_;
        last_cost_ = 10;  // of a group, whatever is inside
      } else if (c == '{') {
        in_count_ = true;
      } else if (c == '}') {
        in_count_ = false;
      } else if (c == ':' && last_was_class_) {
        return error("attributes of rules are not supported");
      }
      if (!std::isspace(static_cast<unsigned char>(c))) last_was_class_ = false;
      ++pos_;
    }
    return {};
  }

 private:
  tl::unexpected<Error> error(const std::string& what) const {
    return fail(what + ", at byte " + std::to_string(pos_) + " of the grammar", where_);
  }

  bool spend(int64_t cost) {
    cost_ += cost;
    return cost_ <= kMaxEbnfCost;
  }
  tl::unexpected<Error> too_costly() const {
    return error("more classes and counts than can be compiled in a few seconds");
  }

  Status skip_to(char end) {
    for (++pos_; pos_ < text_.size() && text_[pos_] != end; ++pos_) {
      if (text_[pos_] == '\n') break;
      if (text_[pos_] == '\\') ++pos_;
    }
    if (pos_ >= text_.size() || text_[pos_] != end) {
      return error(std::string("no closing ") + end);
    }
    ++pos_;
    return {};
  }

  Status word() {
    static const std::set<std::string_view> kBeyondText = {
        "TagDispatch", "Token", "ExcludeToken", "TokenTagDispatch", "Regex", "Substring"};
    const size_t begin = pos_;
    while (pos_ < text_.size() && is_name_char(text_[pos_])) ++pos_;
    const std::string_view name = text_.substr(begin, pos_ - begin);
    if (kBeyondText.count(name) > 0) {
      return error("\"" + std::string(name) + "\" is not supported");
    }
    if (in_count_) {
      int64_t value = 0;
      for (const char c : name) {
        if (c >= '0' && c <= '9') value = std::min(kMaxEbnfRepeats + 1, value * 10 + (c - '0'));
      }
      if (value > kMaxEbnfRepeats) {
        return error("a count above " + std::to_string(kMaxEbnfRepeats));
      }
      // Counts are written out up to 128 copies.
      if (!spend(std::min<int64_t>(value, 128) * std::max<int64_t>(1, last_cost_))) {
        return too_costly();
      }
    } else {
      last_cost_ = 1;
    }
    return {};
  }

  std::string_view text_;
  const std::string& where_;
  size_t pos_ = 0;
  int depth_ = 0;
  int64_t cost_ = 0, last_cost_ = 0;  // last_cost_: of the item that a count would repeat
  bool in_count_ = false, last_was_class_ = false;
};

Result<Translation> translate(const Source& source, const std::string& where) {
  switch (source.kind) {
    case Source::Kind::kJsonSchema:
      return translate_schema(source.text, where, source.compact);
    case Source::Kind::kJsonObject:
      return any_json_object(source.compact);
    case Source::Kind::kRegex:
      return translate_regex(source.text, where);
    case Source::Kind::kChoice:
      return translate_choices(source.choices, where);
    case Source::Kind::kEbnf: {
      const Status status = check_ebnf(source.text, where);
      if (!status) return fail(status.error());
      return Translation{source.text, {}};
    }
  }
  return fail("no such kind of grammar", where);
}

std::string key_of(const Source& source) {
  std::string key(1,
                  static_cast<char>((source.compact ? 'A' : 'a') + static_cast<int>(source.kind)));
  key += source.text;
  for (const std::string& choice : source.choices) {
    key += std::to_string(choice.size()) + ':' + choice;
  }
  return key;
}

}  // namespace

Status check_ebnf(std::string_view ebnf, const std::string& where) {
  if (ebnf.size() > kMaxEbnfBytes) {
    return fail("a grammar of " + std::to_string(ebnf.size()) + " bytes", where,
                "at most " + std::to_string(kMaxEbnfBytes) + " are supported");
  }
  if (ebnf.find('\0') != std::string_view::npos || !is_valid_utf8(ebnf)) {
    return fail("the grammar is no text in UTF-8", where);
  }
  return EbnfChecker(ebnf, where).run();
}

struct Compiler::Impl {
  struct Entry {
    std::string key;
    GrammarPtr grammar;
    size_t num_bytes;
  };
  std::shared_ptr<const Vocabulary> vocabulary;
  std::unique_ptr<GrammarEngine> engine;
  CompilerLimits limits;

  mutable std::mutex mutex;                                                // guards what follows
  std::list<Entry> entries;                                                // last used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> index;  // keys lie in entries
  CacheStats stats;

  GrammarPtr find(const std::string& key) {
    const std::lock_guard lock(mutex);
    const auto it = index.find(key);
    if (it == index.end()) {
      ++stats.num_misses;
      return nullptr;
    }
    ++stats.num_hits;
    entries.splice(entries.begin(), entries, it->second);
    return it->second->grammar;
  }

  void keep(std::string key, GrammarPtr grammar) {
    const size_t num_bytes = key.size() + memory_bytes(*grammar);
    const std::lock_guard lock(mutex);
    if (num_bytes > limits.max_cached_bytes || index.count(key) > 0) return;
    entries.push_front({std::move(key), std::move(grammar), num_bytes});
    index.emplace(entries.front().key, entries.begin());
    stats.num_bytes += num_bytes;
    while (entries.size() > limits.max_cached || stats.num_bytes > limits.max_cached_bytes) {
      index.erase(entries.back().key);
      stats.num_bytes -= entries.back().num_bytes;
      entries.pop_back();
    }
    stats.num_grammars = entries.size();
  }
};

Compiler::Compiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Compiler::~Compiler() = default;

Result<std::unique_ptr<Compiler>> Compiler::create(const Tokenizer& tokenizer, int32_t vocab_size,
                                                   const CompilerLimits& limits) {
  auto vocabulary = Vocabulary::create(tokenizer, vocab_size);
  if (!vocabulary) return fail(vocabulary.error());
  auto engine = GrammarEngine::create(*vocabulary, limits.num_threads);
  if (!engine) return fail(engine.error());
  auto impl = std::make_unique<Impl>();
  impl->vocabulary = std::move(*vocabulary);
  impl->engine = std::move(*engine);
  impl->limits = limits;
  return std::unique_ptr<Compiler>(new Compiler(std::move(impl)));
}

Result<GrammarPtr> Compiler::compile(const Source& source, const std::string& where) {
  std::string key = key_of(source);
  if (GrammarPtr known = impl_->find(key)) return known;
  const auto translation = translate(source, where);
  if (!translation) return fail(translation.error());
  auto grammar = impl_->engine->compile(*translation, where);
  if (!grammar) return fail(grammar.error());
  impl_->keep(std::move(key), *grammar);
  return *grammar;
}

const std::shared_ptr<const Vocabulary>& Compiler::vocabulary() const { return impl_->vocabulary; }

Compiler::CacheStats Compiler::cache_stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace moxie::grammar
