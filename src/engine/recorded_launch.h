// A launch recorded as a graph, with the rows that it runs, which are counted each time that it
// does.
#pragma once

#include <functional>
#include <memory>

#include "core/device.h"
#include "kernels/registry.h"

namespace moxie {

class RecordedLaunch {
 public:
  bool is_recorded() const { return graph_ != nullptr; }

  /// Records what `work` gives to the stream, without running it.
  Status record(Device& device, Stream& stream, KernelChooser& kernels,
                const std::function<void()>& work) {
    kernels.begin_recording();
    auto graph = device.capture(stream, work);
    launches_ = kernels.end_recording();
    if (!graph) return fail(std::move(graph.error()));
    graph_ = std::move(*graph);
    return {};
  }
  Status launch(Stream& stream, KernelChooser& kernels) const {
    auto status = graph_->launch(stream);
    if (status) kernels.count(launches_);
    return status;
  }

 private:
  std::unique_ptr<Graph> graph_;
  KernelChooser::Launches launches_;
};

}  // namespace moxie
