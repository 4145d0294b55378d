// Orthogonality: whether switches at their defaults change nothing, and switches leave the steps
// alone that are not theirs. It is seen from outside, by running `moxie` with and without them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lab/matrix.h"

namespace moxie {

/// The steps whose rows a switch may change; empty optional: not known of this switch.
std::optional<std::set<std::string>> steps_of_switch(const std::string& name,
                                                     const std::string& value);

/// What `moxie kernels --plan --json` printed, without times.
struct ProbedPlan {
  struct Row {
    std::string name;
    std::set<std::string> covers;
    bool operator==(const Row&) const = default;
  };
  /// By place, "8 tokens, window layers: qkv".
  std::map<std::string, Row> rows;
  std::string text;  ///< all rows with their forms: equal plans have equal texts
};
/// Fails if it is no such document.
Result<ProbedPlan> parse_probed_plan(const std::string& json);

/// Places whose row differs, though neither its old nor its new row covers a step of `touched`.
std::vector<std::string> rows_changed_elsewhere(const ProbedPlan& before, const ProbedPlan& after,
                                                const std::set<std::string>& touched);

class MatrixProbes {
 public:
  /// `options` is borrowed.
  explicit MatrixProbes(const MatrixOptions& options) : options_(options) {}

  /// Plans of the configuration without the switches. Fails with its reason.
  Status probe_baseline();
  /// Why the cell cannot run here; empty: it can.
  std::string refusal(const MatrixCell& cell);
  /// Of a cell that can run.
  std::vector<CellCheck> check(const MatrixCell& cell);

 private:
  using Settings = std::vector<std::pair<std::string, std::string>>;
  ProcessResult run(const std::string& command, const std::vector<std::string>& words,
                    const Settings& settings);
  CellCheck compare(const std::string& name, const std::string& command, const MatrixCell& cell,
                    Result<std::string> (MatrixProbes::*probe)(const Settings&));
  CellCheck check_other_rows(const MatrixCell& cell);
  Result<std::string> plan_text(const Settings& settings);
  Result<std::string> logits(const Settings& settings);
  Result<std::string> answer(const Settings& settings);
  bool is_preset(const std::pair<std::string, std::string>& setting) const;

  const MatrixOptions& options_;
  ProbedPlan baseline_;
};

/// The last line that a process wrote to stderr, without "moxie: error: "; or how it ended.
std::string reason_of(const ProcessResult& process);

}  // namespace moxie
