// moxie matrix: the product of switches, each cell validated in a process of its own, as a table
// and one record.
#include "lab/matrix.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/output.h"
#include "apps/shown_device.h"
#include "apps/switches.h"
#include "core/child_process.h"
#include "core/whole_file.h"
#include "lab/matrix_output.h"
#include "lab/record.h"
#include "lab/record_read.h"
#include "lab/stats.h"

extern char** environ;

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct MatrixFlags {
  EngineOptions engine;  // its switches go to the cells as they were given
  std::vector<std::string> switches;
  std::string level = "4", record, markdown, report, records, against, check;
  int32_t timeout_s = 3600;
  bool quick = false, resume = false, json = false;
};

// Switches of this command that are none of the cells'.
constexpr const char* kOwn[] = {"--switch",  "--level",   "--record",          "--markdown",
                                "--report",  "--records", "--against-records", "--check-markdown",
                                "--timeout", "--quick",   "--resume",          "--json",
                                "--config",  "--against", "--expect",          "--forbid"};
// Switches with values to choose from that are conditions of a run, not features.
constexpr const char* kNoFeatures[] = {"--device", "--level", "--model", "--spec-model",
                                       "--tuning"};

bool is_one_of(const std::string& name, std::span<const char* const> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Table {
 public:
  explicit Table(const std::vector<Command>& commands) : all_(switches_of(commands)) {}
  const Switch* find(const std::string& command, const std::string& name) const {
    for (const CommandSwitches& one : all_) {
      if (one.path == command) return one.find(name);
    }
    return nullptr;
  }
  /// The switches of `moxie validate` with values to choose from, with those values.
  std::vector<MatrixSwitch> features() const {
    std::vector<MatrixSwitch> features;
    for (const CommandSwitches& one : all_) {
      if (one.path != "validate") continue;
      for (const Switch& known : one.switches) {
        if (!known.values.empty() && !is_one_of(known.name, kNoFeatures))
          features.push_back({known.name, known.values, known.preset});
      }
    }
    return features;
  }

 private:
  std::vector<CommandSwitches> all_;
};

// The switches to vary, checked against those of `moxie validate`.
Result<std::vector<MatrixSwitch>> switches_to_vary(const MatrixFlags& o, const Table& table,
                                                   const Flags& flags) {
  std::vector<MatrixSwitch> switches;
  for (const std::string& text : o.switches) {
    auto one = parse_matrix_switch(text);
    if (!one) return fail(std::move(one.error()));
    const Switch* known = table.find("validate", one->name);
    if (known == nullptr)
      return fail(one->name + " is no switch of `moxie validate`", "--switch",
                  "`moxie validate --help` lists them");
    if (known->type.empty() || is_one_of(one->name, kOwn))
      return fail(one->name + " is no switch to vary", "--switch");
    if (flags.given(one->name))
      return fail(one->name + " has a value for all cells already", "--switch", "leave one out");
    for (const MatrixSwitch& other : switches) {
      if (other.name == one->name) return fail(one->name + " twice", "--switch");
    }
    for (const std::string& value : one->values) {
      const auto& values = known->values;
      if (known->is_closed && std::find(values.begin(), values.end(), value) == values.end())
        return fail(fmt::format("{} takes {}, not '{}'", one->name, fmt::join(values, ", "), value),
                    "--switch");
    }
    one->preset = known->preset;
    switches.push_back(std::move(*one));
  }
  if (switches.empty())
    return fail("nothing to vary", "--switch", "such as --switch kv-dtype=bf16,f32");
  return switches;
}

// The switches that were given, by any source, as arguments of every cell.
std::vector<std::string> common_arguments(const MatrixFlags& o, const Flags& flags) {
  std::vector<std::string> common;
  for (const auto& setting : flags.settings()) {
    if (setting.source == "default" || is_one_of(setting.name, kOwn)) continue;
    if (setting.name == "--kernel") continue;
    common.push_back(setting.name + "=" + setting.value);
  }
  for (const std::string& kernel : o.engine.kernels) common.push_back("--kernel=" + kernel);
  return common;
}

// Values from MOXIE_* variables are among the common arguments. Programs that are started must see
// the switches of their cell alone.
void forget_variables() {
  std::vector<std::string> names;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string text = *at;
    const std::string name = text.substr(0, text.find('='));
    if (name.starts_with("MOXIE_") && name != "MOXIE_LOG") names.push_back(name);
  }
  for (const std::string& name : names) unsetenv(name.c_str());
}

// A bar, and the cell that runs, on stderr: one line that is drawn again on a terminal, else a line
// a cell.
void show_progress(const MatrixCell& cell, size_t num_done, size_t num_cells) {
  constexpr size_t kWidth = 24;
  const size_t filled = kWidth * num_done / std::max<size_t>(num_cells, 1);
  const std::string bar = std::string(filled, '=') + std::string(kWidth - filled, ' ');
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  fmt::print(stderr, "{}[{}] {}/{} {}{}", is_terminal ? "\r\x1b[K" : "", bar, num_done, num_cells,
             cell.key(), is_terminal ? "" : "\n");
  std::fflush(stderr);
}

void end_progress() {
  if (::isatty(STDERR_FILENO) == 1) fmt::print(stderr, "\r\x1b[K");
}

// The matrix as a record: its series are the cells' figures.
Record record_of(const Matrix& matrix, const Flags& flags) {
  Record record{.kind = "matrix",
                .command = {.name = "matrix", .arguments = {}},
                .environment = collect_environment(),
                .memory_peak_bytes = peak_memory_bytes()};
  for (const auto& setting : flags.settings())
    record.configuration.push_back({setting.name, setting.value, setting.source});
  std::vector<std::string>& arguments = record.command.arguments;
  arguments = matrix.key.common;
  arguments.push_back("--level=" + matrix.key.level);
  if (matrix.key.quick) arguments.emplace_back("--quick");
  for (const MatrixSwitch& one : matrix.switches)
    arguments.push_back(fmt::format("--switch={}={};", one.name, fmt::join(one.values, ";")));
  record.weights.model = matrix.key.model;
  for (const CellResult& cell : matrix.cells) {
    for (const CellFigure& one : cell.figures)
      record.results.push_back({.name = fmt::format("{} {}", one.name, cell.cell.key()),
                                .unit = one.unit,
                                .samples = one.samples,
                                .better = one.better});
  }
  record.details = json_text(to_json(matrix));
  return record;
}

// Cells of an earlier run with the same key. A key that differs is a fault: results of other
// sources or devices beside these would be a table of two things.
Result<std::vector<CellResult>> cells_done(const MatrixFlags& o, const MatrixKey& key) {
  if (!o.resume || !fs::exists(o.record)) return std::vector<CellResult>{};
  auto record = read_record(o.record);
  if (!record) return fail(std::move(record.error()));
  if (record->kind != "matrix" || record->details.empty())
    return fail("is no record of a matrix", o.record, "leave out --resume to begin anew");
  auto earlier = parse_matrix(nlohmann::json::parse(record->details, nullptr, false), o.record);
  if (!earlier) return fail(std::move(earlier.error()));
  if (!(earlier->key == key)) {
    return fail("is of another commit, device, model, level or switches", o.record,
                "leave out --resume to begin anew");
  }
  return earlier->cells;
}

void print_matrix(const Matrix& matrix) {
  for (const CellResult& cell : matrix.cells) {
    fmt::print("{:<11} {}{}{}\n", verdict_name(cell.verdict), cell.cell.key(),
               cell.why.empty() ? "" : ": ", cell.why);
    for (const CellFigure& one : cell.figures)
      fmt::print("            {:<28} {:>10.2f} {}\n", one.name, median(one.samples), one.unit);
  }
  fmt::print("\n{} cells: {} passed, {} failed, {} invalid, {} crashed, {} cannot run here\n",
             matrix.cells.size(), matrix.count(CellVerdict::kPassed),
             matrix.count(CellVerdict::kFailed), matrix.count(CellVerdict::kInvalid),
             matrix.count(CellVerdict::kCrashed), matrix.count(CellVerdict::kCannotRun));
}

int check_markdown(const MatrixFlags& o, const Table& table) {
  auto text = read_text(o.check);
  if (!text) return report(text.error());
  const std::vector<std::string> stale = stale_lines(*text, table.features());
  if (o.json) {
    print_document(Json{{"stale", !stale.empty()}, {"lines", stale}});
  } else {
    for (const std::string& line : stale) fmt::print("{}\n", line);
    fmt::print("{}: {}\n", o.check, stale.empty() ? "of today's switches" : "stale");
  }
  return stale.empty() ? kExitDone : kExitFailed;
}

Result<MatrixKey> key_of(const MatrixFlags& o, const std::vector<std::string>& common) {
  auto device = shown_device(o.engine.device);
  if (!device) return fail(std::move(device.error()));
  const Environment environment = collect_environment();
  return MatrixKey{.commit = environment.commit,
                   .device = device->kind == DeviceKind::kCpu ? environment.cpu : device->name,
                   .model = o.engine.model,
                   .level = o.level,
                   .dirty = environment.dirty,
                   .quick = o.quick,
                   .common = common};
}

int write_outputs(const MatrixFlags& o, const Flags& flags, const Table& table,
                  const Matrix& matrix) {
  const Json document = {{"model", {{"name", matrix.key.model}}},
                         {"matrix", to_json(matrix)},
                         {"record", to_json(record_of(matrix, flags))}};
  if (!o.markdown.empty()) {
    const std::string text = matrix_markdown(matrix, table.features());
    if (auto status = write_whole_file(o.markdown, text, "table"); !status)
      return report(status.error());
  }
  if (!o.report.empty()) {
    if (auto status = write_page(matrix_page(matrix, document), o.report); !status)
      return report(status.error());
  }
  if (o.json) {
    print_document(document);
  } else {
    print_matrix(matrix);
  }
  return matrix.passed() ? kExitDone : kExitFailed;
}

int run(MatrixFlags& o, const Flags& flags, const std::vector<Command>& commands) {
  const Table table(commands);
  if (!o.check.empty()) return check_markdown(o, table);
  auto switches = switches_to_vary(o, table, flags);
  if (!switches) return usage("matrix: " + switches.error().message());
  if (o.resume && o.record.empty()) return usage("matrix: --resume needs --record FILE");
  Matrix matrix{.switches = *switches, .num_cells = matrix_cells(*switches).size()};
  const std::vector<std::string> common = common_arguments(o, flags);
  auto key = key_of(o, common);
  if (!key) return report(key.error());
  matrix.key = std::move(*key);
  auto done = cells_done(o, matrix.key);
  if (!done) return report(done.error());
  std::error_code error;
  const std::string self = fs::read_symlink("/proc/self/exe", error).string();
  if (error)
    return report({"this program's path cannot be read", "/proc/self/exe", error.message()});
  for (const std::string& file : {o.record, o.markdown, o.report})
    if (auto status = check_output(file); !status) return report(status.error());
  if (!o.records.empty()) fs::create_directories(o.records, error);
  if (error) return report({"the folder cannot be made", o.records, error.message()});
  forget_variables();
  const std::string scratch =
      (fs::temp_directory_path(error) / fmt::format("moxie-matrix-{}.safetensors", ::getpid()))
          .string();
  MatrixOptions options{
      .switches = *switches,
      .common = common,
      .level = o.level,
      .quick = o.quick,
      .records_folder = o.records,
      .against_folder = o.against,
      .scratch_path = scratch,
      .moxie =
          [&](std::vector<std::string> arguments) {
            arguments.insert(arguments.begin(), self);
            return run_process(arguments, "", {}, o.timeout_s, [&] {
              end_progress();
              std::error_code ignored;
              fs::remove(scratch, ignored);
            });
          },
      .has_switch = [&](const std::string& command,
                        const std::string& name) { return table.find(command, name) != nullptr; },
      .done = std::move(*done),
      .on_start = show_progress,
      .on_result = [&](const std::vector<CellResult>& results) -> Status {
        if (o.record.empty()) return {};
        matrix.cells = results;
        return write_record(record_of(matrix, flags), o.record);
      }};
  auto results = run_matrix(options);
  end_progress();
  if (!results) return report(results.error());
  matrix.cells = std::move(*results);
  if (!o.record.empty()) {
    if (auto status = write_record(record_of(matrix, flags), o.record); !status)
      return report(status.error());
  }
  return write_outputs(o, flags, table, matrix);
}

}  // namespace

Command matrix_command(const std::vector<Command>* commands) {
  auto o = std::make_shared<MatrixFlags>();
  return {
      .name = "matrix",
      .summary = "The product of switches: each cell validated, and that defaults change nothing",
      .example = "moxie matrix --switch kv-dtype=auto,bf16 --switch activation=auto,int8 --quick",
      .declare =
          [o](Flags& flags) {
            declare_model_flags(flags, &o->engine);
            flags.unsigned64("--seed", &o->engine.seed, {0, UINT64_MAX}, "of synthetic weights");
            flags.texts("--switch", &o->switches,
                        "NAME=A,B: a switch of `moxie validate` and the values to try; with ';' "
                        "between them values may hold commas; repeatable");
            flags.choice("--level", &o->level, {"1", "1.5", "2", "3", "4", "5"},
                         "the last level of `moxie validate`");
            flags.toggle("--quick", &o->quick, "shorter stress and benchmark");
            flags.text("--record", &o->record, "write one record, also after each cell");
            flags.toggle("--resume", &o->resume,
                         "take over the cells that --record FILE has, if commit, device, model and "
                         "switches are the same");
            flags.text("--records", &o->records,
                       "folder for a record of each cell; made if it is not there");
            flags.text("--against-records", &o->against,
                       "folder that --records wrote: level 5 compares each cell with its record");
            flags.integer("--timeout", &o->timeout_s, {1, 1 << 20}, "seconds a cell may take");
            flags.text("--markdown", &o->markdown, "write docs/feature-matrix.md to this file");
            flags.text("--report", &o->report, "HTML file for charts, tables and conditions");
            flags.text("--check-markdown", &o->check,
                       "only tell whether a file that --markdown wrote is of today's switches");
            flags.toggle("--json", &o->json, "print one JSON document");
          },
      .run = [o, commands](const Flags& flags) { return run(*o, flags, *commands); }};
}

}  // namespace moxie
