// A matrix to JSON and back.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/matrix_output.h"
#include "text/json_fields.h"

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
    figures.push_back({{"name", figure.name},
                       {"unit", figure.unit},
                       {"better", better_name(figure.better)},
                       {"samples", figure.samples}});
  return {{"settings", std::move(settings)},
          {"verdict", verdict_name(result.verdict)},
          {"why", result.why},
          {"levels", std::move(levels)},
          {"orthogonality", std::move(checks)},
          {"figures", std::move(figures)},
          {"seconds", result.seconds}};
}

void read_cell(JsonFields& json, const std::vector<MatrixSwitch>& switches, Matrix* matrix) {
  CellResult result;
  const nlohmann::json settings = json.any("settings");
  for (const MatrixSwitch& one : switches) {
    const auto found = settings.is_object() ? settings.find(one.name) : settings.end();
    if (found == settings.end() || !found->is_string()) {
      json.refuse("settings", "has no value of " + one.name);
      return;
    }
    result.cell.settings.emplace_back(one.name, found->get<std::string>());
  }
  if (settings.size() != switches.size()) json.refuse("settings", "has more than the switches");
  const auto verdict = verdict_of_name(json.text("verdict"));
  if (!verdict) json.refuse("verdict", "is no verdict");
  result.verdict = verdict.value_or(CellVerdict::kFailed);
  result.why = json.text("why");
  json.objects("levels", [&](JsonFields& level) {
    result.levels.push_back({level.text("level"), level.boolean("passed"), level.text("why")});
    level.done();
  });
  json.objects("orthogonality", [&](JsonFields& check) {
    result.orthogonality.push_back(
        {check.text("name"), check.boolean_or_null("passed"), check.text("value")});
    check.done();
  });
  json.objects("figures", [&](JsonFields& figure) {
    const std::string better = figure.text("better");
    if (better != better_name(Better::kHigher) && better != better_name(Better::kLower))
      figure.refuse("better", "is neither higher nor lower");
    result.figures.push_back(
        {figure.text("name"), figure.text("unit"), figure.numbers("samples"),
         better == better_name(Better::kLower) ? Better::kLower : Better::kHigher});
    figure.done();
  });
  result.seconds = json.number("seconds");
  json.done();
  matrix->cells.push_back(std::move(result));
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

Result<Matrix> parse_matrix(const nlohmann::json& json, const std::string& where) {
  JsonFields::Fault fault;
  JsonFields fields(json, "/details", where, &fault);
  Matrix matrix;
  JsonFields key = fields.object("key");
  matrix.key = {.commit = key.text("commit"),
                .device = key.text("device"),
                .model = key.text("model"),
                .level = key.text("level"),
                .dirty = key.boolean("dirty"),
                .quick = key.boolean("quick"),
                .common = key.texts("common")};
  key.done();
  fields.objects("switches", [&](JsonFields& one) {
    matrix.switches.push_back({one.text("name"), one.texts("values"), one.text("default")});
    one.done();
  });
  fields.objects("cells", [&](JsonFields& cell) { read_cell(cell, matrix.switches, &matrix); });
  matrix.num_cells = fields.count("num_cells");
  if (matrix.num_cells < matrix.cells.size())
    fields.refuse("num_cells", "is less than the number of cells");
  for (const char* derived : {"complete", "passed", "counts"}) fields.any(derived);
  fields.done();
  if (fault) {
    fault->hint = "leave out --resume to begin anew";
    return fail(std::move(*fault));
  }
  return matrix;
}

}  // namespace moxie
