// Checks tokens and makes the tables. Tokens are indexed once all are known, so that table sizes
// fit and special tokens can be told from ordinary ones.
#include "text/bpe_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/utf8.h"

namespace moxie {
namespace {

// GPT-2's alphabet: printable Latin-1 bytes are their own characters, the other 68 are numbered
// from U+0100 on, in order.
constexpr char32_t kAlphabetEnd = 0x100 + 68;

constexpr std::array<int16_t, kAlphabetEnd> make_byte_of_char() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  char32_t next = 0x100;
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
    bytes[printable ? static_cast<char32_t>(byte) : next++] = byte;
  }
  return bytes;
}
constexpr std::array<int16_t, kAlphabetEnd> kByteOfChar = make_byte_of_char();

// For error messages: short and printable, whatever the bytes.
std::string in_quotes(std::string_view bytes) {
  std::string text = "\"";
  for (const char c : bytes.substr(0, 40)) {
    const uint8_t byte = static_cast<uint8_t>(c);
    text += byte >= 0x20 && byte < 0x7F ? std::string(1, c) : fmt::format("\\x{:02x}", byte);
  }
  return text + (bytes.size() > 40 ? "...\"" : "\"");
}

}  // namespace

bool append_bytes_of_key(std::string_view key, std::string* bytes) {
  const size_t num_before = bytes->size();
  bytes->resize(num_before + key.size());  // a character stands for one byte
  char* out = bytes->data() + num_before;
  for (size_t pos = 0; pos < key.size();) {
    const uint8_t first = static_cast<uint8_t>(key[pos]);
    const Utf8Char c = first < 0x80 ? Utf8Char{first, 1, true, false} : decode_utf8(key, pos);
    if (!c.valid || c.code_point >= kAlphabetEnd || kByteOfChar[c.code_point] < 0) {
      bytes->resize(num_before);
      return false;
    }
    *out++ = static_cast<char>(kByteOfChar[c.code_point]);
    pos += c.size_bytes;
  }
  bytes->resize(static_cast<size_t>(out - bytes->data()));
  return true;
}

std::optional<std::pair<std::string_view, std::string_view>> keys_of_merge(std::string_view merge) {
  const size_t space = merge.find(' ');
  if (space == 0 || space == std::string_view::npos || space + 1 == merge.size()) return {};
  if (merge.find(' ', space + 1) != std::string_view::npos) return {};
  return std::pair(merge.substr(0, space), merge.substr(space + 1));
}

Status BpeBuilder::extend_vocab(size_t num_ids) {
  if (num_ids > kMaxTokens) {
    return error(fmt::format("{} token ids, at most {} are supported", num_ids, kMaxTokens));
  }
  tables_->vocab_size = std::max(tables_->vocab_size, static_cast<int32_t>(num_ids));
  return {};
}

Status BpeBuilder::set_bytes(int64_t id, std::string_view bytes, Source source) {
  if (id < 0 || id >= static_cast<int64_t>(kMaxTokens)) {
    return error(
        fmt::format("token {} has id {}, expected 0..{}", in_quotes(bytes), id, kMaxTokens - 1));
  }
  const int32_t id32 = static_cast<int32_t>(id);
  if (tables_->tokens.has(id32)) {
    return error(fmt::format("id {} belongs to two tokens, {} and {}", id,
                             in_quotes(tables_->tokens.at(id32)), in_quotes(bytes)));
  }
  if (auto ok = extend_vocab(static_cast<size_t>(id) + 1); !ok) return ok;
  tables_->tokens.set(id32, bytes);
  if (source_.size() <= static_cast<size_t>(id)) source_.resize(static_cast<size_t>(id) + 1);
  source_[static_cast<size_t>(id)] = source;
  return {};
}

Status BpeBuilder::add_token(int64_t id, std::string_view bytes) {
  return set_bytes(id, bytes, Source::kOrdinary);
}

Status BpeBuilder::add_key(int64_t id, std::string_view key) {
  key_bytes_.clear();
  if (append_bytes_of_key(key, &key_bytes_)) return set_bytes(id, key_bytes_, Source::kOrdinary);
  return set_bytes(id, key, Source::kPlainText);
}

Status BpeBuilder::add_named(int64_t id, std::string_view name, bool special) {
  if (name.empty() || name.size() > kMaxSpecialBytes) {
    return error(fmt::format("added token {} has a name of {} bytes, expected 1..{}", id,
                             name.size(), kMaxSpecialBytes));
  }
  tables_->added.push_back({std::string(name), static_cast<int32_t>(id), special});
  const bool taken = id >= 0 && id < static_cast<int64_t>(source_.size()) &&
                     tables_->tokens.has(static_cast<int32_t>(id));
  const Source source = taken ? source_[static_cast<size_t>(id)] : Source::kNone;
  // Another name for an added token, or the vocabulary's own entry for it.
  const bool fits =
      source == Source::kNamed || (taken && tables_->tokens.at(static_cast<int32_t>(id)) == name);
  if (!fits) {
    if (auto ok = set_bytes(id, name, Source::kNamed); !ok) return ok;
  }
  if (special) {
    std::vector<bool>& flags = tables_->special;
    if (flags.size() <= static_cast<size_t>(id)) flags.resize(static_cast<size_t>(id) + 1);
    flags[static_cast<size_t>(id)] = true;
    special_is_indexed_ |= source == Source::kOrdinary;
  }
  return {};
}

Status BpeBuilder::index_tokens() {
  BpeTables& t = *tables_;
  const auto by_name = [](const AddedToken& a, const AddedToken& b) { return a.name < b.name; };
  std::sort(t.added.begin(), t.added.end(), by_name);
  t.index.reserve(source_.size());
  for (int32_t id = 0; id < static_cast<int32_t>(source_.size()); ++id) {
    if (source_[static_cast<size_t>(id)] != Source::kOrdinary || !t.tokens.has(id)) continue;
    const int32_t other = t.index.insert(id, t.tokens);
    if (other != kNoToken) {
      return error(fmt::format("tokens {} and {} have the same bytes {}", other, id,
                               in_quotes(t.tokens.at(id))));
    }
  }
  for (size_t i = 0; i < t.added.size(); ++i) {
    const AddedToken& token = t.added[i];
    int32_t other = t.index.find(token.name, t.tokens);
    if (i > 0 && t.added[i - 1].name == token.name) other = t.added[i - 1].id;
    if (other != kNoToken && other != token.id) {
      return error(
          fmt::format("token {} has two ids, {} and {}", in_quotes(token.name), other, token.id));
    }
  }
  return {};
}

Status BpeBuilder::add_merge(std::string_view both, size_t left_bytes) {
  BpeTables& t = *tables_;
  const std::string_view left = both.substr(0, left_bytes);
  const std::string_view right = both.substr(left_bytes);
  const bool same_as_last = !t.token_of_rank.empty() && t.tokens.at(t.token_of_rank.back()) == both;
  const int32_t left_id = t.index.find(left, t.tokens);
  const int32_t right_id = t.index.find(right, t.tokens);
  const int32_t both_id = same_as_last ? t.token_of_rank.back() : t.index.find(both, t.tokens);
  const size_t merge_idx = num_merges_++;
  if (left_id == kNoToken || right_id == kNoToken || both_id == kNoToken) {
    const std::string_view missing = left_id == kNoToken    ? left
                                     : right_id == kNoToken ? right
                                                            : both;
    return error(fmt::format("merge {} of {} and {}: {} is not in the vocabulary", merge_idx,
                             in_quotes(left), in_quotes(right), in_quotes(missing)));
  }
  if (is_special(left_id) || is_special(right_id) || is_special(both_id)) return {};
  if (!same_as_last) {
    if (t.token_of_rank.size() >= kMaxRanks) {
      return error(fmt::format("more than {} merges", kMaxRanks));
    }
    t.token_of_rank.push_back(both_id);
  }
  t.merges.insert(left_id, right_id, static_cast<uint32_t>(t.token_of_rank.size() - 1));
  return {};
}

Status BpeBuilder::merges_from_ranks() {
  BpeTables& t = *tables_;
  const int32_t num_ranks = static_cast<int32_t>(source_.size());
  t.token_of_rank.resize(source_.size());
  t.merges.reserve(source_.size() * 5 / 2);  // o200k has 2.2 splits a token
  for (int32_t id = 0; id < num_ranks; ++id) {
    t.token_of_rank[static_cast<size_t>(id)] = id;
    if (source_[static_cast<size_t>(id)] != Source::kOrdinary) continue;
    const std::string_view bytes = t.tokens.at(id);
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const int32_t left = t.index.find(bytes.substr(0, cut), t.tokens);
      if (left == kNoToken) continue;
      const int32_t right = t.index.find(bytes.substr(cut), t.tokens);
      if (right != kNoToken) t.merges.insert(left, right, static_cast<uint32_t>(id));
    }
  }
  return {};
}

Result<std::unique_ptr<BpeTables>> BpeBuilder::finish(bool ignore_merges) {
  BpeTables& t = *tables_;
  if (special_is_indexed_) {
    t.index = TokenIndex();
    for (int32_t id = 0; id < static_cast<int32_t>(source_.size()); ++id) {
      const bool ordinary = source_[static_cast<size_t>(id)] == Source::kOrdinary;
      if (ordinary && t.tokens.has(id) && !is_special(id)) t.index.insert(id, t.tokens);
    }
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    t.token_of_byte[byte] = t.index.find({&text, 1}, t.tokens);
    if (t.token_of_byte[byte] == kNoToken) {
      return error(fmt::format("byte 0x{:02x} has no token", byte),
                   "a byte-level vocabulary has a token for each of the 256 bytes");
    }
  }
  t.rank_of_byte_pair.resize(256 * 256);
  for (size_t pair = 0; pair < 256 * 256; ++pair) {
    t.rank_of_byte_pair[pair] =
        t.merges.rank_of(t.token_of_byte[pair / 256], t.token_of_byte[pair % 256]);
  }
  for (const AddedToken& token : t.added) {
    t.starts_added[static_cast<uint8_t>(token.name[0])] = true;
  }
  t.ignore_merges = ignore_merges;
  if (!ignore_merges) {
    t.merges_reach = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(t.vocab_size));
  }
  return std::move(tables_);
}

}  // namespace moxie
