// Notes launches on their way to a runner, and makes their plans a second time.
#include "lab/validate_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lab/passing_runner.h"
#include "model/pass.h"

namespace moxie {
namespace {

class NotingRunner : public PassingRunner {
 public:
  NotingRunner(std::unique_ptr<StepRunner> runner, LaunchList* list)
      : PassingRunner(std::move(runner)), list_(list) {}

  Status run(const HostArrays& arrays) override {
    note_launch(static_cast<int32_t>(arrays.token_ids.size()),
                static_cast<int32_t>(arrays.row_offsets.size()) - 1,
                static_cast<int32_t>(arrays.logit_rows.size()), list_);
    return PassingRunner::run(arrays);
  }
  Status launch(const HostArrays& arrays, InLoop in_loop,
                std::span<const SampleRequest> requests) override {
    const auto streams = static_cast<int32_t>(arrays.positions.size());
    note_launch(streams, streams, streams, list_);
    return PassingRunner::launch(arrays, in_loop, requests);
  }

 private:
  LaunchList* list_;
};

// The steps of a pass: draws and the operations of draft heads are no part of its plan.
bool is_of_pass(const OpInfo& op) {
  const OpInfo* const of_pass[] = {
      &Op<EmbedParams>::info,  &Op<QkvParams>::info,     &Op<AttendParams>::info,
      &Op<OutParams>::info,    &Op<RouteParams>::info,   &Op<ExpertsParams>::info,
      &Op<TapParams>::info,    &Op<UnembedParams>::info, &Op<ReduceParams>::info,
      &Op<GatherParams>::info,
  };
  return std::ranges::find(of_pass, &op) != std::end(of_pass);
}

void add_row(const PlannedRow& planned, uint64_t times, RowLaunches* rows) {
  for (const OpInfo* op : planned.row.ops) (*rows)[{op->name, planned.row.name}] += times;
}

}  // namespace

void note_launch(int32_t num_tokens, int32_t num_seqs, int32_t num_logit_rows, LaunchList* list) {
  ++(*list)[bracket_of(num_tokens, num_seqs, num_logit_rows)];
}

std::unique_ptr<StepRunner> note_launches(std::unique_ptr<StepRunner> runner, LaunchList* list) {
  return std::make_unique<NotingRunner>(std::move(runner), list);
}

Result<RowLaunches> planned_launches(const EngineOptions& options, Engine& engine,
                                     const LaunchList& launches) {
  const KernelChooser& loaded = engine.kernels();
  auto choice = kernel_choice(options, loaded.features());
  if (!choice) return fail(std::move(choice.error()));
  KernelChooser kernels(loaded.device(), loaded.features(), std::move(*choice), loaded.rates());
  const std::span<const int32_t> taps = engine.model().taps();
  const GptOss model(engine.model().config(), engine.weights(), {}, kernels, true,
                     {taps.begin(), taps.end()});
  RowLaunches rows;
  for (const auto& [bracket, times] : launches) {
    const auto plan = model.plan_for(bracket, engine.kv_dtype());
    if (!plan) return fail(plan.error());
    add_row((*plan)->embed, times, &rows);
    for (size_t l = 0; l < (*plan)->chain_of_layer.size(); ++l)
      for (const PlannedRow& row : (*plan)->layer(l)) add_row(row, times, &rows);
    if (bracket.num_logit_rows == 0) continue;
    add_row((*plan)->unembed, times, &rows);
    for (const PlannedRow& row : (*plan)->behind) add_row(row, times, &rows);
  }
  return rows;
}

RowLaunches launches_that_ran(std::span<const KernelChooser::Count> counts) {
  RowLaunches rows;
  for (const KernelChooser::Count& count : counts)
    if (count.launches > 0 && is_of_pass(*count.op))
      rows[{count.op->name, count.name}] += count.launches;
  return rows;
}

std::string difference(const RowLaunches& planned, const RowLaunches& ran, bool others_too) {
  constexpr size_t kMostShown = 4;
  std::vector<std::string> found;
  const auto times_of = [](const RowLaunches& rows, const auto& key) {
    const auto at = rows.find(key);
    return at == rows.end() ? uint64_t{0} : at->second;
  };
  std::set<std::pair<std::string, std::string>> keys;
  for (const auto& [key, times] : planned) keys.insert(key);
  for (const auto& [key, times] : ran) keys.insert(key);
  for (const auto& key : keys) {
    const uint64_t in_plan = times_of(planned, key), in_run = times_of(ran, key);
    if (in_plan == in_run || (others_too && in_run > in_plan)) continue;
    const std::string row = fmt::format("{}={}", key.first, key.second);
    if (in_plan == 0) {
      found.push_back(fmt::format("{} ran {} times and was not planned", row, in_run));
    } else if (in_run == 0) {
      found.push_back(fmt::format("{} was planned {} times and did not run", row, in_plan));
    } else {
      found.push_back(fmt::format("{} was planned {} times and ran {}", row, in_plan, in_run));
    }
  }
  const size_t num_found = found.size();
  if (num_found > kMostShown) {
    found.resize(kMostShown);
    found.push_back(fmt::format("and {} more", num_found - kMostShown));
  }
  return fmt::format("{}", fmt::join(found, "; "));
}

Result<NamedRows> parse_named_rows(const std::string& text, const char* flag) {
  KernelChoice choice;  // knows steps and names, and the nearest of each
  const auto equals = text.find('=');
  const std::string step = text.substr(0, equals);
  if (step == "all" || (equals != std::string::npos && text.substr(equals + 1) == "auto"))
    return fail("'" + text + "' names no rows of one step", flag, "STEP=NAME");
  if (auto known = choice.add(text); !known) {
    Error error = known.error();
    error.where = flag;
    return fail(std::move(error));
  }
  const OpInfo& op = *op_named(step);
  const std::string& name = *choice.forced(op);
  NamedRows rows{.text = text, .step = step, .names = {}};
  for (const RowInfo& row : all_rows()) {
    const bool does_step = std::ranges::find(row.ops, &op) != row.ops.end();
    if (does_step && (row.name == name || (&row.op() == &op && row.kind == name)))
      rows.names.push_back(row.name);
  }
  return rows;
}

}  // namespace moxie
