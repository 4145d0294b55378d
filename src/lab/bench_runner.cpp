// The depth is filled once. Each repetition runs on a fork of it, so that repetitions do not see
// each other's tokens.
#include "lab/bench_runner.h"

#include <algorithm>
#include <cmath>

#include "engine/step_loop.h"
#include "kernels/experts/experts.h"

namespace moxie {

BenchRunner::BenchRunner(Engine& engine, const BenchTest& test, const Drafting& drafting,
                         LaunchMarks* marks)
    : engine_(engine), test_(test), drafting_(drafting), runner_(make_step_runner(engine)) {
  if (marks != nullptr && drafting.drafter != nullptr) {
    marked_ = mark_drafts(*drafting.drafter, marks);
    drafting_.drafter = marked_.get();
    runner_ = mark_launches(std::move(runner_), marks);
  }
  for (int32_t s = 0; s < test.streams; ++s) base_.push_back(engine.kv().add_sequence());
}

BenchRunner::~BenchRunner() {
  for (const SeqId seq : base_) engine_.kv().free_sequence(seq);
}

Status BenchRunner::fill_depth() {
  for (const SeqId seq : base_) {
    filled_.push_back(random_tokens(test_.depth));
    if (auto status = prefill(seq, filled_.back()); !status) return status;
  }
  return engine_.synchronize();
}

Result<BenchRunner::Window> BenchRunner::repeat() {
  std::vector<SeqId> seqs;
  for (const SeqId seq : base_) {
    auto fork = engine_.kv().fork(seq);
    CHECK(fork.has_value());
    seqs.push_back(*fork);
  }
  return test_.n_prompt > 0 ? run_prompts(seqs) : generate(seqs);
}

// Prompts, without draws: launch by launch, one stream after another.
Result<BenchRunner::Window> BenchRunner::run_prompts(std::span<const SeqId> seqs) {
  std::vector<std::vector<int32_t>> prompts;
  for (size_t s = 0; s < seqs.size(); ++s) prompts.push_back(random_tokens(test_.n_prompt));
  Status status = engine_.synchronize();
  const auto start = Clock::now();
  for (size_t s = 0; s < seqs.size(); ++s) {
    if (status) status = prefill(seqs[s], prompts[s]);
  }
  if (status) status = engine_.synchronize();
  const auto end = Clock::now();
  for (const SeqId seq : seqs) engine_.kv().free_sequence(seq);
  if (!status) return fail(std::move(status.error()));
  return Window{start, end};
}

// Generates through the scheduler, which takes over the sequences.
Result<BenchRunner::Window> BenchRunner::generate(std::span<const SeqId> seqs) {
  Status status;
  std::vector<std::unique_ptr<Request>> requests;
  for (size_t s = 0; s < seqs.size(); ++s) requests.push_back(request(s, &status));
  StepLoop loop(*runner_,
                {.max_num_seqs = test_.streams,
                 .max_batch_tokens = engine_.options().max_batch_tokens,
                 .max_loop_streams = runner_->limits().max_loop_streams,
                 .prefix_cache = false,
                 .drafting = drafting_},
                {.loop_steps_ahead = DecodeLoop::kRunAhead});
  const Status ready = engine_.synchronize();
  const auto start = Clock::now();
  for (size_t s = 0; s < seqs.size(); ++s) {
    loop.scheduler().add(std::move(requests[s]), seqs[s]);
  }
  while (loop.scheduler().num_requests() > 0) static_cast<void>(loop.turn());
  const auto end = Clock::now();
  drafts_.add(loop.scheduler().stats().drafts);
  ++drafting_.seed;  // another repetition accepts other drafts
  runner_->leave_loop();
  if (!ready) return fail(ready.error());
  if (!status) return fail(std::move(status.error()));
  return Window{start, end};
}

// A request whose prompt is the filled tokens and one more, and whose answer is given.
std::unique_ptr<Request> BenchRunner::request(size_t stream, Status* status) {
  ServiceRequest request{
      .prompt = filled_[stream],
      .sampling = {.temperature = 0, .seed = 0, .max_tokens = test_.n_gen, .ignore_eos = true},
      .use_prefix_cache = false,
      .given = drafting_.drafter == nullptr ? random_tokens(test_.n_gen) : std::vector<int32_t>{},
      .sink = [status](const RequestUpdate& update) {
        if (update.finish == nullptr || update.finish->reason != FinishReason::kError) return;
        *status = fail(update.finish->error);
      }};
  request.prompt.push_back(random_tokens(1).front());
  auto made = make_request(std::move(request), *runner_, test_.n_gen);
  made->id = stream + 1;
  return made;
}

Status BenchRunner::prefill(SeqId seq, std::span<const int32_t> tokens) {
  const auto chunk = static_cast<size_t>(engine_.options().max_batch_tokens);
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const Chunk part{seq, tokens.subspan(at, std::min(chunk, tokens.size() - at)),
                     at + chunk >= tokens.size() ? Logits::kLast : Logits::kNone};
    if (auto rows = engine_.step({&part, 1}); !rows) return fail(std::move(rows.error()));
  }
  return {};
}

std::vector<int32_t> BenchRunner::random_tokens(int32_t count) {
  std::uniform_int_distribution<int32_t> any(0, engine_.config().vocab - 1);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = any(random_);
  return tokens;
}

double tokens_of(const BenchTest& test) {
  return static_cast<double>(test.streams) * std::max(test.n_prompt, test.n_gen);
}

// Launch by launch.
WorkByOp least_work(const Engine& engine, const BenchTest& test) {
  const GptOssConfig& config = engine.config();
  WorkByOp total;
  const auto add = [&](int32_t tokens, int32_t seqs, int64_t visible, int32_t rows) {
    Batch batch{.num_logit_rows = rows};
    batch.ragged = {.num_tokens = tokens, .num_seqs = seqs, .num_visible_keys = visible};
    const auto distinct = static_cast<int32_t>(
        std::lround(expected_distinct_experts(config.num_experts, config.top_k, tokens)));
    for (const auto& [op, work] : engine.model().work_by_op(batch, engine.kv_dtype(), distinct))
      total[*op] += work;
  };
  if (test.n_prompt > 0) {
    const int32_t chunk = engine.options().max_batch_tokens;
    for (int32_t at = 0; at < test.n_prompt; at += chunk) {
      const int64_t count = std::min(chunk, test.n_prompt - at);
      const int64_t first = test.depth + at;
      add(static_cast<int32_t>(count), 1, count * first + count * (count + 1) / 2,
          at + chunk >= test.n_prompt ? 1 : 0);
    }
    total.scale(test.streams);
    return total;
  }
  for (int32_t n = 0; n < test.n_gen; ++n) {
    add(test.streams, test.streams, int64_t{test.streams} * (test.depth + n + 1), test.streams);
  }
  return total;
}

std::string row_of(const std::vector<KernelChooser::Count>& counts, const OpInfo& op) {
  const KernelChooser::Count* most = nullptr;
  for (const auto& count : counts) {
    if (count.op == &op && (most == nullptr || count.launches > most->launches)) most = &count;
  }
  return most == nullptr ? "" : most->name;
}

}  // namespace moxie
