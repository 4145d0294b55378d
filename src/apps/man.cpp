// moxie man: the manual page, in man's macros of roff, written from the table of switches.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "apps/switches.h"

namespace moxie {
namespace {

/// Switches that at least so many commands declare alike are described once.
constexpr int kCommands = 3;

// Text as roff takes it: hyphens as typed, no line that looks like a request.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with(".") || out.starts_with("'") ? "\\&" + out : out;
}

std::string heading_of(const Switch& one) {
  std::string text = ".TP\n.B ";
  if (!one.short_name.empty()) text += roff(one.short_name) + ", ";
  text += roff(one.name);
  if (one.is_closed)
    text += " " + roff(fmt::format("{}", fmt::join(one.values, "|")));
  else if (!one.type.empty())
    text += " " + roff(one.type);
  return text + "\n";
}

std::string described(const Switch& one) {
  std::string text = heading_of(one) + roff(one.help);
  if (one.is_repeatable && one.help.find("repeatable") == std::string::npos) {
    text += "; repeatable";
  }
  if (!one.preset.empty()) text += " (default: " + roff(one.preset) + ")";
  return text + "\n";
}

bool same(const Switch& a, const Switch& b) {
  return a.name == b.name && a.help == b.help && a.preset == b.preset && a.type == b.type;
}

int num_commands_with(const Switch& one, const std::vector<CommandSwitches>& all) {
  return static_cast<int>(std::count_if(all.begin(), all.end(), [&](const CommandSwitches& other) {
    const Switch* found = other.find(one.name);
    return found != nullptr && same(*found, one);
  }));
}

std::string command_section(const CommandSwitches& one, const std::vector<CommandSwitches>& all) {
  std::string text = fmt::format(".SS moxie {}\n{}.\n", roff(one.path), roff(one.command->summary));
  if (!one.positional.name.empty()) {
    const auto& [name, help, required] = one.positional;
    text += fmt::format(".TP\n.I {}\n{}{}\n", roff(name), roff(help), required ? "; required" : "");
  }
  std::string common;
  for (const Switch& flag : one.switches) {
    if (num_commands_with(flag, all) < kCommands)
      text += described(flag);
    else
      common += (common.empty() ? "" : ", ") + roff(flag.name);
  }
  if (!common.empty()) text += ".PP\nAs described below: " + common + ".\n";
  if (!one.command->example.empty()) {
    text += fmt::format(".PP\n.nf\n    {}\n.fi\n", roff(one.command->example));
  }
  return text;
}

std::string common_section(const std::vector<CommandSwitches>& all) {
  std::string text = ".SH SWITCHES OF SEVERAL COMMANDS\n";
  std::vector<Switch> listed;
  for (const CommandSwitches& one : all) {
    for (const Switch& flag : one.switches) {
      const bool known = std::any_of(listed.begin(), listed.end(),
                                     [&](const Switch& other) { return same(other, flag); });
      if (known || num_commands_with(flag, all) < kCommands) continue;
      listed.push_back(flag);
      text += described(flag);
    }
  }
  return text;
}

constexpr const char* kHead = R"(.SH NAME
moxie \- runs and serves mixture\-of\-experts models in the MX formats
.SH SYNOPSIS
.B moxie
.I COMMAND
.RI [ SWITCH... ]
.br
.B moxie \-\-version
.RB [ \-\-json ]
.SH DESCRIPTION
Moxie runs gpt\-oss models, whose experts are stored in MXFP4, on CPUs and on NVIDIA GPUs, and
serves them over HTTP with the interfaces of OpenAI and Anthropic. It needs no switches: without
.B \-\-model
it answers with a small model that is part of the program.
.PP
Every switch is also an environment variable
.RB ( \-\-kv\-dtype
is
.BR MOXIE_KV_DTYPE )
and a key of the file that
.B \-\-config
names. A switch overrides the variable, and the variable overrides the file.
.SH COMMANDS
)";
constexpr const char* kTail = R"(.SH EXIT STATUS
0: done. 1: failed; the message says what, where, and what to do. 2: wrong usage.
.SH ENVIRONMENT
.TP
.B MOXIE_LOG
debug, info, warn or error: what is logged on stderr.
.TP
.B MOXIE_NCCL_LIBRARY
The file of NCCL, libnccl.so.2, for processes with a GPU each, where the loader does not find it.
.TP
.B MOXIE_*
The switches, see above. An unknown name is a warning.
.TP
.BR HF_HOME ", " HF_HUB_CACHE ", " HF_TOKEN ", " HF_ENDPOINT ", " HF_HUB_OFFLINE
The Hugging Face cache and hub, as huggingface_hub reads them.
.SH FILES
.TP
.I ~/.cache/huggingface/hub
Where
.B moxie pull
puts checkpoints, and where
.B \-\-model
looks repositories up.
)";

std::string manual(const std::vector<Command>& commands) {
  const auto all = switches_of(commands);
  std::string text = ".\\\" Written by `moxie man`.\n";
  text += fmt::format(".TH MOXIE 1 \"\" \"Moxie {}\" \"User Commands\"\n.nh\n", MOXIE_VERSION);
  text += kHead;
  for (const CommandSwitches& one : all) text += command_section(one, all);
  return text + common_section(all) + kTail;
}

}  // namespace

Command man_command(const std::vector<Command>* commands) {
  return {.name = "man",
          .summary = "The manual page, to stdout",
          .example = "moxie man | man -l -",
          .run = [commands](const Flags&) {
            std::fputs(manual(*commands).c_str(), stdout);
            return kExitDone;
          }};
}

}  // namespace moxie
