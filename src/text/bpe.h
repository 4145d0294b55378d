// Byte-level BPE: text to token ids and back, for o200k_harmony and for any vocabulary of the same
// kind (the o200k splitter, GPT-2's byte alphabet, special tokens anywhere).
//
// A piece that is itself a token becomes that token (a tokenizer.json says by `ignore_merges`
// whether it may); otherwise its bytes are merged, always the adjacent pair of lowest rank, the
// leftmost of equals. Ranks are the ids in a .tiktoken file, and elsewhere the order of the merges,
// where consecutive merges that make the same token share a rank: such lists are rank tables
// written out as pairs, and a rank table has no order among the splits of one token.
//
// Encoding takes any bytes and loses none: decode(encode(x)) == x, also where x is not UTF-8. It
// takes O(n log n) time whatever the text. A Tokenizer does not change and may be shared by
// threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie {

struct BpeTables;

/// Whether special-token strings in a text mean the tokens (kAll) or are ordinary text (kNone, the
/// only safe choice for text that users wrote).
enum class SpecialMode { kNone, kAll };

/// tokenizer.ggml.token_type of GGUF.
enum class GgufTokenType : int32_t {
  kUndefined = 0,
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

class Tokenizer {
 public:
  /// Reads a Hugging Face tokenizer.json or a .tiktoken file, told apart by the first byte.
  static Result<Tokenizer> load(const std::filesystem::path& path);

  /// `json` is the text of a tokenizer.json; `where` names it in errors. Added tokens with
  /// "special": true are special; all added tokens are found under SpecialMode::kAll.
  static Result<Tokenizer> from_tokenizer_json(std::string_view json,
                                               const std::string& where = "tokenizer.json");

  /// `text` is lines of base64 bytes, a space and a rank. A file with o200k's 199,998 ranks gets
  /// the special tokens of o200k_harmony; any other has none.
  static Result<Tokenizer> from_tiktoken(std::string_view text,
                                         const std::string& where = ".tiktoken");

  /// The arrays tokenizer.ggml.tokens, .token_type (empty: all normal) and .merges of a GGUF file
  /// whose tokenizer.ggml.model is "gpt2". Unused tokens (padding) encode from and decode to
  /// nothing. `ignore_merges` as in a tokenizer.json; o200k needs it to equal its rank table.
  static Result<Tokenizer> from_gguf_parts(std::span<const std::string> tokens,
                                           std::span<const int32_t> types,
                                           std::span<const std::string> merges,
                                           bool ignore_merges = true,
                                           const std::string& where = "GGUF tokenizer");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int32_t> encode(std::string_view text, SpecialMode mode = SpecialMode::kNone) const;
  /// Appends the ids to `ids`.
  void encode(std::string_view text, SpecialMode mode, std::vector<int32_t>* ids) const;

  /// The bytes of the tokens (special ones as their names), not always UTF-8. Fails on an id
  /// outside 0..vocab_size()-1. Ids without a token decode to nothing.
  Result<std::string> decode(std::span<const int32_t> ids) const;

  /// The bytes of one token, empty for an id without a token; valid as long as the Tokenizer.
  std::string_view token_bytes(int32_t id) const;

  std::optional<int32_t> special_id(std::string_view name) const;
  bool is_special(int32_t id) const;

  /// One past the largest id (201,088 for o200k_harmony). A model's table may be padded further.
  int32_t vocab_size() const;

 private:
  explicit Tokenizer(std::unique_ptr<BpeTables> tables);
  std::unique_ptr<BpeTables> tables_;
};

}  // namespace moxie
