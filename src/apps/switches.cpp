// Collects declarations into a table, and says what the values of text switches are.
#include "apps/switches.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/gpu_cards.h"

namespace moxie {
namespace {

// What text switches take: a switch has one meaning in all commands. Those with a closed list have
// it from their declaration; those that are not here take any text.
struct Meaning {
  const char* name;
  Takes takes;
  std::vector<std::string> values = {};
};
std::vector<std::string> known_gpus() {
  std::vector<std::string> names;
  for (const GpuCard& card : gpu_cards()) names.emplace_back(card.name);
  return names;
}
const std::vector<Meaning>& meanings() {
  static const std::vector<Meaning> kMeanings = {
      {"--activation",
       Takes::kText,
       {"auto", "bf16", "int8", "mxfp8", "mxfp6", "mxfp6_e3m2", "mxfp4"}},
      {"--against-records", Takes::kFolder},
      {"--api-key-file", Takes::kFile},
      {"--check-markdown", Takes::kFile},
      {"--config", Takes::kFile},
      {"--cupti", Takes::kFile},
      {"--dataset", Takes::kFile},
      {"--device", Takes::kText, {"auto", "cpu", "cuda"}},
      {"--eval-config", Takes::kFile},
      {"--gpu", Takes::kText, known_gpus()},
      {"--history", Takes::kFile},
      {"--ids-file", Takes::kFile},
      {"--inputs", Takes::kFile},
      {"--kv-dtype", Takes::kText, {"auto", "bf16", "fp8_e4m3", "f32"}},
      {"--logits", Takes::kFile},
      {"--markdown", Takes::kFile},
      {"--model", Takes::kModel},
      {"--mxfp4-layers", Takes::kText, {"moe", "qkv", "o", "lm_head", "all"}},
      {"--mxfp8-layers", Takes::kText, {"qkv", "o", "lm_head", "all"}},
      {"--output", Takes::kFile},
      {"--record", Takes::kFile},
      {"--records", Takes::kFolder},
      {"--report", Takes::kFile},
      {"--samples", Takes::kFile},
      {"--spec-model", Takes::kModel},
      {"--ssl-cert", Takes::kFile},
      {"--ssl-certfile", Takes::kFile},
      {"--ssl-key", Takes::kFile},
      {"--ssl-keyfile", Takes::kFile},
      {"--target", Takes::kModel},
      {"--tokenizer", Takes::kFile},
      {"--tools", Takes::kFile},
      {"--trace", Takes::kFile},
      {"--tuning", Takes::kFile},
  };
  return kMeanings;
}

class Collector final : public Flags {
 public:
  explicit Collector(CommandSwitches* into) : into_(into) {}

  void text(const std::string& flag, std::string* value, const std::string& help) override {
    add(flag, "TEXT", *value, help);
  }
  void texts(const std::string& flag, std::vector<std::string>*, const std::string& help) override {
    add(flag, "TEXT", "", help).is_repeatable = true;
  }
  void integer(const std::string& flag, int32_t* value, Bounds<int32_t>,
               const std::string& help) override {
    add(flag, "INT", fmt::format("{}", *value), help);
  }
  void integers(const std::string& flag, std::vector<int32_t>* values, Bounds<int32_t>,
                const std::string& help) override {
    add(flag, "INT,INT...", fmt::format("{}", fmt::join(*values, ",")), help);
  }
  void unsigned64(const std::string& flag, uint64_t* value, Bounds<uint64_t>,
                  const std::string& help) override {
    add(flag, "UINT", fmt::format("{}", *value), help);
  }
  void number(const std::string& flag, float* value, Bounds<float>,
              const std::string& help) override {
    add(flag, "FLOAT", fmt::format("{}", *value), help);
  }
  void toggle(const std::string& flag, bool*, const std::string& help) override {
    add(flag, "", "", help).takes = Takes::kNothing;
  }
  void choice(const std::string& flag, std::string* value, const std::vector<std::string>& choices,
              const std::string& help) override {
    Switch& added = add(flag, "TEXT", *value, help);
    added.values = choices;
    added.is_closed = true;
  }
  void check(const std::string&, const CheckText&) override {}
  void positional(const std::string& name, std::vector<std::string>*, const std::string& help,
                  bool required) override {
    CHECK(into_->positional.name.empty(), into_->path + ": two positionals");
    into_->positional = {name, help, required};
  }
  bool given(const std::string&) const override { return false; }
  std::vector<Setting> settings() const override { return {}; }
  std::vector<std::string> arguments() const override { return {}; }

 private:
  Switch& add(const std::string& flag, const char* type, std::string preset,
              const std::string& help) {
    Switch one;
    const size_t comma = flag.rfind(',');  // "-p,--prompt"
    one.name = flag.substr(comma + 1);
    if (comma != std::string::npos) one.short_name = flag.substr(0, comma);
    one.type = type;
    one.preset = std::move(preset);
    one.help = help;
    for (const Meaning& meaning : meanings()) {
      if (one.name != meaning.name || one.type != "TEXT") continue;
      one.takes = meaning.takes;
      one.values = meaning.values;
    }
    return into_->switches.emplace_back(std::move(one));
  }
  CommandSwitches* into_;
};

void collect(const Command& command, const std::string& parent, std::vector<CommandSwitches>* all) {
  CommandSwitches one{.command = &command, .path = parent + command.name};
  Collector collector(&one);
  if (command.declare) {
    command.declare(collector);
    std::string none;
    collector.text("--config", &none, kConfigHelp);  // as parsing adds it
  }
  bool nothing = false;
  collector.toggle("-h,--help", &nothing, "what the command does, and its switches");
  all->push_back(std::move(one));
  for (const Command& sub : command.subcommands) collect(sub, parent + command.name + " ", all);
}

}  // namespace

Takes takes_of(const std::string& name) {
  for (const Meaning& meaning : meanings()) {
    if (name == meaning.name) return meaning.takes;
  }
  return Takes::kText;
}

const Switch* CommandSwitches::find(const std::string& name) const {
  const auto found = std::find_if(switches.begin(), switches.end(),
                                  [&](const Switch& one) { return one.name == name; });
  return found == switches.end() ? nullptr : &*found;
}

std::vector<CommandSwitches> switches_of(const std::vector<Command>& commands) {
  std::vector<CommandSwitches> all;
  for (const Command& command : commands) collect(command, "", &all);
  for (const Meaning& meaning : meanings()) {
    const auto has_it = [&](const CommandSwitches& one) {
      return one.find(meaning.name) != nullptr;
    };
    CHECK(std::any_of(all.begin(), all.end(), has_it),
          std::string(meaning.name) + ": no command has this switch any more");
  }
  return all;
}

}  // namespace moxie
