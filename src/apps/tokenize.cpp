// moxie tokenize, moxie detokenize: text to ids and back.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/output.h"
#include "engine/tokenizer_source.h"

namespace moxie {
namespace {

using Json = nlohmann::json;

struct TokenizeFlags {
  std::string model = "embedded", tokenizer, text, special = "none";
  std::vector<int32_t> ids;
  bool lines = false, json = false;

  Result<std::unique_ptr<const Tokenizer>> open() const {
    return tokenizer_from(tokenizer.empty() ? model : tokenizer);
  }
  SpecialMode mode() const { return special == "all" ? SpecialMode::kAll : SpecialMode::kNone; }
};

std::string joined(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : " ") + std::to_string(id);
  return text;
}

int tokenize_lines(const Tokenizer& tokenizer, SpecialMode mode) {
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    const Json text = Json::parse(line, nullptr, false);
    if (!text.is_string()) {
      return report({fmt::format("line {} is not a JSON string", number), "stdin",
                     "--lines takes one JSON string a line"});
    }
    std::cout << json_text(Json(tokenizer.encode(text.get_ref<const std::string&>(), mode)))
              << '\n';
  }
  return kExitDone;
}

// A JSON list of ids, {"ids": [...]}, or numbers between blanks.
Result<std::vector<int32_t>> parse_ids(const std::string& text, const std::string& where) {
  Json document = Json::parse(text, nullptr, false);
  if (document.is_object() && document.contains("ids")) document = document["ids"];
  std::vector<int32_t> ids;
  const auto take = [&](const Json& value) {
    if (!value.is_number_integer()) return false;
    const auto id = value.get<int64_t>();
    if (id < 0 || id > INT32_MAX) return false;
    ids.push_back(static_cast<int32_t>(id));
    return true;
  };
  if (document.is_array()) {
    for (const Json& value : document) {
      if (!take(value)) return fail("not a list of token ids", where);
    }
    return ids;
  }
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && !std::isspace(static_cast<unsigned char>(text[i])) && text[i] != ',') {
      word += text[i];
      continue;
    }
    if (!word.empty() && !take(Json::parse(word, nullptr, false))) {
      return fail("'" + word + "' is not a token id", where);
    }
    word.clear();
  }
  return ids;
}

int detokenize_lines(const Tokenizer& tokenizer) {
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    auto ids = parse_ids(line, fmt::format("stdin line {}", number));
    if (!ids) return report(ids.error());
    auto text = tokenizer.decode(*ids);
    if (!text) return report(text.error());
    std::cout << json_text(Json(*text)) << '\n';
  }
  return kExitDone;
}

}  // namespace

Command tokenize_command() {
  auto o = std::make_shared<TokenizeFlags>();
  return {.name = "tokenize",
          .summary = "Text to token ids",
          .example = "echo 'hello world' | moxie tokenize --tokenizer tokenizer.json --json",
          .declare =
              [o](Flags& flags) {
                flags.text("--model", &o->model, "whose tokenizer to use");
                flags.text("--tokenizer", &o->tokenizer,
                           "a tokenizer.json, .tiktoken or .gguf file instead of the model's");
                flags.text("--text", &o->text, "the text; default: stdin");
                flags.choice("--special", &o->special, {"none", "all"},
                             "whether strings such as <|end|> mean the special tokens");
                flags.toggle("--lines", &o->lines, "one JSON string a line in, one id list out");
                flags.toggle("--json", &o->json, "print {\"ids\": [...]}");
              },
          .run =
              [o](const Flags& flags) {
                auto tokenizer = o->open();
                if (!tokenizer) return report(tokenizer.error());
                if (o->lines) return tokenize_lines(**tokenizer, o->mode());
                if (!flags.given("--text")) {
                  auto text = read_text("-");
                  if (!text) return report(text.error());
                  o->text = std::move(*text);
                }
                const auto ids = (*tokenizer)->encode(o->text, o->mode());
                std::cout << (o->json ? Json{{"ids", ids}}.dump() : joined(ids)) << '\n';
                return kExitDone;
              }};
}

Command detokenize_command() {
  auto o = std::make_shared<TokenizeFlags>();
  return {.name = "detokenize",
          .summary = "Token ids to text",
          .example = "moxie detokenize --ids 24912,2375 --tokenizer tokenizer.json",
          .declare =
              [o](Flags& flags) {
                flags.text("--model", &o->model, "whose tokenizer to use");
                flags.text("--tokenizer", &o->tokenizer,
                           "a tokenizer.json, .tiktoken or .gguf file instead of the model's");
                flags.integers("--ids", &o->ids, {0, INT32_MAX},
                               "the ids; default: stdin (a JSON list or numbers)");
                flags.toggle("--lines", &o->lines, "one id list a line in, one JSON string out");
                flags.toggle("--json", &o->json, "print {\"text\": ...}");
              },
          .run =
              [o](const Flags& flags) {
                auto tokenizer = o->open();
                if (!tokenizer) return report(tokenizer.error());
                if (o->lines) return detokenize_lines(**tokenizer);
                if (!flags.given("--ids")) {
                  auto text = read_text("-");
                  if (!text) return report(text.error());
                  auto ids = parse_ids(*text, "stdin");
                  if (!ids) return report(ids.error());
                  o->ids = std::move(*ids);
                }
                auto text = (*tokenizer)->decode(o->ids);
                if (!text) return report(text.error());
                if (o->json)
                  std::cout << json_text(Json{{"text", *text}}) << '\n';
                else
                  std::cout << *text << std::flush;
                return kExitDone;
              }};
}

}  // namespace moxie
