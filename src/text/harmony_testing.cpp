#include "text/harmony_testing.h"

#include "core/base.h"
#include "text/utf8.h"

namespace moxie::testing {
namespace {

using harmony::Event;
using harmony::Message;

// GPT-2's byte alphabet: bytes without a printable character of their own follow U+0100.
std::string byte_key(int byte) {
  const auto is_printable = [](int b) { return (b > 32 && b < 127) || (b > 160 && b != 173); };
  char32_t code_point = static_cast<char32_t>(byte);
  if (!is_printable(byte)) {
    code_point = 0x100;
    for (int b = 0; b < byte; ++b) code_point += is_printable(b) ? 0 : 1;
  }
  std::string key;
  append_utf8(code_point, &key);
  return key;
}

void check_text(const std::optional<std::string>& text) { CHECK(!text || is_valid_utf8(*text)); }

// Replays events into contents.
class Replay {
 public:
  void apply(const std::vector<Event>& events, const harmony::Parser& parser) {
    for (const Event& event : events) {
      CHECK(is_valid_utf8(event.text));
      switch (event.kind) {
        case Event::Kind::kOpen:
          CHECK(!open_ && event.message_idx == contents_.size());
          contents_.emplace_back();
          open_ = true;
          break;
        case Event::Kind::kText:
          CHECK(open_ && event.message_idx + 1 == contents_.size() && !event.text.empty());
          contents_.back() += event.text;
          break;
        case Event::Kind::kClose:
          CHECK(open_ && event.message_idx + 1 == contents_.size());
          contents_.back() += event.text;
          open_ = false;
          break;
      }
    }
    CHECK(open_ == parser.has_open_message());
    CHECK(contents_.size() == parser.messages().size() + (open_ ? 1 : 0));
    if (open_) CHECK(contents_.back() == parser.current_content());
  }
  const std::vector<std::string>& contents() const { return contents_; }

 private:
  std::vector<std::string> contents_;
  bool open_ = false;
};

}  // namespace

const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = [] {
    std::vector<std::string> tokens;
    std::vector<int32_t> types;
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back(byte_key(byte));
      types.push_back(static_cast<int32_t>(GgufTokenType::kNormal));
    }
    for (const char* name : kControlNames) {
      tokens.emplace_back(name);
      types.push_back(static_cast<int32_t>(GgufTokenType::kControl));
    }
    auto made = Tokenizer::from_gguf_parts(tokens, types, {});
    CHECK(made.has_value(), made.error().message());
    return std::move(*made);
  }();
  return tokenizer;
}

harmony::Parser parse_checked(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                              const harmony::ParserOptions& options) {
  const auto control = harmony::ControlTokens::find(tokenizer);
  CHECK(control.has_value(), control.error().message());
  harmony::Parser parser(tokenizer, *control, options);
  Replay replay;
  std::string bytes;
  for (const int32_t id : ids) {
    replay.apply(parser.process(id), parser);
    const std::string_view token = tokenizer.token_bytes(id);
    bytes += token.empty() ? "\xEF\xBF\xBD" : token;
  }
  replay.apply(parser.finish(), parser);
  CHECK(parser.finish().empty());

  CHECK(parser.state() != harmony::ParserState::kContent);
  std::string raw;
  for (size_t i = 0; i < parser.messages().size(); ++i) {
    const harmony::ParsedMessage& parsed = parser.messages()[i];
    const Message& message = parsed.message;
    CHECK(message.content.size() == 1 && message.text() == replay.contents()[i]);
    CHECK(!parsed.repaired || !parser.warnings().empty());
    check_text(message.text());
    check_text(message.name);
    check_text(message.channel);
    check_text(message.recipient);
    check_text(message.content_type);
    raw += parsed.raw;
  }
  raw += parser.trailing_raw();
  CHECK(raw == bytes);
  for (const std::string& warning : parser.warnings()) check_text(warning);
  return parser;
}

}  // namespace moxie::testing
