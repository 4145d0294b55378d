// Encode and decode over finished tables, which bpe_builder.cpp makes.
#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/bpe_tables.h"
#include "text/splitter.h"

namespace moxie {
namespace {

// Whether the merges of a token's own bytes end in the token.
bool merges_reach(const BpeTables& tables, int32_t id, std::string_view piece) {
  std::atomic<uint8_t>& known = tables.merges_reach[static_cast<size_t>(id)];
  uint8_t answer = known.load(std::memory_order_relaxed);
  if (answer == 0) {
    std::vector<int32_t> ids;
    merge_piece(tables, piece, &ids);
    answer = ids.size() == 1 && ids[0] == id ? 1 : 2;
    known.store(answer, std::memory_order_relaxed);  // any thread comes to the same answer
  }
  return answer == 1;
}

void encode_ordinary(const BpeTables& tables, std::string_view text, std::vector<int32_t>* ids) {
  for (size_t start = 0; start < text.size();) {
    const size_t end = piece_end(text, start);
    const std::string_view piece = text.substr(start, end - start);
    start = end;
    const int32_t whole = tables.index.find(piece, tables.tokens);
    if (whole != kNoToken && (tables.ignore_merges || merges_reach(tables, whole, piece))) {
      ids->push_back(whole);
    } else {
      merge_piece(tables, piece, ids);
    }
  }
}

// The longest added token whose name is at text[pos], or null. `added` is sorted, so the names that
// begin with the same bytes are a range, which each byte narrows.
const AddedToken* added_at(const BpeTables& tables, std::string_view text, size_t pos) {
  const AddedToken* found = nullptr;
  auto first = tables.added.begin();
  auto last = tables.added.end();
  for (size_t depth = 0; first != last; ++depth) {
    if (first->name.size() == depth) {
      found = &*first;
      if (++first == last) break;
    }
    if (pos + depth >= text.size()) break;
    const auto byte_at = [depth](const AddedToken& t) {
      return static_cast<uint8_t>(t.name[depth]);
    };
    const uint8_t byte = static_cast<uint8_t>(text[pos + depth]);
    first = std::partition_point(first, last, [&](const auto& t) { return byte_at(t) < byte; });
    last = std::partition_point(first, last, [&](const auto& t) { return byte_at(t) == byte; });
  }
  return found;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<BpeTables> tables) : tables_(std::move(tables)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialMode mode) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  encode(text, mode, &ids);
  return ids;
}

void Tokenizer::encode(std::string_view text, SpecialMode mode, std::vector<int32_t>* ids) const {
  if (mode == SpecialMode::kNone) return encode_ordinary(*tables_, text, ids);
  size_t start = 0;
  for (size_t pos = 0; pos < text.size();) {
    const bool candidate = tables_->starts_added[static_cast<uint8_t>(text[pos])];
    const AddedToken* token = candidate ? added_at(*tables_, text, pos) : nullptr;
    if (!token) {
      ++pos;
      continue;
    }
    encode_ordinary(*tables_, text.substr(start, pos - start), ids);
    ids->push_back(token->id);
    pos += token->name.size();
    start = pos;
  }
  encode_ordinary(*tables_, text.substr(start), ids);
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return fail(
          fmt::format("token id {} is outside the vocabulary 0..{}", ids[i], vocab_size() - 1),
          fmt::format("ids[{}]", i));
    }
    bytes += token_bytes(ids[i]);
  }
  return bytes;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && tables_->tokens.has(id) ? tables_->tokens.at(id) : std::string_view{};
}

std::optional<int32_t> Tokenizer::special_id(std::string_view name) const {
  const auto it =
      std::lower_bound(tables_->added.begin(), tables_->added.end(), name,
                       [](const AddedToken& t, std::string_view n) { return t.name < n; });
  if (it == tables_->added.end() || it->name != name || !is_special(it->id)) return std::nullopt;
  return it->id;
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < tables_->special.size() &&
         tables_->special[static_cast<size_t>(id)];
}

int32_t Tokenizer::vocab_size() const { return tables_->vocab_size; }

}  // namespace moxie
