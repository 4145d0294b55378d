// The product of switches, each cell validated: which combinations work here, which cannot run and
// why, and whether a switch that is at its default changes anything. Cells run in processes of
// their own, one after another, so that a cell that crashes ends nothing but itself.
//
//   MatrixOptions options{.switches = {{"--kv-dtype", {"bf16", "f32"}, "auto"}}, ...};
//   auto cells = run_matrix(options);
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base.h"
#include "core/child_process.h"
#include "lab/record.h"

namespace moxie {

struct MatrixSwitch {
  std::string name;  ///< "--kv-dtype"
  std::vector<std::string> values;
  std::string preset;  ///< the value where the switch is not given
};

/// Reads "kv-dtype=bf16,f32" or "--kv-dtype=bf16,f32". With a ';' in the text values are separated
/// by ';' and may hold commas. Fails without a name, without values and for a value given twice.
/// `preset` stays empty.
Result<MatrixSwitch> parse_matrix_switch(const std::string& text);

/// A value for each switch, in the order of the switches.
struct MatrixCell {
  std::vector<std::pair<std::string, std::string>> settings;
  std::string key() const;        ///< "--kv-dtype=bf16 --spec=off"
  std::string file_name() const;  ///< "kv-dtype_bf16.spec_off.json"
};
/// The product; the last switch changes fastest.
std::vector<MatrixCell> matrix_cells(std::span<const MatrixSwitch> switches);

enum class CellVerdict : uint8_t {
  kPassed,
  kFailed,
  kInvalid,    ///< its kernels are not the expected ones: no figure of it counts
  kCrashed,    ///< the process ended by a signal, or took too long
  kCannotRun,  ///< refused here, with a reason: neither a failure nor a pass
};
/// "passed", "failed", "invalid", "crashed", "cannot run".
const char* verdict_name(CellVerdict verdict);
std::optional<CellVerdict> verdict_of_name(std::string_view name);

/// One check of orthogonality.
struct CellCheck {
  std::string name;
  std::optional<bool> passed;  ///< empty: not checked, `value` says why
  std::string value;
};

/// A level as `moxie validate --json` tells it.
struct CellLevel {
  std::string level;  ///< "1.5"
  bool passed = false;
  std::string why;  ///< the first check that failed, or why it was not run; empty if passed
};

struct CellFigure {
  std::string name, unit;
  std::vector<double> samples;
  Better better = Better::kHigher;
};

struct CellResult {
  MatrixCell cell;
  CellVerdict verdict = CellVerdict::kFailed;
  std::string why = {};  ///< of every verdict but kPassed
  std::vector<CellLevel> levels = {};
  std::vector<CellCheck> orthogonality = {};
  std::vector<CellFigure> figures = {};
  double seconds = 0;
};

/// Exit codes of `moxie`: failed with a reason, and a usage error.
inline constexpr int kExitOfRefusal = 1, kExitOfUsage = 2;

/// Runs `moxie` with these arguments.
using RunMoxie = std::function<ProcessResult(const std::vector<std::string>& arguments)>;

struct MatrixOptions {
  std::vector<MatrixSwitch> switches;
  std::vector<std::string> common;  ///< "--model=embedded": the same in all cells
  std::string level = "4";          ///< the last level of validate
  bool quick = false;
  std::string records_folder;  ///< each cell's record; empty: none
  std::string against_folder;  ///< records to compare with in level 5, by file_name(); empty: none
  std::string scratch_path;    ///< a file that probes may write, and remove
  RunMoxie moxie;
  /// Whether a command ("score") has a switch ("--spec").
  std::function<bool(const std::string& command, const std::string& name)> has_switch;
  std::vector<CellResult> done;  ///< of an earlier run: not run again
  /// Before each cell; null: none.
  std::function<void(const MatrixCell& cell, size_t num_done, size_t num_cells)> on_start;
  /// After each cell that ran, with all results so far; a fault ends the matrix. Null: none.
  std::function<Status(const std::vector<CellResult>& results)> on_result;
};

/// All cells, in the order of matrix_cells(). Fails if the configuration without the switches
/// cannot run here: then nothing can be compared.
Result<std::vector<CellResult>> run_matrix(const MatrixOptions& options);

/// Reads what `moxie validate --json` printed into levels, figures, verdict and reason.
void read_validation(const ProcessResult& process, CellResult* result);

}  // namespace moxie
