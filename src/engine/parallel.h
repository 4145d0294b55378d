// The other ranks of a model that runs on several: each a thread with a device of its own, its
// share of the weights, a cache with the pages of the first rank's, and the same plan. The first
// rank is the engine. It schedules; the others run the launches that it builds, and know of
// sequences only what the launch arrays say.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "core/numa.h"
#include "engine/kv.h"
#include "engine/launch_arrays.h"
#include "kernels/registry.h"
#include "model/checkpoint.h"
#include "model/gpt_oss.h"

namespace moxie {

/// The cores of one CPU rank of several: a contiguous share of `cores`, by NUMA nodes; or one that
/// other ranks have too, if there are more ranks than cores.
std::vector<UsableCore> cores_of_rank(std::span<const UsableCore> cores, int32_t rank,
                                      int32_t num_ranks);

/// The device of one CPU rank: threads for its cores. `threads`: of all ranks together; 0: one a
/// core.
std::unique_ptr<Device> make_rank_device(int threads, int32_t rank, int32_t num_ranks);

/// Clears the parts of x that a rank's pass adds to. Before each pass of a rank.
Status clear_parts(const Activations& activations, const GptOssConfig& config, int32_t num_tokens,
                   Device& device, Stream& stream);

/// What every rank has in common with the first.
struct RankSetup {
  const Checkpoint* checkpoint = nullptr;  ///< borrowed while ranks load
  LoadOptions load;                        ///< with Ranks
  int threads = 0;                         ///< of all ranks together; 0: one a core
  KernelChoice choice;
  Features features;
  DeviceRates rates;
  DType kv_dtype = DType::kBF16;
  bool use_sinks = true;
  int32_t max_model_len = 0, max_num_seqs = 0, max_batch_tokens = 0, max_logit_rows = 0;
  int32_t num_full_pages = 0, num_window_pages = 0, table_stride = 0;
  std::chrono::milliseconds patience = std::chrono::seconds(10);  ///< with a rank that is awaited
};

class RankGroup {
 public:
  /// Starts the other ranks, which load their shares meanwhile: see loaded().
  static std::unique_ptr<RankGroup> start(const RankSetup& setup);
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  /// The first rank's.
  RankLink& link();
  /// Waits until all have loaded, and fails as the first that did not.
  Status loaded();
  /// Has the other ranks run a launch, which needs the first rank to run it too. Fails after a
  /// fault: a rank may still be in the launch before.
  Status launch(const HostArrays& arrays);
  /// Waits for the other ranks' launch. A fault of any rank is reported from now on.
  Status finish();
  /// Copies a page of all other ranks' caches, as the first rank's has been. Between launches, or
  /// beside one that does not write the page.
  void copy_page(PageKind kind, int32_t from, int32_t to);
  /// Bytes of the other ranks' weights together.
  uint64_t weights_bytes() const;

 private:
  RankGroup() = default;
  class Rank;
  std::vector<std::unique_ptr<RankLink>> links_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::chrono::milliseconds patience_{};
};

}  // namespace moxie
