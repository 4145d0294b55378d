// The table in Markdown, and the check that it is of today's switches.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "lab/matrix_output.h"

namespace moxie {
namespace {

constexpr const char* kHead =
    "# Which switches work together\n\n"
    "`moxie matrix` wrote this page ([how to make it, and what it checks](reports.md#the-matrix)). "
    "Each line of the second table is a cell: one value of each switch, run through the levels of "
    "`moxie validate` in a process of its own. **plan**, **logits** and **answer** are the same "
    "with "
    "and without the switches that are at their default; **other rows**: steps that no switch of "
    "the "
    "cell touches keep their rows. A `-` was not run or not checked.\n";

// Text for a cell of a table.
std::string cell_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '\\' || c == '`' || c == '<') out += '\\';
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string code(const std::string& text) { return "`" + text + "`"; }

std::string switch_line(const MatrixSwitch& one) {
  return fmt::format("| {} | {} | {} |", code(one.name), fmt::join(one.values, ", "),
                     one.preset.empty() ? "none" : one.preset);
}

std::string mark(std::optional<bool> passed) { return !passed ? "-" : *passed ? "yes" : "NO"; }

// The levels that any cell has, in the order of their numbers.
std::vector<std::string> levels_of(const Matrix& matrix) {
  std::map<double, std::string> levels;
  for (const CellResult& cell : matrix.cells) {
    for (const CellLevel& level : cell.levels) {
      double number = 0;
      std::istringstream(level.level) >> number;
      levels[number] = level.level;
    }
  }
  std::vector<std::string> names;
  for (const auto& [number, name] : levels) names.push_back(name);
  return names;
}

std::string result_line(const CellResult& result, const std::vector<std::string>& levels,
                        const std::string& note) {
  std::string line = "|";
  for (const auto& [name, value] : result.cell.settings)
    line += fmt::format(" {} |", cell_text(value));
  for (const std::string& level : levels) {
    const auto found = std::find_if(result.levels.begin(), result.levels.end(),
                                    [&](const CellLevel& one) { return one.level == level; });
    line += fmt::format(" {} |", found == result.levels.end() ? "-" : mark(found->passed));
  }
  for (size_t i = 0; i < 4; ++i) {
    line += fmt::format(
        " {} |", i < result.orthogonality.size() ? mark(result.orthogonality[i].passed) : "-");
  }
  return line + fmt::format(" {}{} |\n", verdict_name(result.verdict), note);
}

// The words of a line of a table: "| a | b |" to {"a", "b"}.
std::vector<std::string> columns(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  for (size_t i = 1; i < line.size(); ++i) {
    if (line[i] == '|' && line[i - 1] != '\\') {
      const size_t first = word.find_first_not_of(' '), last = word.find_last_not_of(' ');
      words.push_back(first == std::string::npos ? "" : word.substr(first, last - first + 1));
      word.clear();
    } else {
      word += line[i];
    }
  }
  return words;
}

}  // namespace

std::string matrix_markdown(const Matrix& matrix, std::span<const MatrixSwitch> known) {
  const MatrixKey& key = matrix.key;
  std::string text = kHead;
  text += fmt::format("\nModel {}, on {}; levels up to {}{}. Commit {}{}.\n", cell_text(key.model),
                      cell_text(key.device), key.level, key.quick ? " (`--quick`)" : "",
                      key.commit.substr(0, 12), key.dirty ? ", with changes" : "");
  text += "\n| switch | values that the program knows | default |\n|---|---|---|\n";
  for (const MatrixSwitch& one : known) text += switch_line(one) + "\n";
  const std::vector<std::string> levels = levels_of(matrix);
  std::string head = "\n|", rule = "\n|";
  for (const MatrixSwitch& one : matrix.switches)
    head += " " + code(one.name) + " |", rule += "---|";
  for (const std::string& level : levels) head += " " + level + " |", rule += "---|";
  text +=
      head + " plan | logits | answer | other rows | result |" + rule + "---|---|---|---|---|\n";
  std::vector<std::string> reasons;
  for (const CellResult& cell : matrix.cells) {
    std::string note;
    if (!cell.why.empty()) {
      auto found = std::find(reasons.begin(), reasons.end(), cell.why);
      if (found == reasons.end()) found = reasons.insert(reasons.end(), cell.why);
      note = fmt::format(" ({})", found - reasons.begin() + 1);
    }
    text += result_line(cell, levels, note);
  }
  text += fmt::format("\n{} passed, {} failed, {} invalid, {} crashed, {} cannot run here.\n",
                      matrix.count(CellVerdict::kPassed), matrix.count(CellVerdict::kFailed),
                      matrix.count(CellVerdict::kInvalid), matrix.count(CellVerdict::kCrashed),
                      matrix.count(CellVerdict::kCannotRun));
  if (!reasons.empty()) text += "\n";
  for (size_t i = 0; i < reasons.size(); ++i)
    text += fmt::format("{}. {}\n", i + 1, cell_text(reasons[i]));
  return text;
}

std::vector<std::string> stale_lines(const std::string& markdown,
                                     std::span<const MatrixSwitch> features) {
  std::set<std::string> lines;
  std::vector<std::string> in_order;
  std::istringstream all(markdown);
  for (std::string line; std::getline(all, line);) lines.insert(line), in_order.push_back(line);
  std::vector<std::string> stale;
  for (const MatrixSwitch& one : features) {
    if (!lines.contains(switch_line(one))) stale.push_back("lacks: " + switch_line(one));
  }
  // The table of cells begins with the names of its switches and ends with an empty line.
  auto at = std::find_if(in_order.begin(), in_order.end(), [](const std::string& line) {
    return line.starts_with("| `--") && line.ends_with("| result |");
  });
  if (at == in_order.end()) {
    stale.push_back("has no table of cells");
    return stale;
  }
  std::vector<MatrixSwitch> switches;
  for (const std::string& name : columns(*at)) {
    if (name.starts_with("`--")) switches.push_back({name.substr(1, name.size() - 2), {}, ""});
  }
  std::set<std::string> cells;
  for (at += 2; at < in_order.end() && at->starts_with("|"); ++at) {
    const std::vector<std::string> words = columns(*at);
    MatrixCell cell;
    for (size_t i = 0; i < switches.size() && i < words.size(); ++i) {
      cell.settings.emplace_back(switches[i].name, words[i]);
      std::vector<std::string>& values = switches[i].values;
      if (std::find(values.begin(), values.end(), words[i]) == values.end())
        values.push_back(words[i]);
    }
    cells.insert(cell.key());
  }
  for (const MatrixCell& cell : matrix_cells(switches)) {
    if (!cells.contains(cell.key())) stale.push_back("lacks the cell " + cell.key());
  }
  for (const MatrixSwitch& one : switches) {
    const auto found =
        std::find_if(features.begin(), features.end(),
                     [&](const MatrixSwitch& other) { return other.name == one.name; });
    if (found == features.end()) {
      stale.push_back("has a switch that is none any more: " + one.name);
      continue;
    }
    for (const std::string& value : one.values) {
      if (std::find(found->values.begin(), found->values.end(), value) == found->values.end())
        stale.push_back(fmt::format("has a value that is none any more: {}={}", one.name, value));
    }
  }
  return stale;
}

}  // namespace moxie
