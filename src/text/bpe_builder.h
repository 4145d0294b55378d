// Shared by the loaders: BpeBuilder takes tokens, added tokens and merges from a file, checks them,
// and makes the tables of a Tokenizer. Everything is checked before memory is allocated for it, so
// that memory is proportional to the file's size.
//
// Order of calls: tokens and added tokens in any order; index_tokens(); merges; finish().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base.h"
#include "text/bpe_tables.h"

namespace moxie {

/// Larger files are refused (o200k's tokenizer.json has 28 MB); offsets into them fit 32 bits.
inline constexpr size_t kMaxTokenizerFileBytes = size_t{1} << 30;

/// Appends the bytes that a vocabulary key in GPT-2's byte alphabet stands for; false if the key
/// has a character outside the alphabet (such a token is plain text, and no merges make it).
bool append_bytes_of_key(std::string_view key, std::string* bytes);

/// The two keys of a merge written as "left right"; nothing if it has another form.
std::optional<std::pair<std::string_view, std::string_view>> keys_of_merge(std::string_view merge);

class BpeBuilder {
 public:
  explicit BpeBuilder(std::string where) : where_(std::move(where)) {}

  void reserve(size_t num_tokens, size_t num_bytes) {
    tables_->tokens.reserve(num_tokens, num_bytes);
  }

  /// Adds a token that encoding may make from ordinary text.
  Status add_token(int64_t id, std::string_view bytes);
  /// The same, given the token's key in GPT-2's byte alphabet.
  Status add_key(int64_t id, std::string_view key);
  /// Adds a token that its name in a text makes under SpecialMode::kAll. If the vocabulary has the
  /// name too, with the same id, a special token no longer comes from ordinary text. Several names
  /// may share an id, which decodes to the first.
  Status add_named(int64_t id, std::string_view name, bool special);
  /// All ids below `num_ids` exist, with or without tokens.
  Status extend_vocab(size_t num_ids);

  Status index_tokens();

  void reserve_merges(size_t num_merges) { tables_->merges.reserve(num_merges); }
  /// The next merge in order: `left_bytes` of `both` are the left token, the others the right.
  Status add_merge(std::string_view both, size_t left_bytes);
  /// Every way to split a token into two tokens is a merge, with the token's id as rank.
  Status merges_from_ranks();

  /// The finished tables. Fails if a byte has no token of its own.
  Result<std::unique_ptr<BpeTables>> finish(bool ignore_merges);

  tl::unexpected<Error> error(std::string what, std::string hint = {}) const {
    return fail(std::move(what), where_, std::move(hint));
  }

 private:
  enum class Source : uint8_t { kNone, kOrdinary, kPlainText, kNamed };

  Status set_bytes(int64_t id, std::string_view bytes, Source source);
  bool is_special(int32_t id) const {
    return static_cast<size_t>(id) < tables_->special.size() &&
           tables_->special[static_cast<size_t>(id)];
  }

  std::string where_;
  std::unique_ptr<BpeTables> tables_ = std::make_unique<BpeTables>();
  std::vector<Source> source_;  // by id
  size_t num_merges_ = 0;
  std::string key_bytes_;  // reused
  bool special_is_indexed_ = false;
};

}  // namespace moxie
