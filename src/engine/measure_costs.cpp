// Runs of each number of tokens, of which the fastest of the last counts: the first ones load code
// and record graphs.
#include "engine/measure_costs.h"

#include <algorithm>
#include <vector>

#include "core/clock.h"
#include "engine/engine.h"
#include "engine/simulated_acceptance.h"

namespace moxie {
namespace {

constexpr int kRuns = 4, kLoopRuns = 8;

// Sequences for a measurement, which are given back whatever happens.
class Sequences {
 public:
  Sequences(KvCache& kv, int32_t count) : kv_(kv) {
    for (int32_t i = 0; i < count; ++i) seqs_.push_back(kv.add_sequence());
  }
  ~Sequences() {
    for (const SeqId seq : seqs_) kv_.free_sequence(seq);
  }
  SeqId operator[](size_t i) const { return seqs_[i]; }
  size_t size() const { return seqs_.size(); }
  /// Room for a token of each.
  Status append() {
    for (const SeqId seq : seqs_)
      if (!kv_.append(seq, 1)) return fail("no free pages in the KV cache", "speculation");
    return {};
  }

 private:
  KvCache& kv_;
  std::vector<SeqId> seqs_;
};

class Measurement {
 public:
  Measurement(Engine& engine, Drafter& drafter, int32_t max_drafts, StepCosts* costs)
      : engine_(engine), drafter_(drafter), max_drafts_(max_drafts), costs_(costs) {
    const EngineOptions& options = engine.options();
    constexpr int32_t kFewRequests = 16;
    most_ =
        std::min({options.max_logit_rows, options.max_batch_tokens, engine.plan().max_model_len - 1,
                  std::max(16, std::min(options.max_num_seqs, kFewRequests) * (max_drafts + 1))});
    SimulatedAcceptance({}, 1).fill(std::max(most_, 2), engine.config().vocab, &ids_);
  }

  Status run() {
    const int32_t most_streams =
        std::min(engine_.decode_loop().max_streams(), engine_.options().max_num_seqs);
    for (int32_t n = 1; n <= most_streams; n *= 2)
      if (auto status = loop(n); !status) return status;
    if (auto status = draft(); !status) return status;
    for (int32_t n = 2; n <= most_; n = n < 16 ? n + 1 : n + n / 4)
      if (auto status = launch(n); !status) return status;
    return {};
  }

 private:
  // The second time makes a cost known.
  void add(bool is_drafted, int32_t num_tokens, double seconds) {
    for (int time = 0; time < 2; ++time) costs_->add(is_drafted, num_tokens, seconds);
  }

  // Launches of the decode loop, a token of each sequence.
  Status loop(int32_t num_streams) {
    DecodeLoop& loop = engine_.decode_loop();
    Sequences seqs(engine_.kv(), num_streams);
    std::vector<Chunk> chunks;
    for (size_t i = 0; i < seqs.size(); ++i)
      chunks.push_back({seqs[i], std::span(ids_).subspan(i % ids_.size(), 1), Logits::kLast});
    const std::vector<SampleRequest> requests(seqs.size());
    HostArrays arrays;
    double best_s = 0;
    Status status;
    for (int run = 0; status && run < kLoopRuns; ++run) {
      const auto start = Clock::now();
      status = seqs.append();
      if (!status) break;
      if (run == 0) {
        build_arrays(chunks, engine_.kv(), 0, &arrays);
        status = engine_.begin_decoding(arrays, requests);
      } else {
        build_next_arrays(chunks, engine_.kv(), &arrays);
        status = engine_.decode_next(arrays);
      }
      if (status) {
        const auto answers = loop.next();
        if (!answers) status = fail(answers.error());
      }
      const double seconds = seconds_since(start);
      if (run >= kLoopRuns / 2) best_s = best_s > 0 ? std::min(best_s, seconds) : seconds;
    }
    auto ended = engine_.end_decoding();
    if (status) status = std::move(ended);
    if (status) add(false, num_streams, best_s);
    return status;
  }

  // The drafter's work for one request.
  Status draft() {
    Sequences seqs(engine_.kv(), 1);
    const Chunk chunk{seqs[0], std::span(ids_).first(1), Logits::kLast};
    if (const auto logits = engine_.step({&chunk, 1}); !logits) return fail(logits.error());
    if (auto status = seqs.append(); !status) return status;
    for (int run = 0; run < kRuns; ++run) {
      std::vector<int32_t> drafts;
      const auto start = Clock::now();
      drafter_.propose({.request = 0,
                        .seq = seqs[0],
                        .tokens = std::span(ids_).first(2),
                        .limit = max_drafts_,
                        .drafts = &drafts});
      drafting_s_ = seconds_since(start);
    }
    drafter_.forget(0);
    return engine_.synchronize();
  }

  // A launch with drafts: forward pass, what the drafter does behind it, and draws.
  Status launch(int32_t num_tokens) {
    const auto count = static_cast<size_t>(num_tokens);
    const std::vector<SampleRequest> requests(count);
    std::vector<SampleAnswer> answers(count);
    double best_s = 0;
    for (int run = 0; run < kRuns; ++run) {
      Sequences seqs(engine_.kv(), 1);
      const auto start = Clock::now();
      const Chunk chunk{seqs[0], std::span(ids_).first(count), Logits::kAll};
      if (const auto logits = engine_.step({&chunk, 1}); !logits) return fail(logits.error());
      if (auto status = engine_.sample(requests, answers); !status) return status;
      const double seconds = seconds_since(start);
      if (run >= kRuns / 2) best_s = best_s > 0 ? std::min(best_s, seconds) : seconds;
    }
    add(true, num_tokens, best_s + drafting_s_);
    return {};
  }

  Engine& engine_;
  Drafter& drafter_;
  const int32_t max_drafts_;
  StepCosts* costs_;
  int32_t most_ = 1;
  std::vector<int32_t> ids_;
  double drafting_s_ = 0;
};

}  // namespace

Status measure_costs(Engine& engine, Drafter& drafter, int32_t max_drafts, StepCosts* costs) {
  return Measurement(engine, drafter, max_drafts, costs).run();
}

}  // namespace moxie
