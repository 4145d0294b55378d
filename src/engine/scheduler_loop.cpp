// The scheduler's side of the decode loop: which launches run there, and what the first is given.
#include <algorithm>

#include "engine/scheduler.h"

namespace moxie {

// The loop runs launches with one token a request whose draws need nothing from the host.
InLoop Scheduler::place_in_loop(const StepPlan& plan) const {
  if (std::cmp_greater(plan.rows.size(), options_.max_loop_streams)) return InLoop::kNo;
  for (const StepPlan::Row& row : plan.rows) {
    if (row.count != 1 || !row.draws || row.request->constraint != nullptr) return InLoop::kNo;
    if (row.request->speculates && !row.request->runs_ahead) return InLoop::kNo;
    if (!row.request->sampler.is_free()) return InLoop::kNo;
  }
  return goes_on_in_loop(plan) ? InLoop::kNext : InLoop::kFirst;
}

// True if each of its tokens is drawn by the same row of the last launch, and the session's first
// launch told the device all that the draws need: their requests, and tokens given instead of drawn
// ones.
bool Scheduler::goes_on_in_loop(const StepPlan& plan) const {
  if (num_loop_rows_ != plan.rows.size() || plan.awaited.size() != plan.rows.size()) return false;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (!std::cmp_equal(plan.awaited[i].second, i)) return false;
    const StepPlan::Row& row = plan.rows[i];
    if (row.request->sampler.changes_at(row.num_drawn())) return false;
    const bool is_given = std::cmp_less(row.num_drawn() - 1, row.request->given.size());
    if (is_given != (loop_step_ < loop_fed_)) return false;
  }
  return true;
}

// Writes the requests of the draws now, since the draws follow the forward pass without the host,
// and the tokens given instead of drawn ones.
void Scheduler::begin_loop(StepPlan* plan) {
  plan->requests.clear();
  int64_t num_fed = DecodeLoop::kMaxFed;
  for (const StepPlan::Row& row : plan->rows) {
    plan->requests.push_back(row.request->sampler.next(row.num_drawn(), nullptr, {}));
    num_fed = std::min(num_fed, static_cast<int64_t>(row.request->given.size()) - row.num_drawn());
  }
  loop_step_ = 0;
  loop_fed_ = plan->arrays.num_fed = static_cast<int32_t>(std::max<int64_t>(0, num_fed));
  for (const StepPlan::Row& row : plan->rows) {
    const auto from = row.request->given.begin() + (loop_fed_ > 0 ? row.num_drawn() : 0);
    plan->arrays.fed.insert(plan->arrays.fed.end(), from, from + loop_fed_);
  }
}

}  // namespace moxie
