#include "text/grammar_header.h"

#include <algorithm>
#include <utility>

namespace moxie::grammar {

int32_t HeaderRules::add_node() {
  nodes_.emplace_back();
  return static_cast<int32_t>(nodes_.size()) - 1;
}

int32_t HeaderRules::add_text(int32_t from, const std::string& text) {
  for (const char c : text) {
    const int32_t to = add_node();
    nodes_[static_cast<size_t>(from)].edges.push_back({static_cast<unsigned char>(c), to});
    from = to;
  }
  return from;
}

int32_t HeaderRules::add_control(int32_t from, int32_t id) {
  const int32_t to = add_node();
  nodes_[static_cast<size_t>(from)].edges.push_back({kFirstControl + id, to});
  return to;
}

void HeaderRules::add_free(int32_t from, int32_t to) {
  nodes_[static_cast<size_t>(from)].free.push_back(to);
}

/// The names as a trie whose ends all lead to one node.
int32_t HeaderRules::add_names(int32_t from, const std::vector<std::string>& tools) {
  const int32_t prefix = add_text(from, "functions.");
  const int32_t end = add_node();
  for (const std::string& name : tools) {
    int32_t at = prefix;
    for (const char c : name) {
      const int32_t symbol = static_cast<unsigned char>(c);
      int32_t next = -1;
      for (const Edge& edge : nodes_[static_cast<size_t>(at)].edges) {
        if (edge.symbol == symbol) next = edge.to;
      }
      if (next < 0) {
        next = add_node();
        nodes_[static_cast<size_t>(at)].edges.push_back({symbol, next});
      }
      at = next;
    }
    add_free(at, end);
  }
  return end;
}

/// An optional content type; `words`: also the plain words that models write before arguments.
int32_t HeaderRules::add_type(int32_t from, bool words) {
  const int32_t end = add_node();
  add_free(from, end);
  const int32_t space = add_text(from, " ");
  const int32_t marker = add_node();
  add_free(from, marker);
  add_free(space, marker);
  add_free(add_text(add_control(marker, vocabulary_->control().constrain), "json"), end);
  if (words) {
    add_free(add_text(space, "json"), end);
    add_free(add_text(space, "code"), end);
  }
  return end;
}

HeaderRules::HeaderRules(std::shared_ptr<const Vocabulary> vocabulary,
                         const std::vector<std::string>& tools, bool typed_final)
    : vocabulary_(std::move(vocabulary)) {
  const harmony::ControlTokens& control = vocabulary_->control();
  for (int32_t& node : entries_) node = add_node();
  const auto channel = [&](int32_t from, const char* name) {
    return add_text(add_control(from, control.channel), name);
  };
  const auto finish = [&](HeaderKind kind, int32_t from) {
    ends_[static_cast<size_t>(kind)] = add_control(from, control.message);
  };
  finish(HeaderKind::kAnalysis, channel(entry(HeaderKind::kAnalysis), "analysis"));
  finish(HeaderKind::kPreamble, channel(entry(HeaderKind::kPreamble), "commentary"));
  int32_t final_name = channel(entry(HeaderKind::kFinal), "final");
  if (typed_final) final_name = add_type(final_name, false);
  finish(HeaderKind::kFinal, final_name);

  const int32_t typed = add_node();  // behind channel and name, in whichever order
  const int32_t call = entry(HeaderKind::kCall);
  const int32_t channel_first = add_node();
  const int32_t name_first = add_names(add_text(call, " to="), tools);
  for (const char* name : {"commentary", "analysis"}) {
    add_free(channel(call, name), channel_first);
    add_free(channel(name_first, name), typed);
  }
  add_free(add_names(add_text(channel_first, " to="), tools), typed);
  finish(HeaderKind::kCall, add_type(typed, true));

  for (size_t kind = 0; kind < 4; ++kind) {
    role_begin_[kind] = add_node();
    add_free(add_text(role_begin_[kind], "assistant"), entries_[kind]);
  }
}

HeaderState HeaderRules::closure(HeaderState state) const {
  for (size_t i = 0; i < state.size(); ++i) {
    for (const int32_t to : nodes_[static_cast<size_t>(state[i])].free) {
      if (std::find(state.begin(), state.end(), to) == state.end()) state.push_back(to);
    }
  }
  std::sort(state.begin(), state.end());
  return state;
}

HeaderState HeaderRules::begin(std::span<const HeaderKind> kinds) const {
  HeaderState state;
  for (const HeaderKind kind : kinds) state.push_back(entry(kind));
  return closure(std::move(state));
}

HeaderState HeaderRules::begin_with_role(std::span<const HeaderKind> kinds) const {
  HeaderState state;
  for (const HeaderKind kind : kinds) state.push_back(role_begin_[static_cast<size_t>(kind)]);
  return closure(std::move(state));
}

HeaderState HeaderRules::step(const HeaderState& state, int32_t symbol) const {
  HeaderState out;
  for (const int32_t node : state) {
    for (const Edge& edge : nodes_[static_cast<size_t>(node)].edges) {
      if (edge.symbol == symbol) out.push_back(edge.to);
    }
  }
  return out.empty() ? out : closure(std::move(out));
}

HeaderState HeaderRules::next(const HeaderState& state, int32_t token) const {
  const std::string_view text = vocabulary_->text_of(token);
  if (text.empty()) return token < 0 ? HeaderState{} : step(state, kFirstControl + token);
  HeaderState at = state;
  for (const char c : text) {
    at = step(at, static_cast<unsigned char>(c));
    if (at.empty()) break;
  }
  return at;
}

std::optional<HeaderKind> HeaderRules::finished(const HeaderState& state) const {
  for (size_t kind = 0; kind < 4; ++kind) {
    if (state.size() == 1 && state[0] == ends_[kind]) return static_cast<HeaderKind>(kind);
  }
  return std::nullopt;
}

void HeaderRules::fill_mask(const HeaderState& state, std::span<uint32_t> mask) const {
  std::fill(mask.begin(), mask.end(), 0u);
  for (const int32_t node : state) {
    for (const Edge& edge : nodes_[static_cast<size_t>(node)].edges) {
      if (edge.symbol >= kFirstControl) set_bit(mask, edge.symbol - kFirstControl);
    }
  }
  visit(state, 0, 0, vocabulary_->sorted().size(), mask);
}

/// The tokens sorted[first..last) share their first `depth` bytes, which led to `state`.
void HeaderRules::visit(const HeaderState& state, size_t depth, size_t first, size_t last,
                        std::span<uint32_t> mask) const {
  const std::vector<int32_t>& sorted = vocabulary_->sorted();
  for (; first < last && vocabulary_->text_of(sorted[first]).size() == depth; ++first) {
    if (depth > 0) set_bit(mask, sorted[first]);
  }
  if (first == last) return;
  std::vector<int32_t> symbols;
  for (const int32_t node : state) {
    for (const Edge& edge : nodes_[static_cast<size_t>(node)].edges) {
      const bool seen = std::find(symbols.begin(), symbols.end(), edge.symbol) != symbols.end();
      if (edge.symbol < kFirstControl && !seen) symbols.push_back(edge.symbol);
    }
  }
  for (const int32_t symbol : symbols) {
    const auto byte = static_cast<unsigned char>(symbol);
    const auto byte_at = [&](int32_t id) {
      return static_cast<unsigned char>(vocabulary_->text_of(id)[depth]);
    };
    const auto begin = sorted.begin() + static_cast<ptrdiff_t>(first);
    const auto end = sorted.begin() + static_cast<ptrdiff_t>(last);
    const auto low =
        std::partition_point(begin, end, [&](int32_t id) { return byte_at(id) < byte; });
    const auto high =
        std::partition_point(low, end, [&](int32_t id) { return byte_at(id) == byte; });
    if (low == high) continue;
    visit(step(state, symbol), depth + 1, static_cast<size_t>(low - sorted.begin()),
          static_cast<size_t>(high - sorted.begin()), mask);
  }
}

}  // namespace moxie::grammar
