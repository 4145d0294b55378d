// moxie chat: a conversation at the terminal. Ctrl-C stops the answer, not the program.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>

#include "apps/chat_session.h"
#include "apps/ranks.h"
#include "apps/startup.h"

namespace moxie {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;
void on_interrupt(int) { g_interrupted = 1; }

constexpr const char* kHelp =
    "/help              this\n"
    "/clear             forget the conversation\n"
    "/effort LEVEL      low, medium or high\n"
    "/reasoning on|off  show what it thinks\n"
    "/history           the conversation so far\n"
    "/stats             the kernels that made the last answer\n"
    "/stats on|off      speed and kernels after each answer, or nothing\n"
    "/quit              leave (also ctrl-D)\n"
    "\"\"\"                begins and ends a text of several lines\n"
    "ctrl-C             stops the answer\n";

class Session {
 public:
  Session(ChatFlags& flags, Engine& engine, const Drafting& drafting)
      : flags_(flags), engine_(engine), drafting_(drafting) {}

  int run() {
    if (auto status = restart(); !status) return report(status.error());
    struct sigaction action = {};
    action.sa_handler = on_interrupt;  // no SA_RESTART: reading a line is interrupted too
    sigaction(SIGINT, &action, nullptr);
    std::fprintf(stderr, "%s: /help for commands, ctrl-D to leave\n", flags_.engine.model.c_str());
    std::string text;
    while (read_message(&text)) {
      if (text.empty()) continue;
      if (text.front() == '/') {
        if (!command(text)) break;
        continue;
      }
      if (int code = reply_to(text); code != kExitDone) return code;
    }
    return kExitDone;
  }

 private:
  Status restart() {
    auto opening = flags_.opening();
    if (!opening) return fail(std::move(opening.error()));
    conversation_ = std::move(*opening);
    return {};
  }

  // One line, or the lines between two """ lines. False at the end of input.
  bool read_message(std::string* text) {
    const bool terminal = isatty(STDIN_FILENO) != 0;
    text->clear();
    if (terminal) std::fputs("> ", stderr);
    std::string line;
    if (!read_line(&line)) return false;
    if (line != "\"\"\"") {
      *text = line;
      return true;
    }
    while (read_line(&line) && line != "\"\"\"") *text += line + "\n";
    return true;
  }

  bool read_line(std::string* line) {
    for (;;) {
      if (std::getline(std::cin, *line)) return true;
      if (g_interrupted == 0) return false;
      g_interrupted = 0;  // ctrl-C at the prompt: a new prompt
      std::cin.clear();
      clearerr(stdin);
      std::fputs("\n> ", stderr);
    }
  }

  bool command(const std::string& text) {
    const auto space = text.find(' ');
    const std::string name = text.substr(0, space);
    const std::string value = space == std::string::npos ? "" : text.substr(space + 1);
    if (name == "/quit" || name == "/exit" || name == "/bye") return false;
    if (name == "/help" || name == "/?") {
      std::fputs(kHelp, stderr);
    } else if (name == "/clear") {
      if (auto status = restart(); !status) show_error(status.error());
    } else if (name == "/effort" && harmony::effort_from_name(value)) {
      flags_.effort = value;
      conversation_.messages.front() =
          harmony::default_system_message(harmony::local_date(), *harmony::effort_from_name(value));
    } else if (name == "/reasoning" && (value == "on" || value == "off")) {
      flags_.show_reasoning = value == "on";
    } else if (name == "/stats" && (value == "on" || value == "off")) {
      flags_.quiet = value == "off";
      flags_.verbose = value == "on";
    } else if (name == "/stats" && value.empty()) {
      print_kernels(engine_);
    } else if (name == "/history") {
      for (const auto& message : conversation_.messages) {
        if (message.role != harmony::Role::kUser && message.role != harmony::Role::kAssistant) {
          continue;
        }
        std::fprintf(stderr, "%s%s: %s\n", std::string(harmony::role_name(message.role)).c_str(),
                     message.channel ? (" (" + *message.channel + ")").c_str() : "",
                     message.text().c_str());
      }
    } else {
      std::fprintf(stderr, "unknown command; /help lists them\n");
    }
    return true;
  }

  int reply_to(const std::string& text) {
    conversation_.messages.push_back(harmony::user_message(text));
    g_interrupted = 0;
    auto reply =
        stream_answer(engine_, conversation_, flags_, drafting_, [] { return g_interrupted == 0; });
    if (!reply) {  // for example, the message does not fit: goes on without the message
      conversation_.messages.pop_back();
      show_error(reply.error());
      return kExitDone;
    }
    if (g_interrupted != 0) std::fputs("(stopped)\n", stderr);
    g_interrupted = 0;
    for (auto& message : reply->messages) conversation_.messages.push_back(std::move(message));
    if (!flags_.quiet) print_statistics(*reply);
    if (flags_.verbose) print_kernels(engine_);
    return kExitDone;
  }

  ChatFlags& flags_;
  Engine& engine_;
  const Drafting drafting_;
  harmony::Conversation conversation_;
};

}  // namespace

Command chat_command() {
  auto o = std::make_shared<ChatFlags>();
  return {.name = "chat",
          .summary = "A conversation at the terminal",
          .example = "moxie chat --reasoning-effort high",
          .declare = [o](Flags& flags) { o->declare(flags); },
          .run =
              [o](const Flags& flags) {
                if (auto status = o->complete(flags); !status)
                  return usage(status.error().message());
                if (const auto exit_status = run_as_rank(&o->engine)) return *exit_status;
                auto engine = Engine::load(o->engine);
                if (!engine) return report(engine.error());
                auto speculation = make_speculation(**engine);
                if (!speculation) return report(speculation.error());
                if (o->verbose) print_startup((*engine)->timeline());
                return Session(*o, **engine, speculation->drafting).run();
              }};
}

}  // namespace moxie
