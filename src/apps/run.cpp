// moxie run: one answer.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/chat_session.h"
#include "apps/kernels_json.h"
#include "apps/output.h"
#include "apps/ranks.h"
#include "apps/startup.h"
#include "engine/drafts_json.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct RunFlags : ChatFlags {
  std::vector<std::string> prompt;
};

// Ctrl-C once: the answer ends at the next token and the device is left clean. Twice: the process
// ends at once.
volatile std::sig_atomic_t g_interrupted = 0;
void on_interrupt(int) { g_interrupted = 1; }
bool go_on() { return g_interrupted == 0; }
void catch_interrupt() {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}
int interrupted() {
  return report({"interrupted", "run", "what was answered so far stands above"});
}

Result<std::string> prompt_text(const std::vector<std::string>& words) {
  if (words.size() == 1 && words.front() == "-") return read_text("-");
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

Json to_json(Engine& engine, const Reply& reply) {
  Json calls = Json::array(), launches = Json::object();
  for (const ToolCall& call : reply.tool_calls) {
    calls.push_back(
        {{"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  for (const auto& count : engine.kernels().counts()) {
    launches[count.name] = count.launches;
  }
  const Timing& t = reply.timing;
  Json document = {{"content", reply.content},
                   {"reasoning", reply.reasoning},
                   {"finish_reason", reply.finish_reason},
                   {"usage",
                    {{"prompt_tokens", t.prompt_tokens},
                     {"completion_tokens", t.completion_tokens},
                     {"total_tokens", t.prompt_tokens + t.completion_tokens}}},
                   {"timing",
                    {{"load_s", t.load_s},
                     {"prefill_s", t.prefill_s},
                     {"decode_s", t.decode_s},
                     {"prefill_tok_s", t.prefill_tok_s()},
                     {"decode_tok_s", t.decode_tok_s()},
                     {"startup", startup_json(engine.timeline())}}},
                   {"kernels", kernels_json(engine.kernels().counts())},
                   {"tuning", engine.tuning().text()},
                   {"self_test", engine.self_test().text()},
                   {"launches", std::move(launches)}};
  if (reply.drafts.num_positions > 0) document["speculation"] = drafts_json(reply.drafts);
  if (!calls.empty()) document["tool_calls"] = std::move(calls);
  if (!reply.warnings.empty()) document["warnings"] = reply.warnings;
  return document;
}

int run(RunFlags& o, const Flags& flags) {
  if (o.prompt.empty()) return usage("run: no prompt; give one, or - to read stdin");
  if (auto status = o.complete(flags); !status) return usage(status.error().message());
  if (const auto exit_status = run_as_rank(&o.engine)) return *exit_status;
  auto text = prompt_text(o.prompt);
  if (!text) return report_to_ranks(o.engine, text.error());
  auto conversation = o.opening();
  if (!conversation) return report_to_ranks(o.engine, conversation.error());
  conversation->messages.push_back(harmony::user_message(std::move(*text)));
  o.engine.show_progress = o.engine.show_progress && !o.json;
  auto engine = Engine::load(o.engine);
  if (!engine) return report(engine.error());
  auto speculation = make_speculation(**engine);
  if (!speculation) return report(speculation.error());
  if (o.verbose && !o.json) print_startup((*engine)->timeline());
  catch_interrupt();
  if (o.json) {
    auto reply = answer(
        **engine, *conversation, o.sampling, [](ReplyPart, std::string_view) { return go_on(); },
        speculation->drafting);
    if (!reply) return report(reply.error());
    print_document(to_json(**engine, *reply));
    return go_on() ? kExitDone : interrupted();
  }
  auto reply = stream_answer(**engine, *conversation, o, speculation->drafting, go_on);
  if (!reply) return report(reply.error());
  if (!o.quiet) {
    print_statistics(*reply);
    print_kernels(**engine);
  }
  return go_on() ? kExitDone : interrupted();
}

}  // namespace

Command run_command() {
  auto o = std::make_shared<RunFlags>();
  return {.name = "run",
          .summary = "One answer, streamed",
          .example = "moxie run --show-reasoning \"What is 127 + 4816?\"",
          .declare =
              [o](Flags& flags) {
                flags.positional("PROMPT", &o->prompt, "the question; - reads stdin", false);
                o->declare(flags);
                flags.toggle("--json", &o->json, "print one JSON document");
              },
          .run = [o](const Flags& flags) { return run(*o, flags); }};
}

}  // namespace moxie
