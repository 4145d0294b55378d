// Walks the cells: a probe that says whether a cell can run, the levels, and orthogonality.
#include "lab/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "core/clock.h"
#include "lab/matrix_probes.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kVerdicts[] = {"passed", "failed", "invalid", "crashed", "cannot run"};

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

// The first check of a level that failed, as "name: value (bar)".
std::string first_failure(const Json& level) {
  const auto checks = level.find("checks");
  if (checks == level.end() || !checks->is_array()) return "it did not pass";
  for (const Json& check : *checks) {
    if (!check.is_object() || check.value("passed", Json(true)) != Json(false)) continue;
    return fmt::format("{}: {} (bar: {})", text_of(check, "name"), text_of(check, "value"),
                       text_of(check, "bar"));
  }
  return "it did not pass";
}

void read_level(const Json& level, CellResult* result) {
  if (!level.is_object()) return;
  CellLevel one{.level = text_of(level, "level"),
                .passed = level.value("passed", Json(false)) == Json(true),
                .why = {}};
  if (!one.passed) {
    one.why = text_of(level, "not_run");
    if (one.why.empty()) one.why = first_failure(level);
  }
  result->levels.push_back(std::move(one));
  const auto figures = level.find("figures");
  if (figures == level.end() || !figures->is_array()) return;
  for (const Json& figure : *figures) {
    if (!figure.is_object()) continue;
    CellFigure read{
        .name = text_of(figure, "name"),
        .unit = text_of(figure, "unit"),
        .samples = {},
        .better = text_of(figure, "better") == "lower" ? Better::kLower : Better::kHigher};
    if (const auto samples = figure.find("samples"); samples != figure.end()) {
      for (const Json& sample : *samples) {
        if (sample.is_number()) read.samples.push_back(sample.get<double>());
      }
    }
    result->figures.push_back(std::move(read));
  }
}

std::vector<std::string> validate_arguments(const MatrixOptions& o, const MatrixCell& cell) {
  std::vector<std::string> arguments = {"validate", "--json", "--level=" + o.level};
  if (o.quick) arguments.push_back("--quick");
  if (!o.records_folder.empty())
    arguments.push_back("--record=" + o.records_folder + "/" + cell.file_name());
  if (!o.against_folder.empty())
    arguments.push_back("--against=" + o.against_folder + "/" + cell.file_name());
  arguments.insert(arguments.end(), o.common.begin(), o.common.end());
  for (const auto& [name, value] : cell.settings) arguments.push_back(name + "=" + value);
  return arguments;
}

CellResult run_cell(const MatrixOptions& options, MatrixProbes& probes, const MatrixCell& cell) {
  const auto start = Clock::now();
  CellResult result{.cell = cell};
  result.why = probes.refusal(cell);
  if (!result.why.empty()) {
    result.verdict = CellVerdict::kCannotRun;
  } else {
    read_validation(options.moxie(validate_arguments(options, cell)), &result);
    if (result.verdict != CellVerdict::kCannotRun) result.orthogonality = probes.check(cell);
    for (const CellCheck& check : result.orthogonality) {
      if (check.passed.value_or(true) || result.verdict != CellVerdict::kPassed) continue;
      result.verdict = CellVerdict::kFailed;
      result.why = fmt::format("not orthogonal: {}: {}", check.name, check.value);
    }
  }
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace

const char* verdict_name(CellVerdict verdict) { return kVerdicts[static_cast<size_t>(verdict)]; }

std::optional<CellVerdict> verdict_of_name(std::string_view name) {
  for (size_t i = 0; i < std::size(kVerdicts); ++i) {
    if (name == kVerdicts[i]) return static_cast<CellVerdict>(i);
  }
  return std::nullopt;
}

Result<MatrixSwitch> parse_matrix_switch(const std::string& text) {
  const auto wrong = [&](const std::string& what) {
    return fail(what + " in '" + text + "'", "--switch", "such as kv-dtype=bf16,f32");
  };
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return wrong("no '='");
  MatrixSwitch one;
  one.name = text.substr(0, equals);
  if (!one.name.starts_with("--")) one.name = "--" + one.name;
  if (one.name == "--") return wrong("no name");
  std::string values = text.substr(equals + 1);
  const char between = values.find(';') == std::string::npos ? ',' : ';';
  if (values.ends_with(';')) values.pop_back();  // "a,b;" is one value
  one.values = split(values, between);
  std::set<std::string> seen;
  for (const std::string& value : one.values) {
    if (value.empty()) return wrong("an empty value");
    if (!seen.insert(value).second) return wrong("'" + value + "' twice");
  }
  return one;
}

std::string MatrixCell::key() const {
  std::string text;
  for (const auto& [name, value] : settings)
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  return text;
}

std::string MatrixCell::file_name() const {
  std::string text;
  for (const auto& [name, value] : settings) {
    text += fmt::format("{}{}_{}", text.empty() ? "" : ".", name.substr(2), value);
  }
  for (char& c : text) {
    const bool is_plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
    if (!is_plain) c = '+';
  }
  return text + ".json";
}

std::vector<MatrixCell> matrix_cells(std::span<const MatrixSwitch> switches) {
  std::vector<MatrixCell> cells(1);
  for (const MatrixSwitch& one : switches) {
    std::vector<MatrixCell> more;
    for (const MatrixCell& cell : cells) {
      for (const std::string& value : one.values) {
        more.push_back(cell);
        more.back().settings.emplace_back(one.name, value);
      }
    }
    cells = std::move(more);
  }
  return cells;
}

void read_validation(const ProcessResult& process, CellResult* result) {
  if (process.exit_code == kExitOfUsage) {
    result->verdict = CellVerdict::kCannotRun;
    result->why = reason_of(process);
    return;
  }
  if (process.exit_code >= 128) {
    result->verdict = CellVerdict::kCrashed;
    result->why = reason_of(process);
    return;
  }
  const Json document = Json::parse(process.out, nullptr, false);
  const auto levels = document.is_object() ? document.find("levels") : document.end();
  result->verdict = CellVerdict::kFailed;
  if (!document.is_object() || levels == document.end() || !levels->is_array()) {
    result->why = reason_of(process);
    return;
  }
  for (const Json& level : *levels) read_level(level, result);
  for (const CellLevel& level : result->levels) {
    if (!level.passed && result->why.empty())
      result->why = fmt::format("level {}: {}", level.level, level.why);
  }
  const auto reasons = document.find("invalid_because");
  if (reasons != document.end() && reasons->is_array() && !reasons->empty()) {
    result->verdict = CellVerdict::kInvalid;
    result->why = reasons->front().is_string() ? reasons->front().get<std::string>() : "invalid";
  } else if (process.exit_code == 0 && document.value("valid", Json(false)) == Json(true)) {
    result->verdict = CellVerdict::kPassed;
    result->why.clear();
  } else if (result->why.empty()) {
    result->why = reason_of(process);
  }
}

Result<std::vector<CellResult>> run_matrix(const MatrixOptions& options) {
  const std::vector<MatrixCell> cells = matrix_cells(options.switches);
  MatrixProbes probes(options);
  std::vector<CellResult> results;
  bool has_baseline = false;
  for (const MatrixCell& cell : cells) {
    const auto done =
        std::find_if(options.done.begin(), options.done.end(),
                     [&](const CellResult& one) { return one.cell.key() == cell.key(); });
    if (done != options.done.end()) {
      results.push_back(*done);
      continue;
    }
    if (!has_baseline) {
      if (auto status = probes.probe_baseline(); !status) return fail(std::move(status.error()));
      has_baseline = true;
    }
    if (options.on_start) options.on_start(cell, results.size(), cells.size());
    results.push_back(run_cell(options, probes, cell));
    if (!options.on_result) continue;
    if (auto status = options.on_result(results); !status) return fail(std::move(status.error()));
  }
  return results;
}

}  // namespace moxie
