// Steps of the CPU, timed by the chooser that runs them.
#include "lab/activity.h"

#include <map>

namespace moxie {
namespace {

class StepRecorder final : public ActivityRecorder {
 public:
  explicit StepRecorder(KernelChooser& kernels) : kernels_(kernels) {}
  ~StepRecorder() override { kernels_.set_on_run(nullptr); }

  Status start() override {
    log_ = {};
    symbols_.clear();
    kernels_.set_on_run(
        [this](const OpInfo&, const char* row, Clock::time_point start, Clock::time_point end) {
          const auto [found, is_new] =
              symbols_.try_emplace(row, static_cast<int32_t>(log_.symbols.size()));
          if (is_new) log_.symbols.emplace_back(row);
          log_.activities.push_back({clock_ns(start), clock_ns(end), found->second});
        });
    return {};
  }

  Result<ActivityLog> stop() override {
    kernels_.set_on_run(nullptr);
    return std::move(log_);
  }

  bool sees_kernels() const override { return false; }

 private:
  KernelChooser& kernels_;
  ActivityLog log_;
  std::map<const char*, int32_t> symbols_;
};

}  // namespace

std::unique_ptr<ActivityRecorder> make_step_recorder(KernelChooser& kernels) {
  return std::make_unique<StepRecorder>(kernels);
}

}  // namespace moxie
