// What `moxie run` and `moxie chat` share: flags, the first messages of a conversation, and the
// streaming of an answer to the terminal.
#pragma once

#include <string>

#include "apps/cli.h"
#include "apps/speculation_flags.h"
#include "engine/chat.h"

namespace moxie {

struct ChatFlags {
  EngineOptions engine;
  SpeculationFlags speculation;
  SamplingOptions sampling;
  uint64_t seed = 0;
  std::string system, effort = "medium", tools, sinks = "on";
  bool show_reasoning = false, json = false, quiet = false, verbose = false;

  void declare(Flags& flags);
  /// Sets defaults that depend on which flags were given.
  Status complete(const Flags& flags);
  /// System and developer messages.
  Result<harmony::Conversation> opening() const;
};

/// Streams an answer to stdout, reasoning (if shown) dimmed; returns the reply.
Result<Reply> stream_answer(Engine& engine, const harmony::Conversation& conversation,
                            const ChatFlags& flags, const Drafting& drafting,
                            const std::function<bool()>& go_on);

/// Prints to stderr a line of tokens, speeds and the finish reason; then the answer's warnings.
void print_statistics(const Reply& reply);
/// Prints to stderr the kernels that ran since the last answer began.
void print_kernels(Engine& engine);

}  // namespace moxie
