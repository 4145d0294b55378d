// The scheduler with its launches run in place on a FakeRunner, and the tokens that each request
// draws by definition: for tests that compare the two.
#pragma once

#include <rapidcheck.h>

#include <map>

#include "engine/step_loop.h"
#include "engine/testing/cache_replay.h"
#include "engine/testing/fake_runner.h"
#include "engine/testing/stand_in_drafter.h"

namespace moxie {

inline constexpr int32_t kVocab = 50;
inline constexpr int32_t kStop = 7;
inline constexpr int32_t kContext = 80;

// Allows every third token, another third after each.
class Thirds : public TokenConstraint {
 public:
  bool fill_mask(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0u);
    for (int32_t id = 0; id < kVocab; ++id) {
      if (allows(num_accepted_, id)) mask[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
    }
    return num_accepted_ % 5 != 4;  // now and then anything goes
  }
  Status accept(int32_t token) override {
    if (num_accepted_ % 5 != 4) CHECK(allows(num_accepted_, token));
    ++num_accepted_;
    return {};
  }
  std::unique_ptr<TokenConstraint> fork() const override { return std::make_unique<Thirds>(*this); }
  static bool allows(int32_t num_accepted, int32_t id) { return id % 3 == num_accepted % 3; }

 private:
  int32_t num_accepted_ = 0;
};

// What a request's sink received.
struct Record {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  bool is_bound = false, uses_drafter = true;
  bool was_cancelled = false;
  std::vector<int32_t> given;
  std::vector<int32_t> stop;  // the sink cancels the request behind these, as for stop strings
  bool was_stopped = false;
  std::vector<int32_t> drawn;
  std::vector<float> logprobs;  // of the drawn tokens
  std::vector<SampleAnswer> scores;
  std::vector<Finish> finishes;

  bool ends_with_stop() const {
    return !stop.empty() && drawn.size() >= stop.size() &&
           std::equal(stop.rbegin(), stop.rend(), drawn.rbegin());
  }
};

// The history for penalties: ids of prompt and answer, with their counts in the answer.
inline uint64_t naive_history(const Record& record, std::span<const int32_t> tokens) {
  if (record.sampling.presence_penalty == 0) return 0;
  std::map<int32_t, int32_t> counts;
  for (size_t i = 0; i < tokens.size(); ++i) counts[tokens[i]] += i >= record.prompt.size() ? 1 : 0;
  std::vector<int32_t> ids, numbers;
  for (const auto& [id, count] : counts) {
    ids.push_back(id);
    numbers.push_back(count);
  }
  return FakeRunner::history_of(ids, numbers);
}

// The tokens a request draws alone, by definition.
inline std::vector<int32_t> naive_tokens(const Record& record, FinishReason* reason) {
  std::vector<int32_t> tokens = record.prompt;
  const auto num_prompt = static_cast<int32_t>(tokens.size());
  const int32_t room = kContext - num_prompt;
  const int32_t most =
      record.sampling.max_tokens > 0 ? std::min(room, record.sampling.max_tokens) : room;
  *reason = FinishReason::kLength;
  for (int32_t n = 0; n < most; ++n) {
    int32_t token = FakeRunner::next_token(tokens, *record.sampling.seed, static_cast<uint64_t>(n),
                                           kVocab, naive_history(record, tokens));
    const auto& ids = record.sampling.allowed_ids;
    const auto may_come = [&](int32_t id) {
      if (record.is_bound && n % 5 != 4 && !Thirds::allows(n, id)) return false;
      if (id == kStop && !record.sampling.ignore_eos && n < record.sampling.min_tokens)
        return false;
      return ids.empty() || std::count(ids.begin(), ids.end(), id) > 0;
    };
    while (!may_come(token)) token = (token + 1) % kVocab;
    if (std::cmp_less(n, record.given.size())) token = record.given[static_cast<size_t>(n)];
    tokens.push_back(token);
    if (token != kStop || record.sampling.ignore_eos) continue;
    *reason = FinishReason::kStop;
    break;
  }
  return {tokens.begin() + num_prompt, tokens.end()};
}

// The scheduler with its launches run in place, at once or one launch late.
class Drive {
 public:
  struct Setup {
    FakeRunner::Shape shape;
    int32_t max_num_seqs = 8, max_batch_tokens = 16, max_logit_rows = 8;
    int32_t max_loop_streams = 0;
    bool prefix_cache = true, late = false;
    StepThread::Fault fault;
    int32_t loop_steps_ahead = 0;  // 0: as other launches
    int32_t max_drafts = 0;        // 0: without a drafter
    bool is_adaptive = false;
    StandInDrafter::Manner manner = StandInDrafter::Manner::kAnyOf;
    uint64_t seed = 1;
    AcceptanceWatch* watch = nullptr;
  };
  explicit Drive(const Setup& setup)
      : drafter([this](RequestId id) { return truth(id); }, kVocab, setup.manner, setup.seed),
        runner(setup.shape, {.max_num_seqs = setup.max_num_seqs,
                             .max_batch_tokens = setup.max_batch_tokens,
                             .max_logit_rows = setup.max_logit_rows,
                             .max_loop_streams = setup.max_loop_streams,
                             .max_model_len = kContext,
                             .vocab = kVocab,
                             .stop_ids = {kStop}}),
        replay(setup.shape.page_tokens),
        loop(runner,
             {.max_num_seqs = setup.max_num_seqs,
              .max_batch_tokens = setup.max_batch_tokens,
              .max_loop_streams = setup.max_loop_streams,
              .prefix_cache = setup.prefix_cache,
              .cache_listener = &replay,
              .drafting = {.drafter = setup.max_drafts > 0 ? &drafter : nullptr,
                           .max_drafts = setup.max_drafts,
                           .is_adaptive = setup.is_adaptive,
                           .watch = setup.watch}},
             {.steps_ahead = setup.late ? 2 : 1,
              .loop_steps_ahead = setup.loop_steps_ahead > 0 ? setup.loop_steps_ahead
                                  : setup.late               ? 2
                                                             : 1,
              .fault = setup.fault}),
        scheduler(loop.scheduler()),
        drafts_(setup.max_drafts > 0) {}

  RequestId add(ServiceRequest request, SeqId seq = -1) {
    const RequestId id = ++last_id_;
    Record& record = records[id];
    record.prompt = request.prompt;
    record.sampling = request.sampling;
    record.is_bound = request.constraint != nullptr;
    record.uses_drafter = request.use_drafter && request.given.empty();
    record.given = request.given;
    request.sink = [&record, id](const RequestUpdate& update) {
      CHECK(update.id == id && record.finishes.empty(), "news after the end");
      for (const SampleAnswer& answer : update.tokens) {
        record.drawn.push_back(answer.token);
        record.logprobs.push_back(answer.logprob);
        record.was_stopped = record.was_stopped || record.ends_with_stop();
      }
      for (const SampleAnswer& answer : update.prompt_tokens) {
        CHECK(record.drawn.empty(), "scores of the prompt behind its answer");
        record.scores.push_back(answer);
      }
      if (update.finish != nullptr) record.finishes.push_back(*update.finish);
    };
    auto made = make_request(std::move(request), runner);
    made->id = id;
    if (seq < 0)
      scheduler.add(std::move(made));
    else
      scheduler.add(std::move(made), seq);
    return id;
  }
  void cancel(RequestId id) {
    records.at(id).was_cancelled = true;
    scheduler.cancel(id);
  }

  // The sink cancels the request behind the two tokens that stand at `at` in its answer.
  void stop_within(RequestId id, size_t at) {
    Record& record = records.at(id);
    FinishReason reason{};
    const auto answer = naive_tokens(record, &reason);
    if (at + 2 > answer.size()) return;
    record.stop = {answer[at], answer[at + 1]};
  }

  // One turn of the service's loop.
  void turn() {
    if (!loop.turn()) ++num_failed;
    for (const auto& [id, record] : records) {
      if (record.was_stopped && record.finishes.empty()) cancel(id);
    }
    scheduler.check_integrity();
  }
  bool is_idle() const { return scheduler.num_requests() == 0 && loop.is_idle(); }
  void run_out() {
    for (int turns = 0; !is_idle(); ++turns) {
      CHECK(turns < 100000, "does not come to an end");
      turn();
    }
  }
  void check_all_pages_back() {
    for (const auto& [id, record] : records)
      CHECK(drafter.has_forgotten(id) == (drafts_ && record.uses_drafter));
    CHECK(runner.kv().num_free_full_pages() == runner.kv().num_full_pages());
    CHECK(runner.kv().num_free_window_pages() == runner.kv().num_window_pages());
    CHECK(std::cmp_equal(replay.held().size(), runner.kv().num_kept_free_pages(PageKind::kFull)));
  }

 private:
  std::vector<int32_t> truth(RequestId id) const {
    const Record& record = records.at(id);
    FinishReason reason{};
    std::vector<int32_t> tokens = record.prompt;
    const auto answer = naive_tokens(record, &reason);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    return tokens;
  }

 public:
  StandInDrafter drafter;
  FakeRunner runner;
  CacheReplay replay;  // of what the prefix cache holds
  StepLoop loop;
  Scheduler& scheduler;
  std::map<RequestId, Record> records;
  int num_failed = 0;

 private:
  const bool drafts_;
  RequestId last_id_ = 0;
};

inline std::vector<int32_t> some_tokens(int32_t count, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    tokens.push_back(FakeRunner::next_token(tokens, seed, 0, kVocab));
  }
  return tokens;
}

// Prompts of a few families, so that they share beginnings of all lengths.
inline ServiceRequest random_request() {
  const auto family = static_cast<uint64_t>(*rc::gen::inRange(0, 3));
  ServiceRequest request{.prompt = some_tokens(*rc::gen::inRange(1, 50), family)};
  const auto own = some_tokens(*rc::gen::inRange(0, 12), *rc::gen::arbitrary<uint64_t>());
  request.prompt.insert(request.prompt.end(), own.begin(), own.end());
  request.sampling.seed = *rc::gen::inRange<uint64_t>(0, 3);
  request.sampling.max_tokens = *rc::gen::element(0, 1, 2, 10, 40);
  request.sampling.num_logprobs = *rc::gen::element(-1, -1, 0, 2);
  if (*rc::gen::inRange(0, 4) == 0) request.sampling.presence_penalty = 0.5f;
  if (*rc::gen::inRange(0, 4) == 0) {
    request.sampling.min_tokens = std::min(12, request.sampling.max_tokens);
  }
  if (*rc::gen::inRange(0, 6) == 0) {
    request.sampling.allowed_ids = {3, 5, kStop, 20, 21, 22, 23, 24, 25, 30, 34, 41};
  }
  request.use_drafter = *rc::gen::inRange(0, 4) != 0;
  request.priority = *rc::gen::element(0, 0, 0, 1, -1);
  request.cache_salt = *rc::gen::element<std::string>("", "", "other");
  request.use_prefix_cache = *rc::gen::inRange(0, 8) != 0;
  if (*rc::gen::inRange(0, 5) == 0) request.prompt_logprobs = 0;
  if (*rc::gen::inRange(0, 4) == 0) {
    request.constraint = std::make_shared<Thirds>();
  } else {
    request.sampling.ignore_eos = *rc::gen::arbitrary<bool>();
    if (*rc::gen::inRange(0, 8) == 0) request.given = some_tokens(*rc::gen::inRange(1, 20), 77);
  }
  return request;
}

inline void check_record(const Record& record) {
  RC_ASSERT(record.finishes.size() == 1u);
  const Finish& finish = record.finishes.front();
  FinishReason reason{};
  const auto expected = naive_tokens(record, &reason);
  RC_ASSERT(finish.prompt_tokens == static_cast<int32_t>(record.prompt.size()));
  RC_ASSERT(finish.completion_tokens == static_cast<int32_t>(record.drawn.size()));
  RC_ASSERT(finish.cache.hit_tokens < finish.prompt_tokens);
  auto before_draw = record.prompt;
  for (size_t i = 0; i < record.drawn.size() && record.sampling.num_logprobs >= 0; ++i) {
    RC_ASSERT(record.logprobs[i] == FakeRunner::logprob_of(FakeRunner::hash_of(before_draw)));
    before_draw.push_back(record.drawn[i]);
  }
  if (finish.reason == FinishReason::kAborted || finish.reason == FinishReason::kError) {
    RC_ASSERT(finish.reason == FinishReason::kError || record.was_cancelled);
    RC_ASSERT(record.drawn.size() <= expected.size());
    RC_ASSERT(std::equal(record.drawn.begin(), record.drawn.end(), expected.begin()));
    return;
  }
  RC_ASSERT(record.drawn == expected);
  RC_ASSERT(finish.reason == reason);
  RC_ASSERT(finish.stop_id == (reason == FinishReason::kStop ? kStop : -1));
  for (size_t i = 0; i < record.scores.size(); ++i) {
    RC_ASSERT(record.scores[i].token == record.prompt[i + 1]);
    const auto before = std::span(record.prompt).first(i + 1);
    RC_ASSERT(record.scores[i].logprob == FakeRunner::logprob_of(FakeRunner::hash_of(before)));
  }
}

inline ServiceRequest request_for(std::vector<int32_t> prompt, int32_t max_tokens) {
  ServiceRequest request{.prompt = std::move(prompt)};
  request.sampling.seed = 1;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  return request;
}

inline const Finish& finish_of(const Drive& drive, RequestId id) {
  CHECK(drive.records.at(id).finishes.size() == 1);
  return drive.records.at(id).finishes.front();
}

// The cache by definition: all tokens that any request has had run, page by page.
inline int32_t naive_hit(const std::vector<std::vector<int32_t>>& earlier,
                         const std::vector<int32_t>& prompt, int32_t page_tokens) {
  int32_t best = 0;
  for (const auto& tokens : earlier) {
    const auto differs =
        std::mismatch(tokens.begin(), tokens.end(), prompt.begin(), prompt.end()).first;
    const auto same = static_cast<int32_t>(differs - tokens.begin());
    const int32_t most = std::min(same, static_cast<int32_t>(prompt.size()) - 1);
    best = std::max(best, most / page_tokens * page_tokens);
  }
  return best;
}

}  // namespace moxie
