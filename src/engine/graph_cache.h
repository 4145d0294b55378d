// Graphs of launches that come again with the same sizes: their kernels and the addresses that they
// read are the same each time. Where a device has no graphs, or they are off, launches run one by
// one.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <map>

#include "engine/recorded_launch.h"

namespace moxie {

class GraphCache {
 public:
  /// Whatever determines the kernels and their parameters.
  using Key = std::array<int32_t, 5>;
  /// Launches of more tokens than this do not come again with the same sizes.
  static constexpr int32_t kMostTokens = 64;

  /// The entries of a block table that needs `needed`: one of few lengths, since a recorded graph
  /// keeps its stride. At most `most`, the longest table.
  static int32_t table_stride(int32_t needed, int32_t most) {
    constexpr uint32_t kLeast = 64;
    const uint32_t stride = std::bit_ceil(std::max(static_cast<uint32_t>(needed), kLeast));
    return std::min(static_cast<int32_t>(stride), most);
  }

  /// Borrowed; must outlive the cache.
  GraphCache(Device& device, Stream& stream, KernelChooser& kernels, bool use_graphs)
      : device_(device),
        stream_(stream),
        kernels_(kernels),
        use_graphs_(use_graphs && device.has_graphs()) {}

  /// Gives `work` to the stream: the first time its kernels one by one, then as a graph, which is
  /// recorded the second time.
  Status run(const Key& key, const std::function<void()>& work);
  /// Graphs are recorded again at their next use.
  void forget() {
    entries_.clear();
    num_graphs_ = 0;
  }

 private:
  // A graph of a whole forward pass takes about 1 MiB.
  static constexpr size_t kMostGraphs = 64, kMostKeys = 4096;

  Device& device_;
  Stream& stream_;
  KernelChooser& kernels_;
  bool use_graphs_;
  size_t num_graphs_ = 0;
  std::map<Key, RecordedLaunch> entries_;
};

}  // namespace moxie
