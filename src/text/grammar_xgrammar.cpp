// The seam to xgrammar, the only source that includes it: vocabulary, compilation, matching. Its
// exceptions become errors here. Without the library see grammar_without_xgrammar.cpp.
#include <dlpack/dlpack.h>
#include <xgrammar/compiler.h>
#include <xgrammar/matcher.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "text/grammar_engine.h"
#include "text/utf8.h"

namespace moxie::grammar {

class CompiledGrammar {
 public:
  CompiledGrammar(xgrammar::CompiledGrammar compiled, std::shared_ptr<const Vocabulary> vocabulary)
      : compiled(std::move(compiled)), vocabulary(std::move(vocabulary)) {}
  xgrammar::CompiledGrammar compiled;
  std::shared_ptr<const Vocabulary> vocabulary;
  std::vector<CountedString> counted;
  std::vector<std::shared_ptr<const StringTable>> tables;  // by counted string
  std::vector<std::string> marks;                          // in UTF-8
};

bool is_available() { return true; }

const std::shared_ptr<const Vocabulary>& vocabulary_of(const CompiledGrammar& grammar) {
  return grammar.vocabulary;
}
size_t memory_bytes(const CompiledGrammar& grammar) { return grammar.compiled.MemorySizeBytes(); }

namespace {

/// xgrammar's messages begin with a time and one of its source files.
std::string message_of(const std::exception& error) {
  std::string text = error.what();
  if (const size_t colon = text.find(".cc:"); colon != std::string::npos) {
    const size_t end = text.find(": ", colon);
    if (end != std::string::npos) text.erase(0, end + 2);
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(0, 500);
}

std::vector<int32_t> stop_ids(const Vocabulary& vocabulary) {
  return {vocabulary.control().return_token};
}

class XgrammarEngine : public GrammarEngine {
 public:
  XgrammarEngine(std::shared_ptr<const Vocabulary> vocabulary, int num_threads)
      : vocabulary_(std::move(vocabulary)),
        compiler_(make_tokens(*vocabulary_), num_threads, /*cache_enabled=*/true, kCacheBytes) {}

  Result<GrammarPtr> compile(const Translation& translation, const std::string& where) override {
    try {
      auto compiled = std::make_shared<CompiledGrammar>(
          compiler_.CompileGrammar(translation.ebnf, "root"), vocabulary_);
      compiled->counted = translation.counted;
      for (size_t i = 0; i < translation.counted.size(); ++i) {
        compiled->tables.push_back(table_of(translation.counted[i].set));
        append_utf8(static_cast<char32_t>(kFirstMark + i), &compiled->marks.emplace_back());
      }
      return compiled;
    } catch (const std::exception& error) {
      return fail("the grammar cannot be compiled: " + message_of(error), where);
    }
  }

 private:
  // Rules that grammars share (strings, numbers); later grammars take them from here.
  static constexpr int64_t kCacheBytes = int64_t{128} << 20;

  static xgrammar::TokenizerInfo make_tokens(const Vocabulary& vocabulary) {
    // Control tokens have no text here, so that no grammar can match them.
    std::vector<std::string> texts;
    texts.reserve(static_cast<size_t>(vocabulary.size()));
    for (int32_t id = 0; id < vocabulary.size(); ++id) texts.emplace_back(vocabulary.text_of(id));
    return xgrammar::TokenizerInfo(texts, xgrammar::VocabType::RAW, vocabulary.size(),
                                   stop_ids(vocabulary));
  }

  std::shared_ptr<const StringTable> table_of(const CharSet& set) {
    const std::lock_guard lock(mutex_);
    for (const auto& [known, table] : tables_) {
      if (known == set) return table;
    }
    auto table = std::make_shared<const StringTable>(*vocabulary_, set);
    if (tables_.size() >= kMaxTables) tables_.erase(tables_.begin() + 1);  // the first: any text
    tables_.emplace_back(set, table);
    return table;
  }

  static constexpr size_t kMaxTables = 32;
  std::shared_ptr<const Vocabulary> vocabulary_;
  xgrammar::GrammarCompiler compiler_;
  std::mutex mutex_;  // guards the members below
  std::vector<std::pair<CharSet, std::shared_ptr<const StringTable>>> tables_;
};

}  // namespace

Result<std::unique_ptr<GrammarEngine>> GrammarEngine::create(
    std::shared_ptr<const Vocabulary> vocabulary, int num_threads) {
  try {
    return std::make_unique<XgrammarEngine>(std::move(vocabulary), num_threads);
  } catch (const std::exception& error) {
    return fail("xgrammar does not take this vocabulary: " + message_of(error),
                "structured output");
  }
}

struct Matcher::Impl {
  /// One reading of the text so far; several while an alternative between strings is open.
  struct Path {
    explicit Path(xgrammar::GrammarMatcher matcher) : matcher(std::move(matcher)) {}
    /// The copy gets a forked matcher: plain copies of xgrammar's matcher would share their state.
    Path fork() const {
      Path copy = *this;
      copy.matcher = matcher.Fork();
      return copy;
    }
    xgrammar::GrammarMatcher matcher;  // inside a counted string: behind its mark
    int counted = -1;                  // the string that the text is in; -1: the grammar follows it
    int64_t num_chars = 0;
    StringState state;
    std::optional<ExcludedTexts> excluded;  // set inside a counted string
    std::vector<bool> may_close;            // by closer of the table; filled when first asked
  };
  static constexpr size_t kMaxPaths = 32;

  explicit Impl(GrammarPtr grammar_in) : grammar(std::move(grammar_in)) {
    paths.emplace_back(xgrammar::GrammarMatcher(grammar->compiled));
  }
  Impl(const Impl& other) : grammar(other.grammar) {
    for (const Path& path : other.paths) paths.push_back(path.fork());
  }

  /// Behind a quote counted strings may begin: adds a path for each one.
  void add_marks(size_t path_idx, std::string_view text) {
    if (text.empty() || text.back() != '"') return;
    for (size_t i = 0; i < grammar->marks.size() && paths.size() < kMaxPaths; ++i) {
      if (!paths[path_idx].matcher.AcceptString(grammar->marks[i])) continue;
      Path inside(paths[path_idx].matcher.Fork());
      paths[path_idx].matcher.Rollback(1);
      inside.counted = static_cast<int>(i);
      inside.excluded.emplace(grammar->counted[i]);
      paths.push_back(std::move(inside));
    }
  }

  const CountedString& bounds(const Path& path) const {
    return grammar->counted[static_cast<size_t>(path.counted)];
  }
  /// Whether the string may end behind `text`, which brings it to `num_chars` characters.
  bool may_close_at(const Path& path, int64_t num_chars, std::string_view text) const {
    const CountedString& string = bounds(path);
    if (path.excluded->is_open()) {
      ExcludedTexts excluded = *path.excluded;
      StringState state = path.state;
      for (const char c : text) {
        if (state.step(static_cast<unsigned char>(c), string.set) == StringState::Step::kChar) {
          excluded.add(state.last_char(), string);
        }
      }
      if (excluded.is_excluded(string)) return false;
    }
    return num_chars >= string.min && (string.max == kUnbounded || num_chars <= string.max);
  }

  void fill_outside(Path& path, std::span<uint32_t> mask) {
    const Vocabulary& vocabulary = *grammar->vocabulary;
    scratch.resize(vocabulary.text_mask().size());
    auto shape = static_cast<int64_t>(scratch.size());
    DLTensor tensor = {.data = scratch.data(),
                       .device = {kDLCPU, 0},
                       .ndim = 1,
                       .dtype = {kDLInt, 32, 1},
                       .shape = &shape,
                       .strides = nullptr,
                       .byte_offset = 0};
    path.matcher.FillNextTokenBitmask(&tensor);
    // Text tokens only: harmony's state decides on control tokens, and models must not write marks.
    const auto& allowed =
        grammar->counted.empty() ? vocabulary.text_mask() : vocabulary.unmarked_mask();
    for (size_t i = 0; i < scratch.size(); ++i) mask[i] |= scratch[i] & allowed[i];
  }

  void fill_inside(Path& path, std::span<uint32_t> mask) {
    const CountedString& string = bounds(path);
    const int64_t room = string.max == kUnbounded ? INT64_MAX : string.max - path.num_chars;
    if (!path.state.between_chars()) {
      const StringTable table(*grammar->vocabulary, string.set, path.state);
      table.add_inside(room, mask);
      for (const StringTable::Closer& closer : table.closers()) {
        if (may_close_at(path, path.num_chars + closer.num_chars, closer.text) &&
            accepts(path, closer.rest)) {
          set_bit(mask, closer.id);
        }
      }
      return;
    }
    const StringTable& table = *grammar->tables[static_cast<size_t>(path.counted)];
    table.add_inside(room, mask);
    const std::vector<StringTable::Closer>& closers = table.closers();
    if (path.may_close.empty()) {
      path.may_close.resize(closers.size());
      for (size_t i = 0; i < closers.size(); ++i) {
        const bool known = i > 0 && closers[i].rest == closers[i - 1].rest;
        path.may_close[i] = known ? path.may_close[i - 1] : accepts(path, closers[i].rest);
      }
    }
    for (size_t i = 0; i < closers.size(); ++i) {
      if (path.may_close[i] &&
          may_close_at(path, path.num_chars + closers[i].num_chars, closers[i].text)) {
        set_bit(mask, closers[i].id);
      }
    }
  }

  static bool accepts(Path& path, std::string_view text) {
    if (!path.matcher.AcceptString(std::string(text))) return false;
    path.matcher.Rollback(1);
    return true;
  }

  /// Moves a path inside a counted string over a token.
  bool accept_inside(Path& path, std::string_view text) {
    const CountedString& string = bounds(path);
    for (size_t i = 0; i < text.size(); ++i) {
      switch (path.state.step(static_cast<unsigned char>(text[i]), string.set)) {
        case StringState::Step::kRefused:
          return false;
        case StringState::Step::kChar:
          ++path.num_chars;
          path.excluded->add(path.state.last_char(), string);
          break;
        case StringState::Step::kClosed:
          if (!may_close_at(path, path.num_chars, {})) return false;
          path.counted = -1;
          path.may_close.clear();
          return path.matcher.AcceptString(std::string(text.substr(i)));
        case StringState::Step::kInside:
          break;
      }
    }
    const int64_t begun = path.state.between_chars() ? 0 : 1;
    return string.max == kUnbounded || path.num_chars + begun <= string.max;
  }

  GrammarPtr grammar;
  std::vector<Path> paths;
  std::vector<uint32_t> scratch;
};

Matcher::Matcher(GrammarPtr grammar) : impl_(std::make_unique<Impl>(std::move(grammar))) {}
Matcher::~Matcher() = default;
Matcher::Matcher(const Matcher& other) : impl_(std::make_unique<Impl>(*other.impl_)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

void Matcher::fill_mask(std::span<uint32_t> mask) {
  CHECK(mask.size() >= impl_->grammar->vocabulary->text_mask().size());
  std::fill(mask.begin(), mask.end(), 0u);
  try {
    for (Impl::Path& path : impl_->paths) {
      path.counted < 0 ? impl_->fill_outside(path, mask) : impl_->fill_inside(path, mask);
    }
  } catch (const std::exception& error) {
    log_error("structured output: " + message_of(error));
    std::fill(mask.begin(), mask.end(), 0u);  // an empty mask ends only this request
  }
}

bool Matcher::accept(int32_t token) {
  const std::string_view text = impl_->grammar->vocabulary->text_of(token);
  const bool counts = !impl_->grammar->counted.empty();
  if (text.empty() || (counts && has_mark_byte(text))) return false;
  try {
    if (!counts) return impl_->paths[0].matcher.AcceptToken(token);
    std::vector<Impl::Path> before = std::move(impl_->paths);
    impl_->paths.clear();
    for (Impl::Path& path : before) {
      const bool follows =
          path.counted < 0 ? path.matcher.AcceptToken(token) : impl_->accept_inside(path, text);
      if (!follows) continue;
      impl_->paths.push_back(std::move(path));
      if (impl_->paths.back().counted < 0) impl_->add_marks(impl_->paths.size() - 1, text);
    }
    return !impl_->paths.empty();
  } catch (const std::exception& error) {
    log_error("structured output: " + message_of(error));
    return false;
  }
}

bool Matcher::is_complete() const {
  return std::any_of(impl_->paths.begin(), impl_->paths.end(), [](const Impl::Path& path) {
    return path.counted < 0 && path.matcher.IsCompleted();
  });
}

}  // namespace moxie::grammar
