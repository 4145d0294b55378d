// Structured output: grammars over a model's vocabulary, and the constraint that binds an answer in
// harmony to them. What a request may ask for is in docs/structured-output.md.
//
// Reasoning is not constrained. The final channel follows the response's grammar, a call's
// arguments the tool's grammar, and the headers between them the channels and recipients that the
// request allows, so that a tool that does not exist cannot be named. A grammar that cannot be
// enforced is an error when it is compiled, never ignored.
//
// A Compiler serves all requests of one model from any thread. Compiling takes milliseconds, for
// large schemas up to seconds: keep it off threads that must not wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base.h"
#include "text/harmony.h"

namespace moxie::grammar {

/// Whether this build has structured output; without it every compile fails with the reason.
bool is_available();

/// The constraint on a text.
struct Source {
  enum class Kind {
    kJsonSchema,  ///< `text` is a JSON Schema
    kJsonObject,  ///< any JSON object
    kRegex,       ///< `text` matches the whole answer
    kChoice,      ///< one of `choices`
    kEbnf,        ///< `text` is EBNF whose rule "root" is the answer
  };
  Kind kind = Kind::kJsonSchema;
  std::string text;
  std::vector<std::string> choices;
  bool compact = false;  ///< JSON is written without white space
};

/// A grammar ready for one vocabulary. Shared by any number of requests.
class CompiledGrammar;
using GrammarPtr = std::shared_ptr<const CompiledGrammar>;

/// The tokens of a model as grammars need them. Shared, does not change.
class Vocabulary;

struct CompilerLimits {
  size_t max_cached = 256;                      ///< compiled grammars kept for later requests
  size_t max_cached_bytes = size_t{256} << 20;  ///< their memory in all
  int num_threads = 2;                          ///< threads that one compilation may use
};

class Compiler {
 public:
  /// `vocab_size`: ids of the model's logits, at least the tokenizer's. The tokenizer must outlive
  /// the compiler and everything made with it. Fails without harmony's control tokens.
  static Result<std::unique_ptr<Compiler>> create(const Tokenizer& tokenizer, int32_t vocab_size,
                                                  const CompilerLimits& limits = {});
  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  /// Compiles a source, or takes it from the cache. `where` names the request's field in errors;
  /// every failure is the request's fault.
  Result<GrammarPtr> compile(const Source& source, const std::string& where);

  const std::shared_ptr<const Vocabulary>& vocabulary() const;

  struct CacheStats {
    size_t num_grammars = 0, num_bytes = 0;
    uint64_t num_hits = 0, num_misses = 0;
  };
  CacheStats cache_stats() const;

 private:
  struct Impl;
  explicit Compiler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Follows one text, token by token.
class Matcher {
 public:
  explicit Matcher(GrammarPtr grammar);
  ~Matcher();
  Matcher(const Matcher& other);
  Matcher& operator=(const Matcher&) = delete;
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;

  /// Sets the bits of the text tokens that may follow, and clears all others.
  void fill_mask(std::span<uint32_t> mask);
  /// False, changing nothing, if the token may not follow.
  bool accept(int32_t token);
  bool is_complete() const;  ///< the text may end here

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct ToolSpec {
  std::string name;                       ///< without "functions."
  std::optional<std::string> parameters;  ///< JSON Schema; none: the tool takes no argument, {}
  /// False: a schema that cannot be enforced becomes "any JSON object" and is named in `relaxed`.
  /// Not set: false, unless a call must come. An invalid JSON Schema is refused in any case.
  std::optional<bool> strict = true;
};

enum class ToolChoice {
  kNone,      ///< no call
  kAuto,      ///< calls or an answer
  kRequired,  ///< a call of some tool, no answer
  kNamed,     ///< a call of `tool_name`, no answer
};

/// The constraints of a chat request on its answer.
struct AnswerSpec {
  std::optional<Source> response;                  ///< binds the final channel
  std::string response_field = "response_format";  ///< where it is from, for errors
  std::vector<ToolSpec> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string tool_name;
};

/// The state of one answer, which begins behind the prompt's <|start|>assistant. Not thread-safe.
class AnswerConstraint {
 public:
  /// Null if the answer has no constraint. `relaxed`: one line for each tool whose schema cannot be
  /// enforced and need not be.
  static Result<std::unique_ptr<AnswerConstraint>> create(Compiler& compiler,
                                                          const AnswerSpec& spec,
                                                          std::vector<std::string>* relaxed);
  /// The same for a raw completion: the text from the first token on, ended by <|return|> or
  /// <|endoftext|>. `field`: where the source is from, for errors.
  static Result<std::unique_ptr<AnswerConstraint>> create_raw(
      Compiler& compiler, const Source& source, const std::string& field = "structured_outputs");
  ~AnswerConstraint();

  /// `mask` is [ceil(vocab_size / 32)] or longer: bit i % 32 of word i / 32 says that id i may
  /// follow.
  void fill_mask(std::span<uint32_t> mask);
  /// Fails on a token that may not follow.
  Status accept(int32_t token);
  /// The answer has been ended by a stop token.
  bool is_done() const;
  /// An independent copy of the state. Takes time in proportion to the constrained text so far.
  std::unique_ptr<AnswerConstraint> fork() const;

 private:
  struct Impl;
  explicit AnswerConstraint(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moxie::grammar
