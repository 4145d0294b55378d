// Selection by name, workspace, and the flush between timed runs.
#include "lab/moe_fp8_run.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/clock.h"
#include "core/threads.h"
#include "kernels/features.h"
#include "lab/machine.h"

namespace moxie {

MoeFp8Runner::MoeFp8Runner(int num_threads)
    : device_(make_cpu_device(num_threads)), stream_(device_->make_stream().value()) {}

Result<const Row<MoeFp8Params>*> MoeFp8Runner::row_for(const MoeFp8Params& params,
                                                       const std::string& kernel) const {
  KernelChoice choice;
  const std::string assignment = std::string(Op<MoeFp8Params>::info.name) + "=" + kernel;
  if (auto added = choice.add(assignment); !added) return fail(added.error());
  DeviceProperties properties = device_->properties();
  properties.num_units = stream_->pool->num_threads();
  const KernelChooser chooser(DeviceKind::kCpu, cpu_features(), std::move(choice),
                              rates_of(DeviceKind::kCpu, properties));
  return chooser.select(params);
}

std::vector<const Row<MoeFp8Params>*> MoeFp8Runner::rows_for(const MoeFp8Params& params) const {
  std::vector<const Row<MoeFp8Params>*> rows;
  for (const auto& row : Op<MoeFp8Params>::rows()) {
    if (row.device == DeviceKind::kCpu && (row.needs & ~cpu_features()) == 0 &&
        why_not(row, params) == nullptr)
      rows.push_back(&row);
  }
  std::stable_partition(rows.begin(), rows.end(), [](const auto* row) {
    return !std::string_view(row->name).ends_with("_reference");
  });
  return rows;
}

Status MoeFp8Runner::make_workspace(uint64_t bytes) {
  if (workspace_.bytes() >= bytes && bytes > 0) return {};
  workspace_ = Buffer();
  auto made = device_->allocate(std::max<uint64_t>(bytes, 64));
  if (!made) return fail(made.error());
  workspace_ = std::move(*made);
  return {};
}

Status MoeFp8Runner::run(const Row<MoeFp8Params>& row, const MoeFp8Params& params) {
  if (auto made = make_workspace(row.workspace(params)); !made) return made;
  MoeFp8Params launched = params;
  launched.launch = {.stream = stream_.get(),
                     .workspace = workspace_.data(),
                     .workspace_bytes = workspace_.bytes()};
  row.run(launched);
  return {};
}

Status MoeFp8Runner::flush_caches() {
  if (flush_.data() == nullptr) {
    const uint64_t bytes = std::max<uint64_t>(2 * last_level_cache_bytes(), uint64_t{64} << 20);
    auto made = device_->allocate(bytes);
    if (!made) return fail(made.error());
    flush_ = std::move(*made);
    std::memset(flush_.data(), 1, flush_.bytes());
  }
  std::atomic<uint64_t> sum = 0;
  const auto* words = reinterpret_cast<const uint64_t*>(flush_.data());
  pool().share(static_cast<int64_t>(flush_.bytes() / 8), 1 << 17, [&](int64_t begin, int64_t end) {
    uint64_t of_part = 0;
    for (int64_t i = begin; i < end; ++i) of_part += words[i];
    sum += of_part;
  });
  flush_sum_ += sum;
  return {};
}

Result<std::vector<double>> MoeFp8Runner::time(const Row<MoeFp8Params>& row,
                                               const MoeFp8Params& params, int repetitions) {
  std::vector<double> seconds;
  for (int i = -1; i < repetitions; ++i) {
    if (auto flushed = flush_caches(); !flushed) return fail(flushed.error());
    const auto start = Clock::now();
    if (auto ran = run(row, params); !ran) return fail(ran.error());
    if (i >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

}  // namespace moxie
