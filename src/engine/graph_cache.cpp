// Records at the second use: sizes that come once are not worth it.
#include "engine/graph_cache.h"

namespace moxie {

Status GraphCache::run(const Key& key, const std::function<void()>& work) {
  if (!use_graphs_) {
    work();
    return {};
  }
  const auto found = entries_.find(key);
  if (found == entries_.end()) {
    if (entries_.size() < kMostKeys) entries_.try_emplace(key);
    work();
    return {};
  }
  RecordedLaunch& entry = found->second;
  if (!entry.is_recorded() && num_graphs_ < kMostGraphs) {
    if (auto status = entry.record(device_, stream_, kernels_, work)) {
      ++num_graphs_;
    } else {
      log_warn("launches run without graphs from now on: " + status.error().message());
      use_graphs_ = false;
    }
  }
  if (entry.is_recorded()) return entry.launch(stream_, kernels_);
  work();
  return {};
}

}  // namespace moxie
