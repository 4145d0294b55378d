// The loader of tokenizer.json, in one pass over the JSON events. The file has hundreds of
// thousands of strings: a document tree would take seconds, and gigabytes for a hostile file.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "text/bpe.h"
#include "text/bpe_builder.h"

namespace moxie {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;  // real files have 6

// The one splitter there is (splitter.h); a file that asks for another gets a warning.
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Takes the events of nlohmann's parser. Merges and added tokens are kept until the end, since the
// vocabulary that they refer to may come after them.
class TokenizerJsonReader : public nlohmann::json_sax<json> {
 public:
  explicit TokenizerJsonReader(const std::string& where) : builder_(where), where_(where) {}

  Result<std::unique_ptr<BpeTables>> finish();
  Status status() const { return status_; }

  bool null() override { return scalar(); }
  bool boolean(bool value) override;
  bool number_integer(int64_t value) override { return number(value); }
  bool number_unsigned(uint64_t value) override {
    return number(value > INT64_MAX ? INT64_MAX : static_cast<int64_t>(value));
  }
  bool number_float(double, const std::string& text) override;
  bool string(std::string& value) override;
  bool binary(json::binary_t&) override { return false; }
  bool start_object(size_t) override { return enter(true); }
  bool start_array(size_t) override { return enter(false); }
  bool key(std::string& value) override {
    key_.swap(value);
    return true;
  }
  bool end_object() override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&, const json::exception&) override;

 private:
  // What the container being read is.
  enum class Section : uint8_t {
    kFile,
    kModel,
    kVocab,
    kMerges,
    kMergePair,
    kAddedTokens,
    kAddedToken,
    kPreTokenizer,
    kElsewhere,
  };
  struct Added {
    int64_t id = -1;
    std::string name;
    bool special = false;
  };

  Section inside() const { return sections_.empty() ? Section::kElsewhere : sections_.back(); }
  Section section_of_child(bool is_object) const;
  bool enter(bool is_object);
  bool scalar();
  bool number(int64_t value);
  bool model_string(const std::string& value);
  bool add_merge_key(std::string_view key);
  bool stop(std::string what, std::string hint = {}) {
    return stop(builder_.error(std::move(what), std::move(hint)));
  }
  bool stop(Status status) {
    if (!status && status_) status_ = std::move(status);
    return status_.has_value();
  }

  BpeBuilder builder_;
  std::string where_;
  Status status_;
  std::vector<Section> sections_;
  std::string key_;
  bool has_vocab_ = false, has_merges_ = false;
  bool ignore_merges_ = false;
  std::string merges_;                // the bytes of all merges, one after the other
  std::vector<uint32_t> merge_ends_;  // of left and right of each, into merges_
  size_t num_in_pair_ = 0;
  Added added_token_;
  std::vector<Added> added_tokens_;
  bool has_other_pattern_ = false;
};

TokenizerJsonReader::Section TokenizerJsonReader::section_of_child(bool is_object) const {
  if (sections_.empty()) return is_object ? Section::kFile : Section::kElsewhere;
  switch (sections_.back()) {
    case Section::kFile:
      if (key_ == "model" && is_object) return Section::kModel;
      if (key_ == "added_tokens" && !is_object) return Section::kAddedTokens;
      if (key_ == "pre_tokenizer") return Section::kPreTokenizer;
      return Section::kElsewhere;
    case Section::kModel:
      if (key_ == "vocab" && is_object) return Section::kVocab;
      if (key_ == "merges" && !is_object) return Section::kMerges;
      return Section::kElsewhere;
    case Section::kMerges:
      return is_object ? Section::kElsewhere : Section::kMergePair;
    case Section::kAddedTokens:
      return is_object ? Section::kAddedToken : Section::kElsewhere;
    case Section::kPreTokenizer:
      return Section::kPreTokenizer;
    default:
      return Section::kElsewhere;
  }
}

bool TokenizerJsonReader::enter(bool is_object) {
  if (sections_.size() >= kMaxDepth) return stop("the JSON is nested too deeply");
  const Section section = section_of_child(is_object);
  const bool unexpected = inside() == Section::kVocab || inside() == Section::kMergePair ||
                          inside() == Section::kAddedToken ||
                          (inside() == Section::kMerges && is_object) ||
                          (inside() == Section::kAddedTokens && !is_object);
  if (unexpected)
    return stop(fmt::format("a list or object where a value belongs ({})", key_.substr(0, 40)));
  if (section == Section::kVocab) {
    if (has_vocab_) return stop("two vocabularies");
    has_vocab_ = true;
  }
  if (section == Section::kMerges) has_merges_ = true;
  if (section == Section::kMergePair) num_in_pair_ = 0;
  if (section == Section::kAddedToken) added_token_ = {};
  if (section == Section::kElsewhere && inside() == Section::kFile && key_ == "normalizer") {
    log_warn(where_ + ": the normalizer is ignored, ids may differ from the model's");
  }
  sections_.push_back(section);
  return true;
}

bool TokenizerJsonReader::end_object() {
  if (inside() == Section::kAddedToken) {
    if (added_token_.id < 0 || added_token_.name.empty()) {
      return stop(fmt::format("added token {} lacks id or content", added_tokens_.size()));
    }
    added_tokens_.push_back(std::move(added_token_));
  }
  sections_.pop_back();
  return true;
}

bool TokenizerJsonReader::end_array() {
  if (inside() == Section::kMergePair && num_in_pair_ != 2) {
    const size_t merge_idx = (merge_ends_.size() - std::min<size_t>(num_in_pair_, 2)) / 2;
    return stop(fmt::format("merge {} has {} tokens, expected 2", merge_idx, num_in_pair_));
  }
  sections_.pop_back();
  return true;
}

bool TokenizerJsonReader::scalar() {
  const Section section = inside();
  if (section == Section::kVocab || section == Section::kMerges || section == Section::kMergePair ||
      section == Section::kAddedTokens) {
    return stop(fmt::format("a value of the wrong kind ({})", key_.substr(0, 40)));
  }
  return true;
}

bool TokenizerJsonReader::boolean(bool value) {
  if (inside() == Section::kModel && key_ == "ignore_merges") ignore_merges_ = value;
  if (inside() == Section::kAddedToken && key_ == "special") added_token_.special = value;
  if (inside() == Section::kPreTokenizer && value &&
      (key_ == "add_prefix_space" || key_ == "use_regex")) {
    has_other_pattern_ = true;
  }
  return scalar();
}

bool TokenizerJsonReader::number(int64_t value) {
  if (inside() == Section::kVocab) return stop(builder_.add_key(value, key_));
  if (inside() == Section::kAddedToken && key_ == "id") added_token_.id = value;
  return scalar();
}

bool TokenizerJsonReader::number_float(double, const std::string& text) {
  const bool is_id = inside() == Section::kAddedToken && key_ == "id";
  if (is_id) return stop(fmt::format("token id {} is not an integer", text.substr(0, 40)));
  return scalar();
}

bool TokenizerJsonReader::model_string(const std::string& value) {
  if (key_ == "type" && value != "BPE") {
    return stop(fmt::format("the model is {}, expected BPE", value.substr(0, 40)));
  }
  const bool affix = key_ == "continuing_subword_prefix" || key_ == "end_of_word_suffix";
  if (affix && !value.empty()) return stop(key_ + " is not supported");
  return true;
}

bool TokenizerJsonReader::add_merge_key(std::string_view key) {
  if (key.empty() || !append_bytes_of_key(key, &merges_)) {
    return stop(fmt::format("merge {} is not of two tokens in GPT-2's byte alphabet",
                            merge_ends_.size() / 2));
  }
  merge_ends_.push_back(static_cast<uint32_t>(merges_.size()));
  return true;
}

bool TokenizerJsonReader::string(std::string& value) {
  switch (inside()) {
    case Section::kModel:
      return model_string(value);
    case Section::kMerges: {
      const auto keys = keys_of_merge(value);
      return keys ? add_merge_key(keys->first) && add_merge_key(keys->second)
                  : stop(fmt::format("merge {} is not two tokens with a space between them",
                                     merge_ends_.size() / 2));
    }
    case Section::kMergePair:
      return ++num_in_pair_ > 2 || add_merge_key(value);
    case Section::kAddedToken:
      if (key_ == "content") added_token_.name.swap(value);
      return true;
    case Section::kPreTokenizer:
      if (key_ == "Regex" && value != kO200kPattern) has_other_pattern_ = true;
      return true;
    default:
      return scalar();
  }
}

bool TokenizerJsonReader::parse_error(size_t position, const std::string&, const json::exception&) {
  return stop(fmt::format("not well-formed JSON at byte {}", position),
              "the file may be cut short");
}

Result<std::unique_ptr<BpeTables>> TokenizerJsonReader::finish() {
  if (!has_vocab_) return builder_.error("no model.vocab", "expected a byte-level BPE tokenizer");
  // An empty list is one: a tokenizer of bytes. The tokenizers library refuses a missing list too.
  if (!has_merges_)
    return builder_.error("no model.merges", "without them text gets the ids of single bytes");
  if (has_other_pattern_) {
    log_warn(where_ +
             ": its pre_tokenizer is not o200k's; o200k's splitter is used, so ids may "
             "differ from the model's");
  }
  for (const Added& token : added_tokens_) {
    auto ok = builder_.add_named(token.id, token.name, token.special);
    if (!ok) return fail(ok.error());
  }
  if (auto ok = builder_.index_tokens(); !ok) return fail(ok.error());
  builder_.reserve_merges(merge_ends_.size() / 2);
  size_t start = 0;
  for (size_t i = 0; i + 1 < merge_ends_.size(); i += 2) {
    const size_t left_bytes = merge_ends_[i] - start;
    const std::string_view both =
        std::string_view(merges_).substr(start, merge_ends_[i + 1] - start);
    if (auto ok = builder_.add_merge(both, left_bytes); !ok) return fail(ok.error());
    start = merge_ends_[i + 1];
  }
  return builder_.finish(ignore_merges_);
}

}  // namespace

Result<Tokenizer> Tokenizer::from_tokenizer_json(std::string_view text, const std::string& where) {
  if (text.size() > kMaxTokenizerFileBytes) return fail("the file is too large", where);
  TokenizerJsonReader reader(where);
  const bool whole = json::sax_parse(text.begin(), text.end(), &reader);
  if (!reader.status()) return fail(reader.status().error());
  if (!whole) return fail("not well-formed JSON", where);
  auto tables = reader.finish();
  if (!tables) return fail(tables.error());
  return Tokenizer(std::move(*tables));
}

}  // namespace moxie
