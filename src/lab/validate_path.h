// The kernel path: which rows ran, against the rows that the plans of the launches hold.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/step_runner.h"

namespace moxie {

/// Launches by bracket.
using LaunchList = std::map<Bracket, uint64_t>;
/// Adds one launch.
void note_launch(int32_t num_tokens, int32_t num_seqs, int32_t num_logit_rows, LaunchList* list);

/// A runner that notes each launch in `list`, which must outlive it, and passes it on.
std::unique_ptr<StepRunner> note_launches(std::unique_ptr<StepRunner> runner, LaunchList* list);

/// Launches of each row of the pass, by step and name.
using RowLaunches = std::map<std::pair<std::string, std::string>, uint64_t>;

/// What the plans hold that an engine with `options` would make for these launches, as `moxie
/// kernels --plan` prints them. The plans are made anew from the options alone: from `engine` come
/// only the model, the device and the cache's format.
Result<RowLaunches> planned_launches(const EngineOptions& options, Engine& engine,
                                     const LaunchList& launches);
/// What ran: the counts of the rows of the pass.
RowLaunches launches_that_ran(std::span<const KernelChooser::Count> counts);
/// The first differences, as text; empty: there is none. `others_too`: rows that are not planned
/// may have run as well, and any row more often.
std::string difference(const RowLaunches& planned, const RowLaunches& ran, bool others_too);

/// Which rows "STEP=NAME" means, as for `--kernel`: a row, a kind of rows, "reference".
struct NamedRows {
  std::string text;  ///< as given
  std::string step;
  std::vector<std::string> names;
};
/// An error names `flag` and the nearest name that exists.
Result<NamedRows> parse_named_rows(const std::string& text, const char* flag);

}  // namespace moxie
