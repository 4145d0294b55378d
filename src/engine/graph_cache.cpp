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
  Entry& entry = found->second;
  if (!entry.graph && num_graphs_ < kMostGraphs) {
    if (auto status = record(entry, work); !status) {
      log_warn("launches run without graphs from now on: " + status.error().message());
      use_graphs_ = false;
    }
  }
  if (!entry.graph) {
    work();
    return {};
  }
  auto status = entry.graph->launch(stream_);
  if (status) kernels_.count(entry.launches);
  return status;
}

Status GraphCache::record(Entry& entry, const std::function<void()>& work) {
  kernels_.begin_recording();
  auto graph = device_.capture(stream_, work);
  entry.launches = kernels_.end_recording();
  if (!graph) return fail(std::move(graph.error()));
  entry.graph = std::move(*graph);
  ++num_graphs_;
  return {};
}

}  // namespace moxie
