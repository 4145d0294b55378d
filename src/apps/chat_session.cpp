// The opening of a conversation, and terminal output.
#include "apps/chat_session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <map>

#include "engine/drafts_json.h"

namespace moxie {
namespace {

// The embedded model is small, so greedy suits it. Others get gpt-oss's recommended 1.0.
float default_temperature(const std::string& model) { return model == "embedded" ? 0.0f : 1.0f; }

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

void ChatFlags::declare(Flags& flags) {
  declare_model_flags(flags, &engine);
  speculation.declare(flags);
  declare_sampling_flags(flags, &sampling, &seed);
  flags.text("--system", &system, "instructions (harmony's developer message)");
  flags.choice("--reasoning-effort", &effort, {"low", "medium", "high"}, "how much to think");
  flags.text("--tools", &tools, "JSON file with function tools in OpenAI's form");
  flags.choice("--sinks", &sinks, {"on", "off"}, "test switch: off must visibly break the text");
  flags.toggle("--show-reasoning", &show_reasoning, "print the reasoning too");
  flags.toggle("--quiet", &quiet, "no statistics on stderr");
  flags.toggle("-v,--verbose", &verbose, "print how long the start took, and chat's kernels");
}

Status ChatFlags::complete(const Flags& flags) {
  engine.sinks = sinks == "on";
  if (!flags.given("--temperature")) sampling.temperature = default_temperature(engine.model);
  if (flags.given("--seed")) sampling.seed = seed;
  if (sampling.temperature < 0) return fail("must be 0 or more", "--temperature");
  if (!(sampling.top_p > 0 && sampling.top_p <= 1)) return fail("must be in (0, 1]", "--top-p");
  if (sampling.max_tokens < 0) return fail("must be 0 or more", "--max-tokens");
  if (!(sampling.repetition_penalty > 0)) return fail("must be above 0", "--repetition-penalty");
  engine.show_progress = !quiet;
  if (auto status = speculation.complete(flags); !status) return status;
  engine.speculation = speculation.options;
  engine.max_logit_rows = 1 + most_drafts(engine.speculation);
  return {};
}

Result<harmony::Conversation> ChatFlags::opening() const {
  harmony::Conversation conversation;
  conversation.messages.push_back(
      harmony::default_system_message(harmony::local_date(), *harmony::effort_from_name(effort)));
  std::vector<harmony::ToolDescription> functions;
  if (!tools.empty()) {
    auto text = read_text(tools, 16 << 20);
    if (!text) return fail(std::move(text.error()));
    auto parsed = parse_function_tools(*text, tools);
    if (!parsed) return fail(std::move(parsed.error()));
    functions = std::move(*parsed);
  }
  std::optional<std::string> instructions;
  if (!system.empty()) instructions = system;
  if (auto message = harmony::developer_message(instructions, std::move(functions))) {
    conversation.messages.push_back(std::move(*message));
  }
  return conversation;
}

Result<Reply> stream_answer(Engine& engine, const harmony::Conversation& conversation,
                            const ChatFlags& flags, const Drafting& drafting,
                            const std::function<bool()>& go_on) {
  const bool color = isatty(STDOUT_FILENO) != 0;
  bool dim = false, any = false;
  ReplyPart previous = ReplyPart::kContent;
  engine.kernels().reset_counts();  // the statistics are of this answer
  const auto undim = [&] {
    if (dim) put(color ? "\033[0m\n\n" : "\n\n");
    dim = false;
  };
  auto reply = answer(
      engine, conversation, flags.sampling,
      [&](ReplyPart part, std::string_view text) {
        if (part == ReplyPart::kReasoning) {
          if (flags.show_reasoning) {
            if (!dim) put(color ? "\033[2m" : "[reasoning] ");
            dim = true;
            put(text);
          }
          return go_on();
        }
        undim();
        if (part == ReplyPart::kToolName) {
          put(any ? "\n" : "");
          put("[call] ");
        } else if (part == ReplyPart::kToolArguments && previous == ReplyPart::kToolName) {
          put(" ");
        }
        put(text);
        any = true;
        previous = part;
        return go_on();
      },
      drafting);
  undim();
  put("\n");
  return reply;
}

void print_kernels(Engine& engine) {
  std::string line = "kernels:";
  for (const auto& count : engine.kernels().counts()) {
    const std::string entry = fmt::format(" {} x{}", count.name, count.launches);
    if (line.size() + entry.size() > 100) {
      std::fprintf(stderr, "%s\n", line.c_str());
      line = "        ";
    }
    line += entry;
  }
  std::fprintf(stderr, "%s\n", line.c_str());
  if (engine.tuning().tuning != nullptr)
    std::fprintf(stderr, "tuning:  %s\n", engine.tuning().text().c_str());
  if (!engine.self_test().all_proven() || !engine.self_test().faults.empty())
    std::fprintf(stderr, "proven:  %s\n", engine.self_test().text().c_str());
}

void print_statistics(const Reply& reply) {
  const Timing& t = reply.timing;
  std::fprintf(stderr,
               "\nprompt %lld tokens at %.0f tok/s, answer %lld tokens at %.0f tok/s (%s), loaded "
               "in %.2f s\n",
               static_cast<long long>(t.prompt_tokens), t.prefill_tok_s(),
               static_cast<long long>(t.completion_tokens), t.decode_tok_s(),
               reply.finish_reason.c_str(), t.load_s);
  if (const DraftCounts& drafts = reply.drafts; drafts.num_positions > 0) {
    std::fprintf(stderr, "speculation: %s\n", drafts_text(drafts).c_str());
  }
  for (const std::string& warning : reply.warnings) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
}

}  // namespace moxie
