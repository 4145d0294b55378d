// moxie harmony render, moxie harmony parse: the conversation format, document by document.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "engine/tokenizer_source.h"
#include "text/harmony_json.h"

namespace moxie {
namespace {

struct HarmonyFlags {
  std::string model = "embedded", tokenizer, mode = "completion";
  bool lines = false, stream = false, json = true;
};

using LineFunction = std::string (*)(std::string_view, const Tokenizer&,
                                     const harmony::LineDefaults&);

// One document (all of stdin), or one a line; a document that fails alone is exit code 1.
int run_lines(const HarmonyFlags& o, LineFunction function) {
  auto tokenizer = tokenizer_from(o.tokenizer.empty() ? o.model : o.tokenizer);
  if (!tokenizer) return report(tokenizer.error());
  auto mode = harmony::render_mode_from_name(o.mode);
  if (!mode) return usage(mode.error().message());
  const harmony::LineDefaults defaults{.mode = *mode, .stream = o.stream};
  if (o.lines) {
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << function(line, **tokenizer, defaults) << '\n';
    }
    return kExitDone;
  }
  auto text = read_text("-");
  if (!text) return report(text.error());
  const std::string answer = function(*text, **tokenizer, defaults);
  std::cout << answer << '\n';
  const auto parsed = nlohmann::json::parse(answer, nullptr, false);
  return parsed.is_object() && parsed.contains("error") ? kExitFailed : kExitDone;
}

void declare_common(Flags& flags, HarmonyFlags* o) {
  flags.text("--model", &o->model, "whose tokenizer to use");
  flags.text("--tokenizer", &o->tokenizer,
             "a tokenizer.json, .tiktoken or .gguf file instead of the model's");
  flags.toggle("--lines", &o->lines, "one JSON document a line in, one a line out");
  flags.toggle("--json", &o->json, "JSON is the only form of output; accepted for uniformity");
}

Command render_command() {
  auto o = std::make_shared<HarmonyFlags>();
  return {.name = "render",
          .summary = "A conversation (openai-harmony's JSON, on stdin) to token ids",
          .example = "moxie harmony render --for completion < conversation.json",
          .declare =
              [o](Flags& flags) {
                declare_common(flags, o.get());
                flags.choice("--for", &o->mode, {"completion", "training", "conversation"},
                             "what the ids are for");
              },
          .run = [o](const Flags&) { return run_lines(*o, harmony::render_line); }};
}

Command parse_command() {
  auto o = std::make_shared<HarmonyFlags>();
  return {.name = "parse",
          .summary = "Token ids ({\"ids\": [...]}, on stdin) to messages",
          .example =
              "echo '{\"ids\": [200005, 17196, 200008, 13225, 200002]}' | moxie harmony parse "
              "--tokenizer o200k_harmony.tiktoken",
          .declare =
              [o](Flags& flags) {
                declare_common(flags, o.get());
                flags.toggle("--stream", &o->stream, "add the parser's state after each token");
              },
          .run = [o](const Flags&) { return run_lines(*o, harmony::parse_line); }};
}

}  // namespace

Command harmony_command() {
  return {.name = "harmony",
          .summary = "Render and parse the harmony format",
          .example = "moxie harmony render --for completion < conversation.json",
          .subcommands = {render_command(), parse_command()}};
}

}  // namespace moxie
