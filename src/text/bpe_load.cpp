// The loaders of .tiktoken files and GGUF arrays, and load() for paths; tokenizer.json is in
// bpe_json.cpp.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>

#include "text/bpe.h"
#include "text/bpe_builder.h"

namespace moxie {
namespace {

// Ranks of a token's splits are looked up at load: this bounds the work. o200k's longest is 128.
constexpr size_t kMaxRankedBytes = 1024;
constexpr size_t kO200kRanks = 199998;

constexpr std::array<int8_t, 256> make_base64_values() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int8_t, 256> values{};
  for (int8_t& value : values) value = -1;
  for (size_t i = 0; i < kDigits.size(); ++i) {
    values[static_cast<uint8_t>(kDigits[i])] = static_cast<int8_t>(i);
  }
  return values;
}
constexpr std::array<int8_t, 256> kBase64Values = make_base64_values();

/// Decodes padded base64 into `bytes`; false if the text is malformed.
bool decode_base64(std::string_view text, std::string* bytes) {
  bytes->clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t num_padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  text.remove_suffix(num_padding);
  uint32_t bits = 0;
  uint32_t num_bits = 0;
  for (const char c : text) {
    const int8_t value = kBase64Values[static_cast<uint8_t>(c)];
    if (value < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    num_bits += 6;
    if (num_bits >= 8) {
      num_bits -= 8;
      bytes->push_back(static_cast<char>(bits >> num_bits & 0xFF));
    }
  }
  return true;
}

Status add_harmony_tokens(BpeBuilder* builder) {
  struct Named {
    int64_t id;
    std::string_view name;
  };
  constexpr Named kNamed[] = {
      {199998, "<|startoftext|>"}, {199999, "<|endoftext|>"}, {200002, "<|return|>"},
      {200003, "<|constrain|>"},   {200005, "<|channel|>"},   {200006, "<|start|>"},
      {200007, "<|end|>"},         {200008, "<|message|>"},   {200012, "<|call|>"},
      {200018, "<|endofprompt|>"},
  };
  constexpr int64_t kEndOfPrompt = 200018;  // also has a reserved name
  constexpr int64_t kFirstReserved = 200000;
  constexpr int64_t kVocabSize = 201088;
  for (const Named& token : kNamed) {
    if (auto ok = builder->add_named(token.id, token.name, true); !ok) return ok;
  }
  for (int64_t id = kFirstReserved; id < kVocabSize; ++id) {
    const bool named = std::any_of(std::begin(kNamed), std::end(kNamed),
                                   [id](const Named& t) { return t.id == id; });
    if (named && id != kEndOfPrompt) continue;
    auto ok = builder->add_named(id, fmt::format("<|reserved_{}|>", id), true);
    if (!ok) return ok;
  }
  return {};
}

Status add_tiktoken_line(std::string_view line, BpeBuilder* builder, std::string* bytes) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) return builder->error("no space between token and rank");
  if (!decode_base64(line.substr(0, space), bytes)) return builder->error("bad base64");
  if (bytes->size() > kMaxRankedBytes) {
    return builder->error(fmt::format("a token of {} bytes, at most {} are supported",
                                      bytes->size(), kMaxRankedBytes));
  }
  const std::string_view digits = line.substr(space + 1);
  int64_t rank = 0;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size()) {
    return builder->error("the rank is not a number");
  }
  return builder->add_token(rank, *bytes);
}

Status add_gguf_token(int64_t id, const std::string& token, int32_t type, BpeBuilder* builder) {
  switch (static_cast<GgufTokenType>(type)) {
    case GgufTokenType::kUndefined:
    case GgufTokenType::kNormal:
      return builder->add_key(id, token);
    case GgufTokenType::kUnknown:
    case GgufTokenType::kControl:
      return builder->add_named(id, token, true);
    case GgufTokenType::kUserDefined:
      return builder->add_named(id, token, false);
    case GgufTokenType::kUnused:
      return {};
    case GgufTokenType::kByte:
      break;
  }
  return builder->error(fmt::format("token {} has type {}, expected 0..5", id, type));
}

Status add_gguf_merge(size_t merge_idx, std::string_view merge, BpeBuilder* builder) {
  std::string both;
  if (const auto keys = keys_of_merge(merge); keys && append_bytes_of_key(keys->first, &both)) {
    const size_t left_bytes = both.size();
    if (append_bytes_of_key(keys->second, &both)) return builder->add_merge(both, left_bytes);
  }
  return builder->error(fmt::format(
      "merge {} is not two tokens in GPT-2's byte alphabet with a space between them", merge_idx));
}

}  // namespace

Result<Tokenizer> Tokenizer::from_tiktoken(std::string_view text, const std::string& where) {
  if (text.size() > kMaxTokenizerFileBytes) return fail("the file is too large", where);
  BpeBuilder builder(where);
  builder.reserve(text.size() / 16, text.size() / 2);
  std::string bytes;
  size_t num_ranks = 0;
  size_t line_idx = 0;
  for (size_t start = 0; start < text.size(); ++line_idx) {
    const size_t end = std::min(text.find('\n', start), text.size());
    std::string_view line = text.substr(start, end - start);
    start = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    if (auto ok = add_tiktoken_line(line, &builder, &bytes); !ok) {
      Error error = ok.error();
      error.where = fmt::format("{}: line {}", where, line_idx + 1);
      error.hint = "each line is the base64 of a token, a space and its rank";
      return fail(std::move(error));
    }
    ++num_ranks;
  }
  if (num_ranks == kO200kRanks) {
    if (auto ok = add_harmony_tokens(&builder); !ok) return fail(ok.error());
  }
  if (auto ok = builder.index_tokens(); !ok) return fail(ok.error());
  if (auto ok = builder.merges_from_ranks(); !ok) return fail(ok.error());
  auto tables = builder.finish(true);
  if (!tables) return fail(tables.error());
  return Tokenizer(std::move(*tables));
}

Result<Tokenizer> Tokenizer::from_gguf_parts(std::span<const std::string> tokens,
                                             std::span<const int32_t> types,
                                             std::span<const std::string> merges,
                                             bool ignore_merges, const std::string& where) {
  BpeBuilder builder(where);
  if (!types.empty() && types.size() != tokens.size()) {
    return builder.error(fmt::format("{} token types for {} tokens", types.size(), tokens.size()));
  }
  if (auto ok = builder.extend_vocab(tokens.size()); !ok) return fail(ok.error());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t type = types.empty() ? static_cast<int32_t>(GgufTokenType::kNormal) : types[i];
    auto ok = add_gguf_token(static_cast<int64_t>(i), tokens[i], type, &builder);
    if (!ok) return fail(ok.error());
  }
  if (auto ok = builder.index_tokens(); !ok) return fail(ok.error());
  builder.reserve_merges(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    if (auto ok = add_gguf_merge(i, merges[i], &builder); !ok) return fail(ok.error());
  }
  auto tables = builder.finish(ignore_merges);
  if (!tables) return fail(tables.error());
  return Tokenizer(std::move(*tables));
}

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  const std::string where = path.string();
  std::ifstream file(path, std::ios::binary);
  std::error_code code;
  const uintmax_t num_bytes = std::filesystem::file_size(path, code);
  if (!file || code) {
    return fail("cannot read the file", where, "expected a tokenizer.json or a .tiktoken file");
  }
  if (num_bytes > kMaxTokenizerFileBytes) {
    return fail(
        fmt::format("{} bytes, at most {} are supported", num_bytes, kMaxTokenizerFileBytes),
        where);
  }
  if (num_bytes == 0) return fail("the file is empty", where, "fetch it anew");
  std::string text(num_bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(num_bytes))) {
    return fail("the file ended early", where);
  }
  const size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  return is_json ? from_tokenizer_json(text, where) : from_tiktoken(text, where);
}

}  // namespace moxie
