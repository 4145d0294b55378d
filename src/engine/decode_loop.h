// Decoding without waiting for the host: each launch of a session (one token of each sequence:
// forward pass, sample, advance) is one graph. Tokens, positions and block tables stay on the
// device. The host reads answers from a ring in its own memory and may lag by kRunAhead launches,
// so it learns late that an answer has ended; tokens drawn after the end are discarded.
//
//   loop.begin(first, requests);
//   while (go_on) { loop.launch(next); answers = *loop.next(); }  // launch() may run ahead
//   loop.end();
//
// The caller, a scheduler, owns the sequences' pages and plans every launch. Launches with drafts
// do not run here.
//
// On the CPU each launch runs inside launch(). One session at a time; not thread-safe.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/clock.h"
#include "core/device.h"
#include "engine/kv.h"
#include "engine/launch_arrays.h"
#include "engine/recorded_launch.h"
#include "kernels/sample/advance.h"
#include "model/gpt_oss.h"

namespace moxie {

class DecodeLoop {
 public:
  static constexpr int32_t kMostStreams = 256;  ///< limit for any loop
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
    int32_t max_streams = 1;  ///< in a session, kMostStreams at most
    bool use_graphs = true;
    bool skips_taps = false;  ///< its launches have no follower that reads them
    bool is_read = true;      ///< false: of another rank than the first, whose answers are the same
  };
  static Result<std::unique_ptr<DecodeLoop>> create(const Parts& parts);

  /// Begins a session and launches `first`: one token of each sequence, with whole block tables.
  /// The requests' arrays lie in device memory. A page freed during the session may be written by
  /// later launches only.
  Status begin(const HostArrays& first, std::span<const SampleRequest> requests);
  /// Launches the session's next tokens. `next` is as build_next_arrays() makes it; only its
  /// positions and tables are read. At most kRunAhead launches may be unread, where they are read
  /// at all. If launch() or begin() fails, the caller must call end().
  Status launch(const HostArrays& next);

  /// Waits for the oldest unread launch and returns its answers, one a sequence. Fails if the
  /// device failed. Answers to requests without num_logprobs hold the token only.
  Result<std::span<const SampleAnswer>> next();
  /// Whether next() would return without waiting. Fails as next() does.
  Result<bool> is_ready();
  int32_t num_in_flight() const { return static_cast<int32_t>(number_ - read_); }
  /// Waits for unread launches and discards their answers. Does nothing without a session.
  Status end();

  /// Records the graph for `num_streams` now instead of at its first use. Does nothing without
  /// graphs. `all_plain` as in SampleParams.
  Status prepare(int32_t num_streams, bool all_plain = true);
  /// Drops all recorded graphs; each is recorded again at its next use. Not during a session. A
  /// profiler sees only kernels of graphs that were recorded while it was active.
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
  SampleParams sample_params(int32_t num_streams, bool all_plain) const;
  void forward_and_draw(int32_t num_streams, bool all_plain);
  Status open_session(int32_t num_fed);
  Status launch_round();
  Status place_tables(const HostArrays& first);
  Status place_entries(size_t member, size_t at, std::span<const int32_t> full,
                       std::span<const int32_t> window);
  Status copy(const void* host_side, uint64_t bytes);
  size_t cell(uint32_t number, size_t member) const;
  uint64_t word(uint32_t number, size_t member) const;

  Parts parts_;
  int32_t stride_ = 0;  // of the block tables
  Buffer memory_, staging_, ring_;
  Arrays device_ = {}, host_ = {};
  uint64_t* words_ = nullptr;
  SampleAnswer* answer_ring_ = nullptr;
  std::vector<KvLayer> layers_;

  RecordedLaunch& recorded(int32_t num_streams, bool all_plain) {
    return recorded_[static_cast<size_t>(2 * num_streams + (all_plain ? 1 : 0))];
  }
  std::vector<RecordedLaunch> recorded_;

  size_t num_members_ = 0;  // sequences of the session; 0: no session
  bool all_plain_ = true;
  uint32_t number_ = 1, read_ = 1;  // number of the next launch, of the next one to read
  std::vector<SampleAnswer> answers_;
  Clock::time_point queried_{};  // when is_idle() was last called
  bool was_idle_ = false;        // its answer, while an answer of the ring is missing
};

}  // namespace moxie
