// Decoding without the host on the path: forward pass, sample and advance of some sequences are
// given to the device as one graph a token; token, position and tables of pages live there. The
// host reads answers from a ring in its own memory and may lag behind by kRunAhead steps, so that
// it learns late that an answer has ended: what was drawn beyond is discarded.
//
//   loop.begin(first, requests);
//   while (go_on) { loop.launch(next); answers = *loop.next(); }  // some steps ahead of next()
//   loop.end();
//
// The sequences' pages are kept by whoever began the session, a scheduler, which plans every step
// anyway. Verification of drafts has no place here: such steps are launched one at a time.
//
// On the CPU the same launches run at once, one by one. One session at a time; not thread-safe.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/clock.h"
#include "core/device.h"
#include "engine/advance.h"
#include "engine/kv.h"
#include "engine/launch_arrays.h"
#include "model/gpt_oss.h"

namespace moxie {

class DecodeLoop {
 public:
  static constexpr int32_t kMostStreams = 256;  ///< of any loop
  static constexpr int32_t kRunAhead = 4;
  static constexpr int32_t kMaxFed = 4096;

  /// Borrowed; must outlive the loop.
  struct Parts {
    Device& device;
    Stream& stream;
    const GptOss& model;
    KvCache& kv;
    KernelChooser& kernels;
    const Activations& activations;
    int32_t max_model_len = 0;
    int32_t max_streams = 1;  ///< of a session, kMostStreams at most
    bool use_graphs = true;
  };
  static Result<std::unique_ptr<DecodeLoop>> create(const Parts& parts);

  /// Begins a session. `first` is the launch of one token of each sequence, with whole tables, and
  /// is given to the device; the requests' arrays lie in the device's memory. Pages that are given
  /// away must be written by later launches only.
  Status begin(const HostArrays& first, std::span<const SampleRequest> requests);
  /// The session's next step, as build_next_arrays() makes it; of it positions and tables are read.
  /// At most kRunAhead may be on their way. If this or begin() fails, end() is due.
  Status launch(const HostArrays& next);

  /// Waits for the oldest step on its way; its answers, one a member. Fails if the device did. Rows
  /// without num_logprobs have the token only.
  Result<std::span<const SampleAnswer>> next();
  /// Whether next() would not wait. Fails as it does.
  Result<bool> is_ready();
  int32_t num_in_flight() const { return static_cast<int32_t>(number_ - read_); }
  /// Waits for what is on its way and discards it. Does nothing without a session.
  Status end();

  /// Records the graph of `num_streams` now and not at its first use; nothing without graphs.
  /// `all_plain` as in SampleParams.
  Status prepare(int32_t num_streams, bool all_plain = true);
  /// What was recorded is recorded again at its next use; not in a session. A profiler follows only
  /// graphs that were recorded while it looked.
  void forget_graphs();
  bool uses_graphs() const { return parts_.use_graphs; }
  int32_t max_streams() const { return parts_.max_streams; }

 private:
  // Device arrays in one piece of memory, and what the host copies into them.
  struct Arrays {
    int32_t *token_ids, *positions, *seq_idx, *row_offsets, *logit_rows;
    int32_t *full_tables, *window_tables, *fed;
    SampleRequest* requests;
    SampleAnswer* answers;
    AdvanceCounters* counters;
  };
  static constexpr int32_t kSlots = 2 * kRunAhead;

  explicit DecodeLoop(const Parts& parts) : parts_(parts) {}
  Arrays lay_out(Arena& arena) const;
  void forward(int32_t num_streams);
  void draw(int32_t num_streams, bool all_plain);
  Status open_session(int32_t num_fed);
  Status launch_round();
  Status place_tables(const HostArrays& first);
  Status place_entries(size_t member, size_t at, std::span<const int32_t> full,
                       std::span<const int32_t> window);
  Status copy(const void* host_side, uint64_t bytes);
  size_t cell(uint32_t number, size_t member) const;
  uint64_t word(uint32_t number, size_t member) const;

  Parts parts_;
  int32_t stride_ = 0;  // of the tables of pages
  Buffer memory_, staging_, ring_;
  Arrays device_ = {}, host_ = {};
  uint64_t* words_ = nullptr;
  SampleAnswer* answer_ring_ = nullptr;
  std::vector<KvLayer> layers_;

  struct Recorded {
    std::unique_ptr<Graph> graph;
    KernelChooser::Launches launches;
  };
  Recorded& recorded(int32_t num_streams, bool all_plain) {
    return recorded_[static_cast<size_t>(2 * num_streams + (all_plain ? 1 : 0))];
  }
  std::vector<Recorded> recorded_;

  size_t num_members_ = 0;  // of the session; 0: there is none
  bool all_plain_ = true;
  uint32_t number_ = 1, read_ = 1;  // next round to be given to the device, to be read
  std::vector<SampleAnswer> answers_;
  Clock::time_point queried_{};  // when the stream was last asked how it is
  bool was_idle_ = false;        // what it said, while an answer is missing
};

}  // namespace moxie
