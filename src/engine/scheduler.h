// Continuous batching: chooses which tokens of which requests make the next launch of the model.
// A StepPlan is one launch with its draws; a StepPlan::Row is one request's share of it.
//
// Every running request that decodes has a token in every launch. Prompts share the rest of the
// launch's tokens: at least half of it goes to the oldest prompt, what remains to the shortest.
// Requests leave the queue by priority and arrival, when both pools have pages for their whole
// prompt. When pages run out, the last running request gives its pages back and is computed again
// later, with the same tokens: draws depend on the logits, the seed and their number alone.
//
// If a failed launch had one request, that request ends. If it had several, any may be at fault:
// they become suspects, each is computed again alone until it has drawn a token, and all others
// wait.
//
// A launch is planned, run elsewhere (step_runner.h) and absorbed. Several may be under way: while
// one runs, the next are planned as if every request went on, with places for the tokens still
// being drawn; tokens drawn there for a request that has ended are dropped. The calls for launch n,
// whether launch n - 1 is under way or not (made by step_loop.h):
//
//   plan(n)       rows, pages, arrays                        while n - 1 runs
//   absorb(n-1)   its tokens                                 once it is done
//   arm(n)        requests of its draws; its pages are known  while n's forward pass runs
//   deliver()     sinks
//
// A request with drafts (drafter.h) has one chunk in a launch, its last token and the drafts, which
// yields 0 to 1 + drafts tokens. Pages are reserved for the whole chunk; pages of rejected drafts
// are given back. The prefix cache learns of a page, and a window page is released, when the tokens
// are accepted. Such a request has no row in a launch that is planned before its tokens are known,
// and none in a decode loop.
//
// A launch whose draws need nothing from the host runs in the runner's decode loop. If it continues
// the launch before, the device has it before that one is done.
//
// Not thread-safe. Nothing else may touch the cache.
#pragma once

#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/request_state.h"
#include "engine/service_stats.h"
#include "engine/simulated_acceptance.h"
#include "engine/step_runner.h"

namespace moxie {

/// One launch: its rows, its inputs and its results. Reused, so that its memory is kept.
struct StepPlan {
  struct Row {
    Request* request = nullptr;
    int32_t start = 0, count = 0;  ///< which tokens of the request
    int32_t num_drafts = 0;        ///< the last of these tokens are drafts, not accepted yet
    int32_t first_answer = 0, num_answers = 0;
    bool is_try = false;  ///< its drafts are a try of a request for which drafts do not pay
    bool draws = false;   ///< the last 1 + num_drafts answers are draws
    int32_t num_known() const { return count - num_drafts; }
    size_t num_draws() const { return draws ? static_cast<size_t>(1 + num_drafts) : 0; }
    /// Tokens that the request has drawn before this row's first draw.
    int32_t num_drawn() const { return start + num_known() - request->num_prompt; }
  };
  int64_t number = 0;
  InLoop in_loop = InLoop::kNo;
  std::vector<Row> rows;
  std::vector<Chunk> chunks;
  HostArrays arrays;
  /// Tokens of `arrays` that the launch before draws: (index in token_ids, index of its answer).
  std::vector<std::pair<int32_t, int32_t>> awaited;
  /// Answers whose drawn tokens are replaced by given ones: (index of the answer, token).
  std::vector<std::pair<int32_t, int32_t>> given;
  int32_t num_tokens = 0, num_answers = 0;
  bool is_drafted = false;  ///< has a request that is drafted, or asked to be
  bool has_prompts = false;
  Clock::time_point planned_at{};
  std::vector<SampleRequest> requests;  ///< [num_answers], by arm(); kFirst: by plan(); kNext: none
  std::vector<uint32_t> masks;
  std::vector<SampleAnswer> answers;
  // Set by the thread that runs it:
  Status status;
  bool was_launched = false;  ///< given to the device, in the decode loop
  bool was_run = false;
  double seconds = 0;

  void clear();
  /// Puts the tokens of `given` into the answers, once these are there.
  void put_given();
};

class Scheduler {
 public:
  struct Options {
    int32_t max_num_seqs = 1, max_batch_tokens = 1;
    int32_t max_loop_streams = 0;  ///< of a launch in the decode loop; 0: never in the loop
    bool prefix_cache = true;
    CacheListener* cache_listener = nullptr;  ///< of the prefix cache; may be null
    Drafting drafting{};
  };
  /// `runner` must outlive the scheduler. The runner's own limits hold beside the options.
  Scheduler(StepRunner& runner, const Options& options);
  ~Scheduler();

  void add(std::unique_ptr<Request> request);
  /// Adds a request whose prompt, but for some last tokens, is in `seq` already. The request runs
  /// at once; the scheduler owns the sequence from now on.
  void add(std::unique_ptr<Request> request, SeqId seq);
  /// Ends a request with kAborted; does nothing if it has ended.
  void cancel(RequestId id);
  void cancel_all();
  void fail_all(const Error& error);

  /// Plans the next launch. False if there is nothing to run now.
  bool plan(StepPlan* plan);
  void arm(StepPlan* plan);
  void absorb(StepPlan* plan);
  /// Instead of absorb(), for a failed launch. A request that was alone in it, or that has been in
  /// too many failed launches, ends with the error. All other running requests start anew; those of
  /// the launch are suspects. drop_step(): for launches planned behind it, which were not run.
  void fail_step(StepPlan* plan, const Error& error);
  void drop_step(StepPlan* plan);
  /// Tells the sinks what happened since the last call.
  void deliver();

  size_t num_requests() const { return requests_.size(); }
  size_t num_running() const { return running_.size(); }
  size_t num_waiting() const { return waiting_.size(); }
  /// Counters, and the state of queue and pools now.
  ServiceStats stats() const;
  /// Empties the prefix cache.
  void forget_prefixes() {
    if (prefixes_ != nullptr) prefixes_->clear();
  }
  void check_integrity() const;

 private:
  struct Before {
    bool operator()(const Request* a, const Request* b) const { return a->is_before(*b); }
  };
  struct News {
    Request* request = nullptr;
    std::span<const SampleAnswer> prompt_tokens, tokens;
  };

  enum class Admission : uint8_t { kDone, kLater, kNoRoom };

  void place_decodes(StepPlan* plan);
  bool make_room(Request& request);
  void add_decodes(StepPlan* plan);
  void place_drafts();
  void limit_by_cost(int32_t left);
  void pause_drafts(Request& request, int32_t num_launches);
  void end_rest(Request& request);
  void measure(const StepPlan& plan);
  void place_prefills(StepPlan* plan);
  void place_prefill(StepPlan* plan, Request& request, int32_t share);
  void add_row(StepPlan* plan, Request& request, int32_t count, Logits logits,
               int32_t num_drafts = 0);
  InLoop place_in_loop(const StepPlan& plan) const;
  bool goes_on_in_loop(const StepPlan& plan) const;
  void begin_loop(StepPlan* plan);
  void arm_draws(StepPlan* plan);
  void admit();
  void admit_suspect();
  Admission try_admit(Request& request);
  CacheReport look_up(const Request& request) const;
  bool waits_for_prefix(const Request& request, int32_t num_hit_blocks) const;
  void start(Request& request, SeqId seq, const CacheReport& report);
  /// Whether the request may be in the plan being made: while there are suspects, only these.
  bool has_turn(const Request& request) const { return num_suspects_ == 0 || request.is_suspect; }
  void set_suspect(Request& request, bool is_suspect);
  void preempt(Request& request);
  void leave_running(Request& request);
  void end(Request& request, FinishReason reason, Error error = {});
  void insert_pages(Request& request, int32_t num_stored);
  void absorb_row(const StepPlan& plan, const StepPlan::Row& row);
  void absorb_draws(Request& request, const StepPlan::Row& row,
                    std::span<const SampleAnswer> answers);
  void absorb_token(Request& request, const SampleAnswer& answer);
  static void arm_scores(const Request& request, const StepPlan::Row& row,
                         std::span<SampleRequest> answers);
  /// The row is absorbed or dropped. Returns whether its request goes on.
  bool release_row(const StepPlan::Row& row);

  StepRunner& runner_;
  KvCache& kv_;
  const Options options_;
  const int32_t page_tokens_;
  int32_t max_running_ = 1;
  std::unique_ptr<PrefixCache> prefixes_;  // null: off

  std::unordered_map<RequestId, std::unique_ptr<Request>> requests_;
  std::set<Request*, Before> waiting_;
  std::vector<Request*> running_;     // by Before
  std::vector<Request*> prefilling_;  // scratch of a plan
  std::vector<Request*> decoding_;    // likewise: a token each, and drafts
  std::vector<Drafter::Ask> asks_;    // likewise
  std::vector<Request*> asking_;      // likewise: of asks_
  std::vector<News> news_;
  int32_t budget_ = 0, rows_left_ = 0;  // tokens and rows of logits of the plan being made
  int64_t reserved_pages_ = 0;          // full pages that running prompts still need
  int64_t queued_tokens_ = 0;
  int32_t num_deferred_ = 0;   // waiting requests that the last plan passed over
  int32_t num_under_way_ = 0;  // plans not absorbed
  size_t num_loop_rows_ = 0;   // rows of the last plan, if it is in the loop
  int32_t loop_step_ = 0;      // index of the last plan in the loop's session
  int32_t loop_fed_ = 0;       // launches of the session whose next tokens came with the first
  int32_t num_suspects_ = 0;   // at most one of them runs
  ServiceStats counters_;
  SimulatedAcceptance simulated_;
  DraftMemory own_memory_;
  DraftMemory& memory_;  // own_memory_, or that of the options
  Clock::time_point last_absorb_{};
  DraftChooser chooser_;
  std::vector<DraftAsk> places_;  // scratch of a plan
  std::vector<int32_t> lengths_;  // likewise
};

}  // namespace moxie
