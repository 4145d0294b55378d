// Fuzzes harmony. The first byte chooses:
//   0, 1, 2: the rest are ids for the parser (0 a model's output, 1 a transcript, 2 with the
//            leniency and literalness of the second byte), see ids_of;
//   3: the rest is a conversation's JSON, rendered in every mode, and parsed back;
//   4, 5: the rest is a document of the render or the parse command.
#include <cstdint>
#include <string>

#include "core/base.h"
#include "text/harmony_json.h"
#include "text/harmony_testing.h"

namespace {

using namespace moxie;
using namespace moxie::harmony;
using moxie::testing::byte_tokenizer;
using moxie::testing::parse_checked;

// Bytes from 0xf0 on stand for control tokens and ids in no table, all others for themselves. No
// header has UTF-8 with these bytes.
std::vector<int32_t> ids_of(const uint8_t* data, size_t size) {
  constexpr uint8_t kFirst = 0xf0;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < size; ++i) {
    if (data[i] < kFirst) {
      ids.push_back(data[i]);
    } else if (data[i] < kFirst + testing::kNumControlIds) {
      ids.push_back(testing::kFirstControlId + data[i] - kFirst);
    } else {
      ids.push_back(data[i] == 0xff ? -1 : 100'000);
    }
  }
  return ids;
}

void render_and_parse(std::string_view json) {
  const auto conversation = read_conversation(json);
  if (!conversation) {
    CHECK(!conversation.error().what.empty());
    return;
  }
  const auto again = read_conversation(conversation_to_json(*conversation));
  CHECK(again.has_value() && *again == *conversation);
  for (const auto mode :
       {RenderMode::kCompletion, RenderMode::kTraining, RenderMode::kConversation}) {
    const auto ids = render(*conversation, mode, {.auto_drop_analysis = false}, byte_tokenizer());
    if (!ids) continue;
    const Parser parser = parse_checked(byte_tokenizer(), *ids, {.role = std::nullopt});
    CHECK(parser.messages().size() >= conversation->messages.size() ||
          parser.refused_after().has_value());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  set_log_level(LogLevel::kOff);
  if (size < 2) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      parse_checked(byte_tokenizer(), ids_of(data + 1, size - 1), {});
      break;
    case 1:
      parse_checked(byte_tokenizer(), ids_of(data + 1, size - 1), {.role = std::nullopt});
      break;
    case 2: {
      ParserOptions options;
      options.role = static_cast<Role>((data[1] >> 2) % 5);
      options.strict = (data[1] & 1) != 0;
      options.repair_answers = (data[1] & 2) != 0;
      options.drop_stray_control = (data[1] & 32) != 0;
      options.known_recipients = {"functions.f", "functions.shell"};
      parse_checked(byte_tokenizer(), ids_of(data + 2, size - 2), options);
      break;
    }
    case 3:
      render_and_parse(text);
      break;
    case 4:
      CHECK(render_line(text, byte_tokenizer()).front() == '{');
      break;
    default:
      CHECK(parse_line(text, byte_tokenizer(), {.stream = true}).front() == '{');
      break;
  }
  return 0;
}
