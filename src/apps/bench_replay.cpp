// moxie bench replay: runs a record's command again, with its switches, and compares.
//
// The command runs as a child process of this program, without a shell. Variables of switches are
// not passed on, since the record has the value of every switch that was set.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/bench_commands.h"
#include "apps/output.h"
#include "core/child_process.h"
#include "lab/record_read.h"

extern char** environ;

namespace moxie {
namespace {

struct ReplayFlags {
  std::vector<std::string> files;
  std::string record;
  bool json = false;
};

// Waits for the program with these words. What it prints goes to stderr. `temporary` is removed
// where a signal ends both.
Result<int> run_again(std::vector<std::string> words, const std::string& temporary) {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string variable = *at;
    if (!variable.starts_with("MOXIE_") || variable.starts_with("MOXIE_LOG=")) {
      variables.push_back(variable);
    }
  }
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return fail(error.message(), "/proc/self/exe", "it is this program's path");
  words.insert(words.begin(), self);
  return run_process_on_stderr(words, variables, [&] {
    std::error_code ignored;
    if (!temporary.empty()) std::filesystem::remove(temporary, ignored);
  });
}

// The words of the record's command, without its output.
Result<std::vector<std::string>> words_of(const Record& record, const std::string& file) {
  static constexpr const char* kCommands[] = {"bench", "score",    "profile", "op bench",
                                              "eval",  "validate", "tune",    "bench serve"};
  const RecordedCommand& command = record.command;
  if (std::find(std::begin(kCommands), std::end(kCommands), command.name) == std::end(kCommands))
    return fail("/command/name: '" + command.name + "' cannot be run again", file);
  std::istringstream names(command.name);
  std::vector<std::string> words{std::istream_iterator<std::string>(names), {}};
  for (const std::string& argument : command.arguments) {
    // A record may come from others: it must not write files here.
    const std::string flag = argument.substr(0, argument.find('='));
    if (is_switch_of_output(flag))
      return fail("/command/arguments: '" + flag + "' writes a file or changes the output", file);
    words.push_back(argument);
  }
  return words;
}

int run(const ReplayFlags& o) {
  if (o.files.size() != 1) return usage("bench replay takes one record");
  auto before = read_record(o.files[0]);
  if (!before) return report(before.error());
  auto words = words_of(*before, o.files[0]);
  if (!words) return report(words.error());
  auto keeper = RecordKeeper::open({.record = o.record});
  if (!keeper) return report(keeper.error());
  std::error_code error;
  const std::string path = !o.record.empty()
                               ? o.record
                               : (std::filesystem::temp_directory_path(error) /
                                  ("moxie-replay-" + std::to_string(::getpid()) + ".json"))
                                     .string();
  words->push_back("--record=" + path);
  log_info(fmt::format("running again: moxie {}", fmt::join(*words, " ")));
  const auto exit_code = run_again(std::move(*words), o.record.empty() ? path : "");
  if (!exit_code) return report(exit_code.error());
  if (*exit_code != kExitDone) {
    if (o.record.empty()) std::filesystem::remove(path, error);
    return report({fmt::format("the command ended with {}", *exit_code), o.files[0],
                   "its message stands above"});
  }
  auto after = read_record(path);
  if (o.record.empty()) std::filesystem::remove(path, error);
  if (!after) return report(after.error());
  const auto comparison = compare_records(*before, *after, o.files[0], "the run now");
  if (!comparison) return report(comparison.error());
  if (o.json) {
    nlohmann::ordered_json document = to_json(*comparison);
    document["record"] = to_json(*after);
    print_document(document);
  } else {
    print_comparison(*comparison, o.files[0], "the run now");
  }
  return comparison->has_regression() ? kExitFailed : kExitDone;
}

}  // namespace

Command bench_replay_command() {
  auto o = std::make_shared<ReplayFlags>();
  return {.name = "replay",
          .summary = "Run a record's command again with its switches, and compare",
          .example = "moxie bench replay before.json --record after.json",
          .declare =
              [o](Flags& flags) {
                flags.positional("record", &o->files, "a file of --record", true);
                flags.text("--record", &o->record, "keep the record of the new run in this file");
                flags.toggle("--json", &o->json, "print one JSON document");
              },
          .run = [o](const Flags&) { return run(*o); }};
}

}  // namespace moxie
