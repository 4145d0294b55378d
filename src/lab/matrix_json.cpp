// A matrix to JSON and back.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/matrix_output.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const CellResult& result) {
  Json settings = Json::object(), levels = Json::array(), checks = Json::array(),
       figures = Json::array();
  for (const auto& [name, value] : result.cell.settings) settings[name] = value;
  for (const CellLevel& level : result.levels)
    levels.push_back({{"level", level.level}, {"passed", level.passed}, {"why", level.why}});
  for (const CellCheck& check : result.orthogonality) {
    checks.push_back({{"name", check.name},
                      {"passed", check.passed ? Json(*check.passed) : Json()},
                      {"value", check.value}});
  }
  for (const CellFigure& figure : result.figures)
    figures.push_back({{"name", figure.name}, {"unit", figure.unit}, {"samples", figure.samples}});
  return {{"settings", std::move(settings)},
          {"verdict", verdict_name(result.verdict)},
          {"why", result.why},
          {"levels", std::move(levels)},
          {"orthogonality", std::move(checks)},
          {"figures", std::move(figures)},
          {"seconds", result.seconds}};
}

// Reads members of one document; keeps the first fault.
class Reader {
 public:
  explicit Reader(std::string where) : where_(std::move(where)) {}

  const Json& member(const Json& object, const char* key) {
    static const Json kNothing;
    const auto found = object.is_object() ? object.find(key) : object.end();
    if (found != object.end()) return *found;
    wrong(fmt::format("no '{}'", key));
    return kNothing;
  }
  std::string text(const Json& object, const char* key) {
    const Json& value = member(object, key);
    if (value.is_string()) return value.get<std::string>();
    wrong(fmt::format("'{}' is no string", key));
    return "";
  }
  bool flag(const Json& object, const char* key) {
    const Json& value = member(object, key);
    if (value.is_boolean()) return value.get<bool>();
    wrong(fmt::format("'{}' is neither true nor false", key));
    return false;
  }
  double number(const Json& object, const char* key) {
    const Json& value = member(object, key);
    if (value.is_number()) return value.get<double>();
    wrong(fmt::format("'{}' is no number", key));
    return 0;
  }
  const Json& list(const Json& object, const char* key) {
    static const Json kEmpty = Json::array();
    const Json& value = member(object, key);
    if (value.is_array()) return value;
    wrong(fmt::format("'{}' is no list", key));
    return kEmpty;
  }
  std::vector<std::string> texts(const Json& object, const char* key) {
    std::vector<std::string> all;
    for (const Json& one : list(object, key)) {
      if (one.is_string())
        all.push_back(one.get<std::string>());
      else
        wrong(fmt::format("'{}' holds something that is no string", key));
    }
    return all;
  }
  void wrong(const std::string& what) {
    if (what_.empty()) what_ = what;
  }
  Status status() const {
    return what_.empty() ? Status{}
                         : Status(fail(what_, where_, "leave out --resume to begin anew"));
  }

 private:
  std::string where_, what_;
};

CellResult read_cell(Reader& reader, const Json& json) {
  CellResult result;
  const Json& settings = reader.member(json, "settings");
  if (!settings.is_object()) reader.wrong("'settings' is no object");
  if (settings.is_object()) {
    for (const auto& [name, value] : settings.items()) {
      if (!value.is_string()) reader.wrong("a setting is no string");
      if (value.is_string()) result.cell.settings.emplace_back(name, value.get<std::string>());
    }
  }
  const auto verdict = verdict_of_name(reader.text(json, "verdict"));
  if (!verdict) reader.wrong("an unknown verdict");
  result.verdict = verdict.value_or(CellVerdict::kFailed);
  result.why = reader.text(json, "why");
  for (const Json& level : reader.list(json, "levels")) {
    result.levels.push_back(
        {reader.text(level, "level"), reader.flag(level, "passed"), reader.text(level, "why")});
  }
  for (const Json& check : reader.list(json, "orthogonality")) {
    CellCheck one{.name = reader.text(check, "name"), .passed = {}, .value = {}};
    if (!reader.member(check, "passed").is_null()) one.passed = reader.flag(check, "passed");
    one.value = reader.text(check, "value");
    result.orthogonality.push_back(std::move(one));
  }
  for (const Json& figure : reader.list(json, "figures")) {
    CellFigure one{reader.text(figure, "name"), reader.text(figure, "unit"), {}};
    for (const Json& sample : reader.list(figure, "samples")) {
      if (!sample.is_number()) reader.wrong("a sample is no number");
      if (sample.is_number()) one.samples.push_back(sample.get<double>());
    }
    result.figures.push_back(std::move(one));
  }
  result.seconds = reader.number(json, "seconds");
  return result;
}

}  // namespace

size_t Matrix::count(CellVerdict verdict) const {
  return static_cast<size_t>(std::count_if(
      cells.begin(), cells.end(), [&](const CellResult& one) { return one.verdict == verdict; }));
}

bool Matrix::passed() const {
  const size_t num_good = count(CellVerdict::kPassed);
  return num_good > 0 && num_good + count(CellVerdict::kCannotRun) == num_cells;
}

nlohmann::ordered_json to_json(const Matrix& matrix) {
  Json switches = Json::array(), counts = Json::object(), cells = Json::array();
  for (const MatrixSwitch& one : matrix.switches)
    switches.push_back({{"name", one.name}, {"values", one.values}, {"default", one.preset}});
  for (const CellVerdict verdict :
       {CellVerdict::kPassed, CellVerdict::kFailed, CellVerdict::kInvalid, CellVerdict::kCrashed,
        CellVerdict::kCannotRun}) {
    counts[verdict_name(verdict)] = matrix.count(verdict);
  }
  for (const CellResult& cell : matrix.cells) cells.push_back(to_json(cell));
  const MatrixKey& key = matrix.key;
  return {{"complete", matrix.cells.size() == matrix.num_cells},
          {"passed", matrix.passed()},
          {"num_cells", matrix.num_cells},
          {"key",
           {{"commit", key.commit},
            {"dirty", key.dirty},
            {"device", key.device},
            {"model", key.model},
            {"level", key.level},
            {"quick", key.quick},
            {"common", key.common}}},
          {"switches", std::move(switches)},
          {"counts", std::move(counts)},
          {"cells", std::move(cells)}};
}

Result<Matrix> parse_matrix(const Json& json, const std::string& where) {
  Reader reader(where);
  Matrix matrix;
  const Json& key = reader.member(json, "key");
  matrix.key = {.commit = reader.text(key, "commit"),
                .device = reader.text(key, "device"),
                .model = reader.text(key, "model"),
                .level = reader.text(key, "level"),
                .dirty = reader.flag(key, "dirty"),
                .quick = reader.flag(key, "quick"),
                .common = reader.texts(key, "common")};
  for (const Json& one : reader.list(json, "switches")) {
    matrix.switches.push_back(
        {reader.text(one, "name"), reader.texts(one, "values"), reader.text(one, "default")});
  }
  for (const Json& cell : reader.list(json, "cells"))
    matrix.cells.push_back(read_cell(reader, cell));
  const double num_cells = reader.number(json, "num_cells");
  if (!(num_cells >= static_cast<double>(matrix.cells.size()) && num_cells < 1e9))
    reader.wrong("'num_cells' is not the number of cells");
  matrix.num_cells = num_cells >= 0 && num_cells < 1e9 ? static_cast<size_t>(num_cells) : 0;
  if (auto status = reader.status(); !status) return fail(std::move(status.error()));
  return matrix;
}

}  // namespace moxie
