// The table of switches: every flag of a command is also an environment variable (MOXIE_ and the
// flag in capitals) and a key of --config FILE.json. A flag overrides the variable, and the
// variable overrides the file. An unknown flag or key is an error with the nearest name. An unknown
// variable is only a warning: other programs set variables too (Kubernetes sets MOXIE_PORT and
// MOXIE_SERVICE_HOST beside a Service of this name).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base.h"
#include "engine/engine.h"

namespace moxie {

/// Exit codes of every command.
inline constexpr int kExitDone = 0, kExitFailed = 1, kExitUsage = 2;

/// The range of a number, both ends included.
template <typename T>
struct Bounds {
  T least, most;
};
/// The greatest count of tokens, rows and the like; no count of a process exceeds it. Counts begin
/// at 0 or 1.
inline constexpr int32_t kMostCount = 1 << 30;
inline constexpr Bounds<int32_t> kFromZero{0, kMostCount}, kFromOne{1, kMostCount};
/// The most sequences at once and tokens a launch: arrays of these sizes are made at the start.
inline constexpr int32_t kMostSeqs = 1 << 16, kMostBatchTokens = 1 << 22;

/// Whether a value has a switch's form: a name of a format, a step, a device. Where it has not,
/// that is a usage error.
using CheckText = std::function<Status(const std::string&)>;

/// Declares one command's switches; the values pointed to must live until the command has run.
class Flags {
 public:
  virtual ~Flags() = default;
  virtual void text(const std::string& flag, std::string* value, const std::string& help) = 0;
  virtual void texts(const std::string& flag, std::vector<std::string>* values,
                     const std::string& help) = 0;  ///< repeatable
  // A number outside its bounds, or NaN, is a usage error that names the bounds.
  virtual void integer(const std::string& flag, int32_t* value, Bounds<int32_t> bounds,
                       const std::string& help) = 0;
  virtual void integers(const std::string& flag, std::vector<int32_t>* values,
                        Bounds<int32_t> bounds, const std::string& help) = 0;  ///< "1,2,3"
  virtual void unsigned64(const std::string& flag, uint64_t* value, Bounds<uint64_t> bounds,
                          const std::string& help) = 0;
  virtual void number(const std::string& flag, float* value, Bounds<float> bounds,
                      const std::string& help) = 0;
  virtual void toggle(const std::string& flag, bool* value, const std::string& help) = 0;
  virtual void choice(const std::string& flag, std::string* value,
                      const std::vector<std::string>& choices, const std::string& help) = 0;
  /// Checks each value of a text switch that was declared.
  virtual void check(const std::string& flag, const CheckText& has_form) = 0;
  virtual void positional(const std::string& name, std::vector<std::string>* values,
                          const std::string& help, bool required) = 0;
  /// Whether a flag was set by any source (flag, variable or file).
  virtual bool given(const std::string& flag) const = 0;
  /// Every switch with its value and the source of the value: "flag", "env", "config" or "default".
  struct Setting {
    std::string name, value, source;
  };
  virtual std::vector<Setting> settings() const = 0;
  /// The words that give a command all values that some source set: "--n-gen=32" for each switch,
  /// then those without a switch.
  virtual std::vector<std::string> arguments() const = 0;
};

struct Command {
  std::string name, summary, example;
  std::function<void(Flags&)> declare;
  std::function<int(const Flags&)> run;
  std::vector<Command> subcommands;
  /// Of a command with subcommands: it also runs without one.
  bool runs_alone = false;
};

/// The help of `--config`, which parsing adds to every command with switches.
inline constexpr const char* kConfigHelp = "JSON file with switches: {\"kv-dtype\": \"bf16\"}";

/// Parses, runs, and returns the exit code.
int run_commands(int argc, char** argv, const std::vector<Command>& commands);

/// Reads switches from one text, split into words as a shell would; variables and files are not
/// looked at. `then` is called with what was read. Fails with the usage fault's text.
Status parse_switches(const std::string& text, const std::function<void(Flags&)>& declare,
                      const std::function<Status(const Flags&)>& then);

/// The switches that every command with a model takes.
void declare_model_flags(Flags& flags, EngineOptions* options);
/// The same without --self-test, for the command that has another of this name.
void declare_untested_model_flags(Flags& flags, EngineOptions* options);
/// The form of a --device.
Status check_device(const std::string& text);
/// The form of STEP=NAME: a step that there is. A row that this build lacks is no fault of usage.
Status check_step(const std::string& text);
void declare_sampling_flags(Flags& flags, SamplingOptions* options, uint64_t* seed);

/// Prints "moxie: error: ..." to stderr; the command goes on.
void show_error(const Error& error);
/// The same for an error that ends the command (set_exit_fault()); returns kExitFailed.
int report(const Error& error);
/// A usage error: prints it and returns kExitUsage.
int usage(const std::string& text);

/// Reads a file, or stdin for "-", up to `limit_bytes`.
Result<std::string> read_text(const std::string& path, uint64_t limit_bytes = uint64_t{1} << 30);

/// "512MiB", "20GiB", "1.5GB": bytes, 1 or more.
Result<uint64_t> parse_bytes(const std::string& text, const char* flag);

// One factory a command, each in a file of its own.
Command run_command();
Command chat_command();
Command score_command();
Command tokenize_command();
Command detokenize_command();
Command harmony_command();
Command inspect_command();
Command kernels_command();
Command plan_command();
Command doctor_command();
Command eval_command();
Command bench_command();
Command bench_serve_command();
Command profile_command();
Command serve_command();
Command tune_command();
Command pull_command();
Command validate_command();

}  // namespace moxie
