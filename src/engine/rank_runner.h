// What one rank runs launches with: its model on its device, the memory that launches write, its
// cache, and the graphs of launches that come again. An engine has one, for its only or its first
// rank; RankGroup has those of the others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/decode_loop.h"
#include "engine/device_requests.h"
#include "engine/graph_cache.h"
#include "engine/kv.h"
#include "engine/launch_arrays.h"
#include "model/gpt_oss.h"

namespace moxie {

/// What all ranks of a model have in common.
struct RankSizes {
  DType kv_dtype = DType::kBF16;
  bool use_sinks = true;
  std::vector<int32_t> taps;
  int32_t max_model_len = 0, max_num_seqs = 0, max_batch_tokens = 0, max_logit_rows = 0;
  int32_t num_full_pages = 0, num_window_pages = 0, table_stride = 0;
  bool use_graphs = true;      ///< of the decode loop
  bool caches_graphs = false;  ///< of small launches outside of it: where something drafts
  bool skips_taps = false;     ///< DecodeLoop::Parts
  GptOss::RowCosts costs;      ///< null: plans by predicted times
};

class RankRunner {
 public:
  /// Borrowed; must outlive the runner.
  struct Parts {
    Device& device;
    Stream& stream;
    KernelChooser& kernels;
    const GptOssConfig& config;
    const ModelWeights& weights;
    RankLink* link = nullptr;  ///< null: one rank
  };
  /// Allocates everything, and fails where a launch would lack a row.
  static Result<std::unique_ptr<RankRunner>> create(const Parts& parts, const RankSizes& sizes);
  RankRunner(const RankRunner&) = delete;
  RankRunner& operator=(const RankRunner&) = delete;

  /// Is told of a launch behind its forward pass, with its arrays in the device's memory.
  using Follow = std::function<Status(const HostArrays& arrays, const Ragged& placed)>;
  /// Gives a launch to the device; on the CPU it has run then. `in_graph`: `follow` neither reads
  /// the host's arrays nor waits, so that it may be part of a graph.
  Status run(const HostArrays& arrays, const Follow& follow = {}, bool in_graph = false);
  /// Begins a session of the decode loop; the requests' arrays lie in host memory.
  Status begin_decoding(const HostArrays& first, std::span<const SampleRequest> requests);

  const GptOss& model() const { return *model_; }
  const Activations& activations() const { return activations_; }
  KvCache& kv() { return *kv_; }
  const KvCache& kv() const { return *kv_; }
  DecodeLoop& decode_loop() { return *decode_loop_; }
  GraphCache* graphs() { return graphs_.get(); }  ///< null: RankSizes::caches_graphs is not set
  /// CUDA: for requests that lie in host memory; null on the CPU.
  DeviceRequests* device_requests() { return device_requests_ ? &*device_requests_ : nullptr; }
  /// The views of the last launch, one a layer.
  std::span<const KvLayer> layers() const { return layers_; }

 private:
  explicit RankRunner(const Parts& parts) : parts_(parts) {}
  Status make(const RankSizes& sizes);
  Status make_decode_loop(const RankSizes& sizes);

  Parts parts_;
  Buffer rotary_, activation_buffer_;
  Activations activations_;
  std::unique_ptr<GptOss> model_;
  std::unique_ptr<KvCache> kv_;
  std::unique_ptr<DecodeLoop> decode_loop_;
  std::unique_ptr<GraphCache> graphs_;
  std::optional<LaunchArrays> launch_arrays_;
  std::optional<DeviceRequests> device_requests_;
  std::vector<KvLayer> layers_;
};

}  // namespace moxie
