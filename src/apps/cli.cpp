// CLI11 behind the table of switches; the only file that includes it.
#include "apps/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "apps/output.h"
#include "apps/version.h"
#include "core/exit_fault.h"
#include "core/nearest.h"
#include "engine/kv_dtype.h"
#include "kernels/registry.h"
#include "lab/commit.h"

extern char** environ;

namespace moxie {
namespace {

std::string variable_of(const std::string& flag) {  // "--kv-dtype" to "MOXIE_KV_DTYPE"
  std::string name = "MOXIE_";
  for (const char c : flag.substr(flag.find_first_not_of('-'))) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::string name_of(const std::string& flag) {  // "-p,--prompt" is --prompt
  return flag.substr(flag.rfind(',') + 1);
}

std::string did_you_mean(const std::string& word, const std::set<std::string>& known) {
  const std::string name = near_name(word, std::vector<std::string>(known.begin(), known.end()));
  return name.empty() ? "" : "; did you mean " + name + "?";
}

class AppFlags final : public Flags {
 public:
  AppFlags(CLI::App* app, std::vector<std::string> arguments)
      : app_(app), arguments_(std::move(arguments)) {}

  void text(const std::string& flag, std::string* value, const std::string& help) override {
    record(flag, app_->add_option(flag, *value, help)->capture_default_str());
  }
  void texts(const std::string& flag, std::vector<std::string>* values,
             const std::string& help) override {
    record(flag, app_->add_option(flag, *values, help)->allow_extra_args(false));
  }
  void integer(const std::string& flag, int32_t* value, Bounds<int32_t> bounds,
               const std::string& help) override {
    bounded(flag, value, bounds, help)->capture_default_str();
  }
  void integers(const std::string& flag, std::vector<int32_t>* values, Bounds<int32_t> bounds,
                const std::string& help) override {
    bounded(flag, values, bounds, help)->delimiter(',')->allow_extra_args(false);
  }
  void unsigned64(const std::string& flag, uint64_t* value, Bounds<uint64_t> bounds,
                  const std::string& help) override {
    bounded(flag, value, bounds, help)->capture_default_str();
  }
  void number(const std::string& flag, float* value, Bounds<float> bounds,
              const std::string& help) override {
    bounded(flag, value, bounds, help)->capture_default_str();
  }
  void toggle(const std::string& flag, bool* value, const std::string& help) override {
    record(flag, app_->add_flag(flag, *value, help));
    toggles_.insert(name_of(flag));
  }
  void choice(const std::string& flag, std::string* value, const std::vector<std::string>& choices,
              const std::string& help) override {
    record(
        flag,
        app_->add_option(flag, *value, help)->check(CLI::IsMember(choices))->capture_default_str());
  }
  void check(const std::string& flag, const CheckText& has_form) override {
    options_.at(flag)->check([has_form](const std::string& text) -> std::string {
      auto status = has_form(text);
      if (status) return "";
      status.error().where.clear();  // CLI11 names the switch
      return status.error().message();
    });
  }
  void positional(const std::string& name, std::vector<std::string>* values,
                  const std::string& help, bool required) override {
    positional_ = app_->add_option(name, *values, help);
    if (required) positional_->required();
  }
  bool given(const std::string& flag) const override {
    const auto* option = app_->get_option_no_throw(flag);
    return option != nullptr && option->count() > 0;
  }

  std::vector<Setting> settings() const override {
    std::vector<Setting> list;
    for (const auto& [flag, option] : options_) {
      Setting setting{flag, "", "default"};
      for (const std::string& value : option->results()) {
        setting.value += (setting.value.empty() ? "" : ",") + value;
      }
      if (option->count() == 0)
        setting.value = option->get_default_str();
      else if (from_config_.contains(flag))
        setting.source = "config";
      else
        setting.source = on_command_line(option) ? "flag" : "env";
      list.push_back(std::move(setting));
    }
    return list;
  }

  std::vector<std::string> arguments() const override {
    std::vector<std::string> words;
    for (const auto& [flag, option] : options_) {
      const std::string name = (flag.starts_with("-") ? "" : "--") + flag;
      for (const std::string& value : option->results())
        words.push_back(fmt::format("{}={}", name, value));
    }
    if (positional_ != nullptr) {
      for (const std::string& value : positional_->results()) words.push_back(value);
    }
    return words;
  }
  /// A switch that the command line has before `word`; empty: none.
  std::string given_before(const std::string& word) const {
    const auto end = std::find(arguments_.begin(), arguments_.end(), word);
    for (const auto& [flag, option] : options_) {
      const auto is_it = [&, known = option](const std::string& argument) {
        return argument.starts_with("-") &&
               known->check_name(argument.substr(0, argument.find('=')));
      };
      if (option->count() > 0 && std::any_of(arguments_.begin(), end, is_it)) return flag;
    }
    return "";
  }

  /// Names the variables in the help. Only help is read after this: CLI11 reads the variables of
  /// all commands, also of those that do not run.
  void show_variables() {
    for (const auto& [flag, option] : options_) {
      if (flag.starts_with("--")) option->envname(variable_of(flag));
    }
  }
  /// Applies the variables of switches that no flag set. All commands see a variable: where another
  /// command's switch of the same name takes words (`takes_words`) and this one's is a toggle, a
  /// word is not for this command.
  Status apply_variables(const std::set<std::string>& takes_words) {
    for (const auto& [flag, option] : options_) {
      const std::string name = variable_of(flag);
      const char* text = flag.starts_with("--") ? std::getenv(name.c_str()) : nullptr;
      if (text == nullptr || *text == '\0' || option->count() > 0) continue;
      try {
        option->add_result(text);
        option->run_callback();
      } catch (const CLI::ParseError& error) {
        if (!toggles_.contains(flag) || !takes_words.contains(flag))
          return fail(error.what(), name + "=" + text);
        option->clear();
      }
    }
    return {};
  }
  void add_config() { app_->add_option("--config", config_path_, kConfigHelp); }
  /// Applies the keys of --config FILE.json for switches that neither a flag nor a variable set.
  Status apply_config() {
    if (config_path_.empty()) return {};
    auto text = read_text(config_path_, 1 << 20);
    if (!text) return fail(std::move(text.error()));
    const auto document = nlohmann::json::parse(*text, nullptr, false, true);
    if (!document.is_object()) return fail("expected a JSON object of switches", config_path_);
    for (const auto& [key, value] : document.items()) {
      std::string flag = "--" + key;
      std::replace(flag.begin() + 2, flag.end(), '_', '-');
      const auto found = options_.find(flag);
      if (found == options_.end()) {
        return fail("unknown key '" + key + "'" + did_you_mean(flag, names()), config_path_);
      }
      CLI::Option* option = found->second;
      if (option->count() > 0) continue;
      const auto add = [&](const nlohmann::json& one) {
        option->add_result(one.is_string() ? one.get<std::string>() : one.dump());
      };
      if (value.is_array())
        std::for_each(value.begin(), value.end(), add);
      else
        add(value);
      option->run_callback();
      from_config_.insert(flag);
    }
    return {};
  }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& [flag, option] : options_) all.insert(flag);
    return all;
  }
  const std::set<std::string>& toggles() const { return toggles_; }

 private:
  // An option of numbers; each is checked when it is read, from any source.
  template <typename T, typename Number>
  CLI::Option* bounded(const std::string& flag, T* value, Bounds<Number> bounds,
                       const std::string& help) {
    const auto check = [bounds](const std::string& text) -> std::string {
      Number number{};
      const char* const end = text.data() + text.size();
      const auto [read_to, error] = std::from_chars(text.data(), end, number);
      const bool is_number = error == std::errc() && read_to == end;
      if (is_number && number >= bounds.least && number <= bounds.most) return "";
      return fmt::format("must be a number from {} to {}, not '{}'", bounds.least, bounds.most,
                         text);
    };
    CLI::Option* option = app_->add_option(flag, *value, help)->check(check);
    record(flag, option);
    return option;
  }
  bool on_command_line(const CLI::Option* option) const {
    return std::any_of(arguments_.begin(), arguments_.end(), [&](const std::string& argument) {
      const std::string name = argument.substr(0, argument.find('='));
      return name.size() > 1 && name[0] == '-' && option->check_name(name);
    });
  }
  void record(const std::string& flag, CLI::Option* option) { options_[name_of(flag)] = option; }
  CLI::App* app_;
  std::map<std::string, CLI::Option*> options_;
  std::set<std::string> from_config_, toggles_;
  CLI::Option* positional_ = nullptr;
  std::vector<std::string> arguments_;
  std::string config_path_;
};

struct Entry {
  const Command* command;
  CLI::App* app;
  std::unique_ptr<AppFlags> flags;
};

void add_command(CLI::App& parent, const Command& command,
                 const std::vector<std::string>& arguments, std::vector<Entry>& entries) {
  CLI::App* app = parent.add_subcommand(command.name, command.summary);
  if (!command.example.empty()) app->footer("Example:\n  " + command.example);
  auto flags = std::make_unique<AppFlags>(app, arguments);
  if (command.declare) {
    command.declare(*flags);
    flags->add_config();
  }
  for (const Command& sub : command.subcommands) add_command(*app, sub, arguments, entries);
  if (!command.subcommands.empty()) app->require_subcommand(command.runs_alone ? 0 : 1, 1);
  entries.push_back({&command, app, std::move(flags)});
}

// Kubernetes gives a pod, for each Service of its namespace, NAME_PORT with a URL and some more
// variables: beside a Service called moxie they look like switches. MOXIE_PORT is removed before
// flags are read, since it would be read as the value of --port.
void pass_over_service_port() {
  const char* variable = std::getenv("MOXIE_PORT");
  const std::string value = variable == nullptr ? "" : variable;
  if (!value.starts_with("tcp://") && !value.starts_with("udp://") && !value.starts_with("sctp://"))
    return;
  log_warn(fmt::format(
      "MOXIE_PORT={} is passed over: it is the address that Kubernetes tells of a Service called "
      "moxie, not a port to listen on (enableServiceLinks: false keeps such variables away)",
      value));
  unsetenv("MOXIE_PORT");
}

// Warns of variables that no command knows, with the nearest name, and ignores them: they may be
// typing errors.
void warn_of_variables(const std::vector<Entry>& entries) {
  std::set<std::string> known = {"MOXIE_LOG", "MOXIE_NCCL_LIBRARY"};
  for (const Entry& entry : entries) {
    for (const std::string& flag : entry.flags->names()) {
      if (flag.starts_with("--")) known.insert(variable_of(flag));
    }
  }
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string text = *at;
    const std::string name = text.substr(0, text.find('='));
    if (name.starts_with("MOXIE_") && !known.contains(name)) {
      log_warn(name + ": unknown environment variable, passed over" + did_you_mean(name, known));
    }
  }
}

// What to say of a word that stands where the name of a command belongs; empty: there is none.
std::string of_unknown_command(const CLI::App& app) {
  std::string path = app.get_name();
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    path += " " + at->get_name();
  }
  std::set<std::string> known;
  for (const CLI::App* sub : at->get_subcommands([](const CLI::App*) { return true; }))
    known.insert(sub->get_name());
  const std::vector<std::string> words = at->remaining();
  if (known.empty() || words.empty() || words.front().starts_with("-")) return "";
  return fmt::format("{}: no command '{}'{}", path, words.front(),
                     did_you_mean(words.front(), known));
}

int handle_parse_error(CLI::App& app, const CLI::ParseError& error,
                       const std::vector<Entry>& entries) {
  if (error.get_exit_code() == 0) {  // --help, --version
    for (const Entry& entry : entries) entry.flags->show_variables();
    return app.exit(error);
  }
  std::string hint;
  const bool has_extras = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  if (has_extras || dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    if (const std::string unknown = of_unknown_command(app); !unknown.empty()) {
      std::fprintf(stderr, "%s\nTry `moxie --help`.\n", unknown.c_str());
      return kExitUsage;
    }
  }
  if (has_extras) {
    for (const Entry& entry : entries) {
      if (!entry.app->parsed()) continue;
      const auto extras = app.remaining(true);
      if (!extras.empty() && extras.front().starts_with("-")) {
        const std::string& flag = extras.front();
        hint = did_you_mean(flag.substr(0, flag.find('=')), entry.flags->names());
      }
      break;
    }
  }
  std::fprintf(stderr, "moxie: %s%s\nTry `moxie --help` or `moxie COMMAND --help`.\n", error.what(),
               hint.c_str());
  return kExitUsage;
}

// The switches that take a value in some command.
std::set<std::string> names_with_values(const std::vector<Entry>& entries) {
  std::set<std::string> found;
  for (const Entry& entry : entries) {
    for (const std::string& flag : entry.flags->names()) {
      if (!entry.flags->toggles().contains(flag)) found.insert(flag);
    }
  }
  return found;
}

// A switch before the name of a subcommand belongs to the command, which does not run then.
Status check_place_of_switches(const Entry& entry, const std::vector<Entry>& entries) {
  for (const Entry& parent : entries) {
    if (parent.app != entry.app->get_parent()) continue;
    const std::string flag = parent.flags->given_before(entry.command->name);
    if (flag.empty()) continue;
    return fail("is no switch of " + entry.command->name + ", or stands before its name", flag,
                "moxie " + parent.command->name + " " + entry.command->name + " --help");
  }
  return {};
}

int parse_and_run(int argc, char** argv, const std::vector<Command>& commands) {
  CLI::App app{
      "Moxie: gpt-oss and other mixture-of-experts models in the MX formats, at the speed "
      "the memory allows."};
  app.name("moxie");
  bool version_as_json = false;
  CLI::Option* as_json =
      app.add_flag("--json", version_as_json, "with --version: one JSON document");
  as_json->needs(app.set_version_flag(
      "--version", [&] { return version_as_json ? version_json() : version_text(); },
      "version, commit and build, then exit"));
  app.require_subcommand(1);
  std::vector<Entry> entries;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  pass_over_service_port();
  for (const Command& command : commands) add_command(app, command, arguments, entries);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return handle_parse_error(app, error, entries);
  }
  if (const char* level = std::getenv("MOXIE_LOG")) {
    const std::string name = level;
    if (name == "debug")
      set_log_level(LogLevel::kDebug);
    else if (name == "warn")
      set_log_level(LogLevel::kWarn);
    else if (name == "error")
      set_log_level(LogLevel::kError);
    else if (name != "info")
      return usage("MOXIE_LOG: debug, info, warn or error, not " + name);
  }
  warn_of_variables(entries);
  for (Entry& entry : entries) {  // children are before their parents
    if (!entry.app->parsed() || !entry.command->run) continue;
    if (auto placed = check_place_of_switches(entry, entries); !placed)
      return usage(placed.error().message());
    if (auto applied = entry.flags->apply_variables(names_with_values(entries)); !applied)
      return usage(applied.error().message());
    try {
      if (auto status = entry.flags->apply_config(); !status) {
        return usage(status.error().message());
      }
    } catch (const CLI::ParseError& error) {
      return handle_parse_error(app, error, entries);
    }
    return entry.command->run(*entry.flags);
  }
  return kExitUsage;
}

}  // namespace

int run_commands(int argc, char** argv, const std::vector<Command>& commands) {
  hold_standard_streams();
  try {
    return finish_output(parse_and_run(argc, argv, commands));
  } catch (const std::system_error& error) {  // fmt::print throws what a stream reports
    if (std::ferror(stdout) != 0) return finish_output(kExitFailed, error.code());
    return report({error.what()});
  }
}

Status parse_switches(const std::string& text, const std::function<void(Flags&)>& declare,
                      const std::function<Status(const Flags&)>& then) {
  CLI::App app;
  AppFlags flags(&app, {});
  declare(flags);
  try {
    app.parse(text, false);
  } catch (const CLI::ParseError& error) {
    return fail(error.get_exit_code() == 0 ? "only switches can stand here" : error.what(), text);
  }
  return then(flags);
}

namespace {

template <typename T>
Status status_of(const Result<T>& result) {
  if (!result) return fail(result.error());
  return {};
}

// A tuning is of the sources that it was measured with, a self-test of those that it proved.
std::string commit_of_sources() { return std::string(kCommit) + (kCommitDirty ? "+changes" : ""); }

}  // namespace

Status check_device(const std::string& text) { return status_of(named_gpus(text)); }

Status check_step(const std::string& text) {
  auto added = KernelChoice().add(text);
  const size_t equals = std::min(text.find('='), text.size());
  const bool has_name = equals + 1 < text.size();
  if (!added && has_name && op_named(text.substr(0, equals)) != nullptr) return {};
  return added;
}

void declare_model_flags(Flags& flags, EngineOptions* o) {
  declare_untested_model_flags(flags, o);
  flags.choice("--self-test", &o->self_test.mode, {"auto", "off", "strict"},
               "kernels that this machine has never proven are compared with the reference while "
               "the weights are loaded; auto: a kernel that fails is left out; strict: refuses");
}

void declare_untested_model_flags(Flags& flags, EngineOptions* o) {
  flags.text("--model", &o->model,
             "embedded, a Hugging Face directory, a .gguf file, a repo id in the local cache, "
             "synthetic:gpt-oss-120b, synthetic:gpt-oss-20b or synthetic:PATH/config.json");
  flags.text("--device", &o->device, "cpu, cuda, cuda:N, cuda:N,M,... (a rank each) or auto");
  flags.integer("--threads", &o->threads, {0, 4096}, "CPU threads; 0: one a usable core");
  flags.integer(
      "--tensor-parallel-size", &o->tensor_parallel, {1, 64},
      "ranks that divide the model among them: GPUs, or with --device cpu ranks of threads");
  flags.toggle("--enable-expert-parallel", &o->expert_parallel,
               "ranks have whole experts, instead of columns of each");
  flags.texts(
      "--kernel", &o->kernels,
      "STEP=NAME forces a row, all=reference every reference row; experts= takes gemv, w4a16 "
      "and w4a8 too, qkv= and out= w8a8 (Hopper); repeatable");
  flags.text("--tile", &o->tile,
             "CUDA: rows x tokens of the experts' products for many tokens: auto, 256x8 to 256x256 "
             "(Hopper's rows), or 128x16 to 128x128 (rows by mma.sync)");
  flags.text(
      "--mxfp4-layers", &o->mxfp4_layers,
      "moe (as the checkpoint), qkv, o, lm_head (comma-separated) or all: quantised at load");
  flags.text("--mxfp8-layers", &o->mxfp8_layers,
             "qkv, o, lm_head (comma-separated) or all: quantised to MXFP8 at load; CUDA only");
  flags.choice("--graphs", &o->graphs, {"on", "off"},
               "CUDA: decode by recorded graphs, or the same kernels launched one by one");
  flags.text("--kv-dtype", &o->kv_dtype, "auto, bf16, fp8_e4m3 or f32");
  flags.text(
      "--activation", &o->activation,
      "activations: auto, bf16 (or wider), int8 (CPU, MXFP4 layers: by blocks of 32; auto does so "
      "from 8 tokens on in models 2048 wide or wider), or of the experts' products mxfp8, mxfp6 "
      "(E2M3), mxfp6_e3m2 or mxfp4: blocks of 32 with a scale; on CUDA from 17 tokens on (Hopper's "
      "mxfp8: long prompts, E4M3 with a scale a token, and qkv and out in 8-bit integers)");
  flags.check("--device", check_device);
  flags.check("--kernel", check_step);
  flags.check("--tile", [](const auto& text) { return KernelChoice().set_tile(text); });
  for (const std::string flag : {"--mxfp4-layers", "--mxfp8-layers"})
    flags.check(flag,
                [flag](const auto& text) { return status_of(DenseLayers::parse(text, flag)); });
  flags.check("--kv-dtype", [](const auto& text) { return status_of(parse_kv_dtype(text)); });
  flags.check("--activation", [](const auto& text) { return KernelChoice().set_activation(text); });
  flags.choice("--arch-limit", &o->arch_limit, {"none", "sm_80"},
               "CUDA: use only rows that GPUs of this architecture can run");
  flags.choice("--batch-invariant", &o->batch_invariant, {"on", "off"},
               "on: a token's logits are the same bits alone and among any others, in any chunks");
  flags.integer("--max-model-len", &o->max_model_len, kFromZero, "tokens of context; 0: what fits");
  // Options that were read before keep theirs.
  if (o->tuning.commit.empty()) {
    o->tuning = {.file = "auto", .commit = commit_of_sources()};
    o->self_test = {.mode = "auto", .commit = commit_of_sources()};
  }
  flags.text("--tuning", &o->tuning.file,
             "off: plans by predicted times; a file: by the times that `moxie tune` wrote there; "
             "auto: by those in the user's cache, if there are any for this machine");
}

void declare_sampling_flags(Flags& flags, SamplingOptions* o, uint64_t* seed) {
  flags.integer("--max-tokens", &o->max_tokens, kFromZero,
                "tokens to generate at most; 0: to the context's end");
  flags.number("--temperature", &o->temperature, {0, 1000}, "0 is greedy");
  flags.number("--top-p", &o->top_p, {0, 1}, "nucleus; 1: off");
  flags.integer("--top-k", &o->top_k, kFromZero, "0: off");
  flags.number("--min-p", &o->min_p, {0, 1}, "0: off");
  flags.number("--repetition-penalty", &o->repetition_penalty, {0, 1000}, "1: off");
  flags.number("--frequency-penalty", &o->frequency_penalty, {-1000, 1000}, "0: off");
  flags.number("--presence-penalty", &o->presence_penalty, {-1000, 1000}, "0: off");
  flags.unsigned64("--seed", seed, {0, UINT64_MAX}, "same seed, same text");
}

void show_error(const Error& error) {
  std::fprintf(stderr, "moxie: error: %s\n", error.message().c_str());
}

int report(const Error& error) {
  show_error(error);
  set_exit_fault(error.message());
  return kExitFailed;
}

int usage(const std::string& text) {
  std::fprintf(stderr, "moxie: %s\n", text.c_str());
  return kExitUsage;
}

Result<uint64_t> parse_bytes(const std::string& text, const char* flag) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  constexpr std::pair<const char*, double> kUnits[] = {
      {"", 1},          {"B", 1},       {"KiB", 1 << 10}, {"MiB", 1 << 20},
      {"GiB", 1 << 30}, {"k", 1 << 10}, {"m", 1 << 20},   {"g", 1 << 30},
      {"KB", 1e3},      {"MB", 1e6},    {"GB", 1e9}};
  for (const auto& [name, factor] : kUnits) {
    if (error == std::errc() && unit == name && number > 0 && number * factor < 1e18) {
      return static_cast<uint64_t>(number * factor);
    }
  }
  return fail("'" + text + "' is no size", flag, "such as 512MiB or 20GiB");
}

Result<std::string> read_text(const std::string& path, uint64_t limit_bytes) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return fail("cannot be opened", path, "check the path and its permissions");
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  std::vector<char> block(1 << 16);
  while (in.read(block.data(), static_cast<std::streamsize>(block.size())) || in.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(in.gcount()));
    if (text.size() > limit_bytes) {
      return fail(fmt::format("more than {} bytes", limit_bytes), path == "-" ? "stdin" : path);
    }
  }
  if (in.bad()) return fail("cannot be read", path == "-" ? "stdin" : path);
  return text;
}

}  // namespace moxie
