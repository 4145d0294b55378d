// Records of CPU rows, timed by the chooser that runs them; and a device's records matched with the
// launches that they belong to.
#include "lab/activity.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "lab/kernel_table.h"

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
        [this](const OpInfo& op, const char* row, Clock::time_point start, Clock::time_point end) {
          const auto [found, is_new] =
              symbols_.try_emplace(row, static_cast<int32_t>(log_.symbols.size()));
          if (is_new) log_.symbols.push_back({row, &op});
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

tl::unexpected<Error> mismatch(std::string what) {
  return fail(std::move(what), "profile of kernels",
              "every kernel must be launched by launch_kernel() (core/cuda_launch.cuh), on the "
              "engine's stream; without profiling, `moxie bench` measures the same tests");
}

}  // namespace

Result<ActivityLog> match_launches(const std::vector<std::string>& names,
                                   std::vector<DeviceRecord> records,
                                   std::span<const NotedLaunch> launches) {
  const auto num_kernels =
      std::count_if(records.begin(), records.end(), [](const auto& r) { return r.is_kernel; });
  if (static_cast<size_t>(num_kernels) != launches.size()) {
    return mismatch(
        fmt::format("{} kernels ran and {} launches were noted", num_kernels, launches.size()));
  }
  const auto order = [](const DeviceRecord& r) {
    return std::tuple(r.activity.start_ns, r.correlation, r.graph_node);
  };
  std::sort(records.begin(), records.end(),
            [&](const auto& a, const auto& b) { return order(a) < order(b); });
  ActivityLog log;
  std::map<std::pair<int32_t, const OpInfo*>, int32_t> symbols;
  std::map<const void*, int32_t> name_of;
  auto launch = launches.begin();
  for (const DeviceRecord& record : records) {
    const int32_t name = record.activity.symbol;
    const OpInfo* op = nullptr;
    if (record.is_kernel) {
      if (launch->stream != launches.front().stream) {
        return mismatch("kernels ran on several streams");
      }
      if (const int32_t known = name_of.try_emplace(launch->kernel, name).first->second;
          known != name) {
        return mismatch(fmt::format("launch {} is of {}, and the device ran {}",
                                    launch - launches.begin(),
                                    short_kernel_name(names[static_cast<size_t>(known)]),
                                    short_kernel_name(names[static_cast<size_t>(name)])));
      }
      op = static_cast<const OpInfo*>(launch->op);
      ++launch;
    }
    const auto [found, is_new] =
        symbols.try_emplace({name, op}, static_cast<int32_t>(log.symbols.size()));
    if (is_new) log.symbols.push_back({names[static_cast<size_t>(name)], op});
    log.activities.push_back(record.activity);
    log.activities.back().symbol = found->second;
  }
  return log;
}

std::unique_ptr<ActivityRecorder> make_step_recorder(KernelChooser& kernels) {
  return std::make_unique<StepRecorder>(kernels);
}

}  // namespace moxie
