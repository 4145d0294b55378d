// Three probes: the plan (`moxie kernels --plan`), the bits of logits (`moxie score --logits`) and
// an answer with the rows that gave it (`moxie run`).
#include "lab/matrix_probes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "core/json_text.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;
using Steps = std::set<std::string>;

constexpr const char* kQuestion = "What is 17 + 25?";

const Steps& all_steps() {
  static const Steps kSteps = {"embed", "qkv",     "attend",  "out",
                               "route", "experts", "unembed", "sample"};
  return kSteps;
}

// Steps of "qkv,o" or "all".
Steps dense_steps(const std::string& layers) {
  Steps steps;
  for (const auto& [name, step] : {std::pair{"qkv", "qkv"}, {"o", "out"}, {"lm_head", "unembed"}}) {
    const std::string listed = "," + layers + ",";
    if (layers == "all" || listed.find("," + std::string(name) + ",") != std::string::npos)
      steps.insert(step);
  }
  return steps;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
}

const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

std::optional<Steps> steps_of_switch(const std::string& name, const std::string& value) {
  if (name == "--mxfp4-layers" || name == "--mxfp8-layers") return dense_steps(value);
  if (name == "--kv-dtype") return Steps{"qkv", "attend"};
  if (name == "--activation") return Steps{"qkv", "out", "experts", "unembed"};
  if (name == "--tile") return Steps{"experts"};
  if (name == "--kernel") {
    const std::string step = value.substr(0, value.find('='));
    return step == "all" ? all_steps() : Steps{step};
  }
  // The cheapest rows that do not depend on the batch may be others in any step.
  if (name == "--batch-invariant") return value == "off" ? Steps{} : all_steps();
  for (const char* of_no_step :
       {"--graphs", "--spec", "--spec-tokens", "--spec-adaptive", "--threads", "--prefix-cache",
        "--prefix-caching", "--async-scheduling", "--chunk", "--max-num-seqs", "--seed"}) {
    if (name == of_no_step) return Steps{};
  }
  return std::nullopt;
}

Result<ProbedPlan> parse_probed_plan(const std::string& json) {
  const Json document = Json::parse(json, nullptr, false);
  const Json* plans = member(document, "plans");
  if (plans == nullptr || !plans->is_array()) {
    return fail("no list of plans", "moxie kernels --plan --json");
  }
  ProbedPlan probed;
  for (const Json& plan : *plans) {
    const Json *tokens = member(plan, "tokens"), *rows = member(plan, "rows");
    if (tokens == nullptr || rows == nullptr || !rows->is_array())
      return fail("a plan without tokens or rows", "moxie kernels --plan --json");
    for (const Json& row : *rows) {
      const Json *name = member(row, "name"), *covers = member(row, "covers");
      if (name == nullptr || !name->is_string() || covers == nullptr || !covers->is_array())
        return fail("a row without its name or what it covers", "moxie kernels --plan --json");
      ProbedPlan::Row one{.name = name->get<std::string>(), .covers = {}};
      for (const Json& step : *covers) {
        if (step.is_string()) one.covers.insert(step.get<std::string>());
      }
      const Json *attention = member(row, "attention"), *reads = member(row, "reads"),
                 *writes = member(row, "writes");
      const std::string layers =
          attention != nullptr && attention->is_string() ? attention->get<std::string>() : "no";
      for (const std::string& step : one.covers) {
        probed.rows[fmt::format("{} tokens, {} layers: {}", tokens->dump(), layers, step)] = one;
      }
      probed.text += fmt::format("{} {} {} {} {} {}\n", tokens->dump(), layers, one.name,
                                 covers->dump(), reads != nullptr ? reads->dump() : "",
                                 writes != nullptr ? writes->dump() : "");
    }
  }
  if (probed.rows.empty()) return fail("no rows", "moxie kernels --plan --json");
  return probed;
}

std::vector<std::string> rows_changed_elsewhere(const ProbedPlan& before, const ProbedPlan& after,
                                                const Steps& touched) {
  const auto is_touched = [&](const ProbedPlan::Row& row) {
    return std::any_of(row.covers.begin(), row.covers.end(),
                       [&](const std::string& step) { return touched.contains(step); });
  };
  std::vector<std::string> changed;
  for (const auto& [place, row] : before.rows) {
    const auto found = after.rows.find(place);
    if (found == after.rows.end()) {
      if (!is_touched(row)) changed.push_back(place + " has no row");
      continue;
    }
    if (found->second.name == row.name || is_touched(row) || is_touched(found->second)) continue;
    changed.push_back(fmt::format("{}: {} instead of {}", place, found->second.name, row.name));
  }
  return changed;
}

std::string reason_of(const ProcessResult& process) {
  std::string text = process.err;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  std::string line = text.substr(text.rfind('\n') + 1);
  for (const char* prefix : {"moxie: error: ", "moxie: "}) {
    if (line.starts_with(prefix)) line = line.substr(std::string(prefix).size());
  }
  if (process.exit_code >= 128) {
    return fmt::format("ended by signal {}{}{}", process.exit_code - 128, line.empty() ? "" : ": ",
                       line);
  }
  return line.empty() ? fmt::format("exit code {}", process.exit_code) : line;
}

ProcessResult MatrixProbes::run(const std::string& command, const std::vector<std::string>& words,
                                const Settings& settings) {
  std::vector<std::string> arguments = {command};
  for (const std::string& one : options_.common) {
    if (options_.has_switch(command, one.substr(0, one.find('=')))) arguments.push_back(one);
  }
  for (const auto& [name, value] : settings) {
    if (options_.has_switch(command, name)) arguments.push_back(fmt::format("{}={}", name, value));
  }
  arguments.insert(arguments.end(), words.begin(), words.end());
  return options_.moxie(arguments);
}

bool MatrixProbes::is_preset(const std::pair<std::string, std::string>& setting) const {
  return std::any_of(options_.switches.begin(), options_.switches.end(), [&](const auto& one) {
    return one.name == setting.first && one.preset == setting.second;
  });
}

Result<std::string> MatrixProbes::plan_text(const Settings& settings) {
  const ProcessResult process = run("kernels", {"--plan", "--json", "-n", "1,8,64"}, settings);
  if (process.exit_code != 0) return fail(reason_of(process), "moxie kernels --plan");
  auto plan = parse_probed_plan(process.out);
  if (!plan) return fail(std::move(plan.error()));
  return plan->text;
}

Result<std::string> MatrixProbes::logits(const Settings& settings) {
  const std::string& path = options_.scratch_path;
  std::remove(path.c_str());
  const ProcessResult process =
      run("score", {"--ids=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", "--logits=" + path}, settings);
  if (process.exit_code != 0) return fail(reason_of(process), "moxie score");
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail("no logits were written", path);
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  file.close();
  std::remove(path.c_str());
  return bytes;
}

Result<std::string> MatrixProbes::answer(const Settings& settings) {
  const ProcessResult process =
      run("run", {"--json", "--temperature=0", "--max-tokens=48", kQuestion}, settings);
  if (process.exit_code != 0) return fail(reason_of(process), "moxie run");
  const Json document = Json::parse(process.out, nullptr, false);
  std::string text;
  for (const char* key : {"reasoning", "content", "kernels"}) {
    const Json* value = member(document, key);
    if (value == nullptr) return fail(std::string("no ") + key, "moxie run --json");
    text += json_text(*value) + "\n";
  }
  return text;
}

CellCheck MatrixProbes::compare(const std::string& name, const std::string& command,
                                const MatrixCell& cell,
                                Result<std::string> (MatrixProbes::*probe)(const Settings&)) {
  std::vector<std::string> left_out;
  Settings rest;
  for (const auto& setting : cell.settings) {
    if (is_preset(setting) && options_.has_switch(command, setting.first)) {
      left_out.push_back(setting.first);
    } else {
      rest.push_back(setting);
    }
  }
  CellCheck check{.name = name, .passed = {}, .value = {}};
  if (left_out.empty()) {
    check.value = fmt::format("no switch of `moxie {}` is at its default", command);
    return check;
  }
  const auto with = (this->*probe)(cell.settings);
  if (!with) {
    check.value = with.error().message();
    return check;
  }
  const auto without = (this->*probe)(rest);
  if (!without) {
    check.value = without.error().message();
    return check;
  }
  check.passed = *with == *without;
  check.value = fmt::format("{} with and without {}", *check.passed ? "the same" : "different",
                            joined(left_out, ", "));
  return check;
}

CellCheck MatrixProbes::check_other_rows(const MatrixCell& cell) {
  CellCheck check{.name = "rows of other steps", .passed = {}, .value = {}};
  Steps touched;
  for (const auto& setting : cell.settings) {
    if (is_preset(setting)) continue;
    const auto steps = steps_of_switch(setting.first, setting.second);
    if (!steps) {
      check.value = fmt::format("it is not known which steps {} touches", setting.first);
      return check;
    }
    touched.insert(steps->begin(), steps->end());
  }
  const ProcessResult process = run("kernels", {"--plan", "--json", "-n", "1,8,64"}, cell.settings);
  auto plan = parse_probed_plan(process.out);
  if (!plan) {
    check.value = plan.error().message();
    return check;
  }
  const std::vector<std::string> changed = rows_changed_elsewhere(baseline_, *plan, touched);
  check.passed = changed.empty();
  check.value = changed.empty() ? "as without the switches" : joined(changed, "; ");
  return check;
}

Status MatrixProbes::probe_baseline() {
  const ProcessResult process = run("kernels", {"--plan", "--json", "-n", "1,8,64"}, {});
  if (process.exit_code != 0) return fail(reason_of(process), "moxie kernels --plan");
  auto plan = parse_probed_plan(process.out);
  if (!plan) return fail(std::move(plan.error()));
  baseline_ = std::move(*plan);
  return {};
}

std::string MatrixProbes::refusal(const MatrixCell& cell) {
  const ProcessResult process = run("kernels", {"--plan", "--json", "-n", "1,8,64"}, cell.settings);
  return process.exit_code == kExitOfRefusal || process.exit_code == kExitOfUsage
             ? reason_of(process)
             : "";
}

std::vector<CellCheck> MatrixProbes::check(const MatrixCell& cell) {
  return {compare("plan", "kernels", cell, &MatrixProbes::plan_text),
          compare("bits of logits", "score", cell, &MatrixProbes::logits),
          compare("answer and rows", "run", cell, &MatrixProbes::answer), check_other_rows(cell)};
}

}  // namespace moxie
