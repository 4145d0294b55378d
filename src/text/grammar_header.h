// The headers that an answer's messages may have, as an automaton over bytes and control tokens: a
// header that names another channel, or a tool that does not exist, cannot be written, whatever
// tokens its text is cut into.
//
// Forms, behind <|start|>assistant:
//   <|channel|>analysis<|message|>
//   <|channel|>commentary<|message|>                                    (a preamble)
//   <|channel|>final[ [ ]<|constrain|>json]<|message|>                  (the type: if constrained)
//   <|channel|>commentary to=functions.NAME[TYPE]<|message|>            (or analysis)
//    to=functions.NAME<|channel|>commentary[TYPE]<|message|>            (or analysis)
// with TYPE one of [ ]<|constrain|>json, ` json` and ` code`.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "text/grammar_vocabulary.h"

namespace moxie::grammar {

enum class HeaderKind { kAnalysis, kPreamble, kFinal, kCall };

/// Nodes of the automaton that a header has reached; sorted.
using HeaderState = std::vector<int32_t>;

class HeaderRules {
 public:
  /// `tools`: the names that a call may have, without "functions.". `typed_final`: the final
  /// channel may carry a content type.
  HeaderRules(std::shared_ptr<const Vocabulary> vocabulary, const std::vector<std::string>& tools,
              bool typed_final);

  /// The state behind `<|start|>assistant` where headers of these kinds may follow.
  HeaderState begin(std::span<const HeaderKind> kinds) const;
  /// The state behind `<|start|>`: the role comes first.
  HeaderState begin_with_role(std::span<const HeaderKind> kinds) const;

  void fill_mask(const HeaderState& state, std::span<uint32_t> mask) const;
  /// Empty if the token may not follow.
  HeaderState next(const HeaderState& state, int32_t token) const;
  /// Set once <|message|> has come.
  std::optional<HeaderKind> finished(const HeaderState& state) const;

 private:
  struct Edge {
    int32_t symbol;  // 0..255: a byte; from kFirstControl on: a control token's id
    int32_t to;
  };
  struct Node {
    std::vector<Edge> edges;
    std::vector<int32_t> free;  // reached without a symbol
  };
  static constexpr int32_t kFirstControl = 256;

  int32_t add_node();
  int32_t add_text(int32_t from, const std::string& text);
  int32_t add_control(int32_t from, int32_t id);
  void add_free(int32_t from, int32_t to);
  int32_t add_names(int32_t from, const std::vector<std::string>& tools);
  int32_t add_type(int32_t from, bool words);
  int32_t entry(HeaderKind kind) const { return entries_[static_cast<size_t>(kind)]; }

  HeaderState closure(HeaderState state) const;
  HeaderState step(const HeaderState& state, int32_t symbol) const;
  void visit(const HeaderState& state, size_t depth, size_t first, size_t last,
             std::span<uint32_t> mask) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  std::vector<Node> nodes_;
  int32_t entries_[4];
  int32_t ends_[4];
  int32_t role_begin_[4];
};

}  // namespace moxie::grammar
