// The report of a matrix: a grid of cells and levels, reasons, and the samples of each cell.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lab/matrix_output.h"
#include "lab/report_parts.h"
#include "lab/report_svg.h"

namespace moxie {
namespace {

// Strips in a picture at most; the table has all.
constexpr size_t kMostStrips = 60;

std::vector<std::string> columns_of(const Matrix& matrix) {
  std::vector<std::string> columns;
  for (const CellResult& cell : matrix.cells) {
    for (const CellLevel& level : cell.levels) {
      if (std::find(columns.begin(), columns.end(), level.level) == columns.end())
        columns.push_back(level.level);
    }
  }
  return columns;
}

// "3: auto, moe, int8", cut to a width; the table has all of it.
std::string row_text(size_t number, const MatrixCell& cell, double width) {
  std::string text = fmt::format("{}:", number);
  for (size_t i = 0; i < cell.settings.size(); ++i) {
    const std::string more = fmt::format("{} {}", i == 0 ? "" : ",", cell.settings[i].second);
    if (text_width(text + more + ", ...") > width) return text + ", ...";
    text += more;
  }
  return text;
}

std::string grid_svg(const Matrix& matrix) {
  constexpr double kWidth = 920, kRow = 20, kTop = 24, kColumn = 46, kResult = 90;
  const std::vector<std::string> columns = columns_of(matrix);
  const double num_columns = static_cast<double>(columns.size()) + 1;  // and orthogonality
  const double left = kWidth - kResult - kColumn * num_columns;
  Svg svg(kWidth, kTop + kRow * static_cast<double>(matrix.cells.size()) + 6,
          "Cells and the levels that they passed");
  const auto x_of = [&](size_t column) { return left + kColumn * static_cast<double>(column); };
  for (size_t c = 0; c < columns.size(); ++c)
    svg.text(x_of(c) + kColumn / 2, 16, Anchor::kMiddle, "s", columns[c]);
  svg.text(x_of(columns.size()) + kColumn / 2, 16, Anchor::kMiddle, "s", "orthog.");
  for (size_t r = 0; r < matrix.cells.size(); ++r) {
    const CellResult& cell = matrix.cells[r];
    const double y = kTop + kRow * static_cast<double>(r);
    const auto box = [&](size_t column, std::optional<bool> passed, const std::string& tooltip) {
      svg.rect(x_of(column) + 2, y + 2, kColumn - 4, kRow - 4,
               !passed   ? "none"
               : *passed ? "good"
                         : "bad",
               tooltip);
    };
    svg.text(0, y + 15, Anchor::kStart, "t", row_text(r + 1, cell.cell, left - 8));
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto found =
          std::find_if(cell.levels.begin(), cell.levels.end(),
                       [&](const CellLevel& one) { return one.level == columns[c]; });
      if (found == cell.levels.end()) {
        box(c, std::nullopt, "not run");
      } else {
        box(c, found->passed,
            fmt::format("{}: level {} {}", cell.cell.key(), found->level,
                        found->passed ? "passed" : found->why));
      }
    }
    std::optional<bool> orthogonal;
    std::string checks;
    for (const CellCheck& check : cell.orthogonality) {
      if (check.passed) orthogonal = orthogonal.value_or(true) && *check.passed;
      checks += fmt::format("{}: {}. ", check.name, check.value);
    }
    box(columns.size(), orthogonal, checks.empty() ? "not checked" : checks);
    svg.text(x_of(columns.size() + 1) + 8, y + 15, Anchor::kStart, "t", verdict_name(cell.verdict));
  }
  return svg.str();
}

}  // namespace

Page matrix_page(const Matrix& matrix, const nlohmann::ordered_json& document) {
  Page page("moxie matrix: " + matrix.key.model);
  page.paragraph(fmt::format(
      "On {}; levels up to {}{}; commit {}{}. {} of {} cells: {} passed, {} failed, {} invalid, {} "
      "crashed, {} cannot run here.",
      matrix.key.device, matrix.key.level, matrix.key.quick ? " (quick)" : "", matrix.key.commit,
      matrix.key.dirty ? ", with changes" : "", matrix.cells.size(), matrix.num_cells,
      matrix.count(CellVerdict::kPassed), matrix.count(CellVerdict::kFailed),
      matrix.count(CellVerdict::kInvalid), matrix.count(CellVerdict::kCrashed),
      matrix.count(CellVerdict::kCannotRun)));
  page.heading("Cells");
  page.picture(grid_svg(matrix),
               "A box is a level, or all checks of orthogonality; grey: not run.");
  Page::Table table{.head = {"#cell"}};
  for (const MatrixSwitch& one : matrix.switches) table.head.push_back(one.name);
  for (const char* column : {"result", "why", "#seconds"}) table.head.emplace_back(column);
  std::vector<Strip> strips;
  for (size_t r = 0; r < matrix.cells.size(); ++r) {
    const CellResult& cell = matrix.cells[r];
    std::vector<std::string> row = {fmt::format("{}", r + 1)};
    for (const auto& [name, value] : cell.cell.settings) row.push_back(value);
    row.resize(matrix.switches.size() + 1);
    row.insert(row.end(), {verdict_name(cell.verdict), cell.why, figure(cell.seconds)});
    table.rows.push_back(std::move(row));
    for (const CellFigure& one : cell.figures) {
      strips.push_back({fmt::format("{} {}", r + 1, one.name), one.unit, one.samples});
    }
  }
  page.table(table);
  if (strips.size() > kMostStrips) {
    page.paragraph(fmt::format("Of {} series the first {} are shown; the document has all.",
                               strips.size(), kMostStrips));
    strips.resize(kMostStrips);
  }
  add_samples(&page, strips);
  end_page(&page, document);
  return page;
}

}  // namespace moxie
