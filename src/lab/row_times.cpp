#include "lab/row_times.h"

#include <algorithm>

#include "lab/gpu_time.h"
#include "lab/stats.h"

namespace moxie {
namespace {

// Of the rows of one launch, more than any model has.
constexpr size_t kMostRows = 4096;
// The host gives the whole launch to the device within this time, so that no row waits for it.
constexpr double kHoldUs = 5000;

// Sets the chooser's callback for as long as it lives.
class OnRun {
 public:
  OnRun(KernelChooser& kernels, KernelChooser::OnRun on_run) : kernels_(kernels) {
    kernels_.set_on_run(std::move(on_run));
  }
  ~OnRun() { kernels_.set_on_run(nullptr); }
  OnRun(const OnRun&) = delete;
  OnRun& operator=(const OnRun&) = delete;

 private:
  KernelChooser& kernels_;
};

class CpuRowTimer final : public RowTimer {
 public:
  explicit CpuRowTimer(Engine& engine) : engine_(engine) {}

  Result<std::vector<RowTime>> time(const std::function<Status()>& launch) override {
    std::vector<RowTime> times;
    const OnRun watch(engine_.kernels(), [&times](const OpInfo& op, const char* row,
                                                  Clock::time_point start, Clock::time_point end) {
      times.push_back({&op, row, 1e6 * std::chrono::duration<double>(end - start).count()});
    });
    if (auto status = launch(); !status) return fail(std::move(status.error()));
    return times;
  }

 private:
  Engine& engine_;
};

class GpuRowTimer final : public RowTimer {
 public:
  GpuRowTimer(Engine& engine, std::unique_ptr<GpuMarks> marks)
      : engine_(engine), marks_(std::move(marks)) {}

  // What a kernel that does nothing takes between two marks is no part of a row's time: in a graph
  // rows follow each other without it.
  Status find_empty_us() {
    constexpr int kEmpty = 64;
    Stream& stream = engine_.stream();
    if (auto status = marks_->begin(stream, kHoldUs); !status) return status;
    for (int i = 0; i < kEmpty; ++i) {
      marks_->nothing(stream);
      if (auto status = marks_->mark(stream); !status) return status;
    }
    const auto us = marks_->between_us(stream);
    if (!us) return fail(us.error());
    empty_us_ = median(*us);
    return {};
  }

  Result<std::vector<RowTime>> time(const std::function<Status()>& launch) override {
    std::vector<RowTime> times;
    Status status = marks_->begin(engine_.stream(), kHoldUs);
    {
      const OnRun watch(engine_.kernels(), [&](const OpInfo& op, const char* row, Clock::time_point,
                                               Clock::time_point) {
        times.push_back({&op, row, 0});
        if (status) status = marks_->mark(engine_.stream());
      });
      Status launched = launch();
      if (!launched) return fail(std::move(launched.error()));
    }
    if (!status) return fail(std::move(status.error()));
    const auto us = marks_->between_us(engine_.stream());
    if (!us) return fail(us.error());
    CHECK(us->size() == times.size());
    for (size_t i = 0; i < times.size(); ++i) times[i].us = std::max(0.0, (*us)[i] - empty_us_);
    return times;
  }

 private:
  Engine& engine_;
  std::unique_ptr<GpuMarks> marks_;
  double empty_us_ = 0;
};

}  // namespace

Result<std::unique_ptr<RowTimer>> RowTimer::make(Engine& engine) {
  if (engine.device().kind() == DeviceKind::kCpu) return std::make_unique<CpuRowTimer>(engine);
  auto marks = GpuMarks::create(kMostRows);
  if (!marks) return fail(std::move(marks.error()));
  auto timer = std::make_unique<GpuRowTimer>(engine, std::move(*marks));
  if (auto status = timer->find_empty_us(); !status) return fail(std::move(status.error()));
  return timer;
}

}  // namespace moxie
