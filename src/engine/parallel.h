// The other ranks of a model that runs on several: each a thread with a device, its share of the
// weights, a cache with the pages of the first rank's, and the same plan. The first rank is the
// engine. It schedules; the others run the launches that it builds, and know of sequences only what
// the launch arrays say. On GPUs a launch is only given to the device: they meet in its kernels.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "core/numa.h"
#include "engine/rank_runner.h"
#include "kernels/registry.h"
#include "model/checkpoint.h"

namespace moxie {

/// The cores of one CPU rank of several: a contiguous share of `cores`, by NUMA nodes; or one that
/// other ranks have too, if there are more ranks than cores.
std::vector<UsableCore> cores_of_rank(std::span<const UsableCore> cores, int32_t rank,
                                      int32_t num_ranks);

/// The device of a rank on a GPU of `gpus`, which are those of all ranks: a part of it, where
/// others have the same.
Result<std::unique_ptr<Device>> open_gpu_of_rank(std::span<const int> gpus, size_t rank);

/// The device of one CPU rank: threads for its cores. `threads`: of all ranks together; 0: one a
/// core.
std::unique_ptr<Device> make_rank_device(int threads, int32_t rank, int32_t num_ranks);

/// What every rank has in common with the first.
struct RankSetup {
  const Checkpoint* checkpoint = nullptr;  ///< borrowed while ranks load
  LoadOptions load;                        ///< with Ranks
  int threads = 0;                         ///< of all ranks together; 0: one a core
  std::vector<int> gpus;                   ///< by rank; empty: on the CPU
  bool mirrors = false;                    ///< the first rank alone: make_mirrored_link()
  Device* first_device = nullptr;          ///< of the first rank; outlives the group
  KernelChoice choice;
  Features features;
  DeviceRates rates;
  RankSizes sizes;
  std::chrono::milliseconds patience = std::chrono::seconds(10);  ///< with a rank that is awaited
};

/// The arrays of a request to sample.
struct RequestArrays {
  std::vector<int32_t> history_ids, history_counts, bias_ids;
  std::vector<float> bias_values;
  std::vector<uint32_t> allowed_mask;
};

/// What the first rank has the others do.
struct RankOrder {
  enum class Kind : uint8_t {
    kLaunch,
    kBeginDecoding,
    kDecodeNext,
    kEndDecoding,
    kCopyPage,
    kQuit  ///< threads only
  };
  Kind kind = Kind::kQuit;
  HostArrays arrays;
  std::vector<SampleRequest> requests;  ///< whose arrays stay until finish()
  int32_t mask_words = 0;               ///< of a request's allowed mask
  PageKind page_kind = PageKind::kFull;
  int32_t from_page = 0, to_page = 0;
  std::vector<RequestArrays> request_arrays;  ///< of requests that were read from bytes
};
/// Has a rank do it.
Status follow_order(const RankOrder& order, RankRunner& runner);
/// Between processes: every order but kQuit. Fails on bytes that no rank of this build has written.
std::vector<std::byte> to_bytes(const RankOrder& order);
Result<RankOrder> rank_order(std::span<const std::byte> bytes);

class RankMeeting;

class RankGroup {
 public:
  /// The other processes of a world; this one is rank 0. `meeting` outlives the group.
  static std::unique_ptr<RankGroup> of_processes(RankMeeting& meeting, int32_t vocab);
  /// Starts the other ranks, which load their shares meanwhile: see loaded().
  static Result<std::unique_ptr<RankGroup>> start(const RankSetup& setup);
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
  /// The same for a decode loop: RankRunner::begin_decoding() and DecodeLoop::launch(), end().
  Status begin_decoding(const HostArrays& first, std::span<const SampleRequest> requests);
  Status decode_next(const HostArrays& next);
  void end_decoding();
  /// Waits until the other ranks have run the last of the above; on a GPU, until they have given it
  /// to their device. A fault of any rank is reported from now on.
  Status finish();
  /// Copies a page of all other ranks' caches, as the first rank's has been. Between launches, or
  /// beside one that does not write the page.
  void copy_page(PageKind kind, int32_t from, int32_t to);
  /// Of each rank, by rank; those of other processes as they said it last. From any thread.
  std::vector<RankFacts> facts() const;
  /// Bytes of the weights of this process's other ranks together.
  uint64_t weights_bytes() const;

 private:
  RankGroup() = default;
  class Rank;
  class ThreadRank;
  class ProcessRanks;
  Status order(const RankOrder& order);
  std::vector<std::unique_ptr<RankLink>> links_;
  RankLink* link_ = nullptr;              // of the first rank
  const RankMeeting* meeting_ = nullptr;  // of_processes
  int32_t vocab_ = 0;                     // of_processes
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::chrono::milliseconds patience_{};
};

}  // namespace moxie
