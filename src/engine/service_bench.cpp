// The service's cost beside the launches: the host's time a launch and sequence with a device that
// takes no time, and the share of plain batched launches' throughput that its streams reach.
#include <benchmark/benchmark.h>

#include <atomic>
#include <cstdio>

#include "core/clock.h"
#include "engine/scheduler.h"
#include "engine/service.h"
#include "engine/step_thread.h"

namespace moxie {
namespace {

// Builds real launches and draws at once.
class IdleRunner : public StepRunner {
 public:
  explicit IdleRunner(int32_t num_seqs)
      : limits_{.max_num_seqs = num_seqs,
                .max_batch_tokens = std::max(512, 2 * num_seqs),
                .max_logit_rows = num_seqs,
                .max_model_len = 4096,
                .vocab = 201088,
                .stop_ids = {200002, 199999, 200012}},
        device_(make_cpu_device(1)),
        stream_(std::move(*device_->make_stream())) {
    const KvShape shape{
        .num_full_layers = 1, .num_window_layers = 1, .num_kv_heads = 1, .head_dim = 1};
    constexpr uint8_t kKinds[] = {1, 0};
    auto kv =
        KvCache::create(*device_, *stream_, shape, kKinds, num_seqs * 256 + 64, num_seqs * 10 + 64);
    CHECK(kv.has_value());
    kv_ = std::move(*kv);
  }
  const Limits& limits() const override { return limits_; }
  KvCache& kv() override { return *kv_; }
  void build(std::span<const Chunk> chunks, InLoop, HostArrays* arrays) override {
    build_arrays(chunks, *kv_, 0, arrays);
  }
  Status run(const HostArrays&) override { return {}; }
  Status sample(std::span<const SampleRequest>, std::span<SampleAnswer> answers) override {
    for (SampleAnswer& answer : answers) answer.token = static_cast<int32_t>(++drawn_ % 199000);
    return {};
  }
  Status synchronize() override { return {}; }

 private:
  Limits limits_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KvCache> kv_;
  uint64_t drawn_ = 0;
};

// All of the host's work of one decode launch of many sequences: planning, pages, arrays, requests
// to sample, taking tokens, calling sinks. Every sequence begins with `depth` tokens.
void host_time_of_a_step(benchmark::State& state) {
  const auto num_seqs = static_cast<int32_t>(state.range(0));
  const auto depth = static_cast<int32_t>(state.range(1));
  IdleRunner runner(num_seqs);
  Scheduler scheduler(
      runner, {.max_num_seqs = num_seqs, .max_batch_tokens = runner.limits().max_batch_tokens});
  StepThread steps(runner, false, {});
  int64_t num_delivered = 0;
  RequestId last_id = 0;
  const auto add = [&] {
    ServiceRequest request{.prompt = std::vector<int32_t>(static_cast<size_t>(depth)),
                           .sampling = {.seed = 1, .ignore_eos = true},
                           .sink = [&](const RequestUpdate& update) {
                             num_delivered += static_cast<int64_t>(update.tokens.size());
                           }};
    const RequestId id = ++last_id;
    for (int32_t& token : request.prompt) token = static_cast<int32_t>(id);
    Sampler sampler(request.sampling, request.prompt, runner.limits().stop_ids,
                    runner.limits().vocab);
    auto made = std::make_unique<Request>(std::move(request), std::move(sampler), 4096 - depth, 16);
    made->id = id;
    scheduler.add(std::move(made));
  };
  StepPlan plan;
  const auto step = [&] {
    CHECK(scheduler.plan(&plan));
    steps.begin(&plan, nullptr);
    scheduler.arm(&plan);
    steps.allow_draws(&plan);
    steps.wait(&plan);
    scheduler.absorb(&plan);
    scheduler.deliver();
  };
  const auto refill = [&] {
    for (int32_t i = 0; i < num_seqs; ++i) add();
    do {
      step();
    } while (static_cast<int32_t>(plan.rows.size()) < num_seqs || plan.num_tokens > num_seqs);
  };
  refill();
  int64_t num_steps = 0;
  for (auto _ : state) {
    if (++num_steps % 2000 == 0) {  // before the context's end
      state.PauseTiming();
      scheduler.cancel_all();
      scheduler.deliver();
      refill();
      state.ResumeTiming();
    }
    step();
  }
  benchmark::DoNotOptimize(num_delivered);
  state.counters["a sequence"] = benchmark::Counter(
      static_cast<double>(num_seqs),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(host_time_of_a_step)
    ->Args({1, 64})
    ->Args({64, 64})
    ->Args({1000, 64})
    ->Args({1000, 2000})
    ->Unit(benchmark::kMicrosecond);

constexpr int32_t kStreams = 64, kPrompt = 32, kNew = 96;

std::unique_ptr<Engine> open_embedded() {
  EngineOptions options{.device = "cpu", .max_model_len = 4096, .show_progress = false};
  fit_service(kStreams, &options);
  auto engine = Engine::load(options);
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

std::vector<int32_t> prompt_of(int32_t stream) {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < kPrompt; ++i) prompt.push_back((37 * stream + 11 * i) % 4000);
  return prompt;
}

// Tokens a second of plain launches, as `moxie bench -b 64` counts them, but feeding drawn tokens.
double plain_tok_s(Engine& engine) {
  std::vector<SeqId> seqs;
  std::vector<int32_t> tokens(kStreams);
  for (int32_t s = 0; s < kStreams; ++s) {
    seqs.push_back(engine.kv().add_sequence());
    const auto prompt = prompt_of(s);
    const Chunk chunk{seqs.back(), prompt, Logits::kLast};
    CHECK(engine.step({&chunk, 1}).has_value());
    tokens[static_cast<size_t>(s)] = prompt.back();
  }
  const std::vector<SampleRequest> requests(kStreams);
  std::vector<SampleAnswer> answers(kStreams);
  std::vector<Chunk> chunks(kStreams);
  const auto start = Clock::now();
  for (int32_t n = 0; n < kNew; ++n) {
    for (size_t s = 0; s < chunks.size(); ++s) chunks[s] = {seqs[s], {&tokens[s], 1}};
    CHECK(engine.step(chunks).has_value() && engine.sample(requests, answers).has_value());
    for (size_t s = 0; s < chunks.size(); ++s) tokens[s] = answers[s].token;
  }
  const double seconds = seconds_since(start);
  for (const SeqId seq : seqs) engine.kv().free_sequence(seq);
  return kStreams * kNew / seconds;
}

// The same streams through the service, counted from the launch after the last prompt.
double served_tok_s(Engine& engine, bool async) {
  auto service = Service::create(engine, {.prefix_cache = true, .async_scheduling = async});
  std::atomic<int> num_started{0}, num_ended{0};
  Clock::time_point start;
  std::atomic<int64_t> num_before{0}, num_tokens{0};
  for (int32_t s = 0; s < kStreams; ++s) {
    CHECK(service
              ->submit({.prompt = prompt_of(s),
                        .sampling = {.temperature = 0, .max_tokens = kNew, .ignore_eos = true},
                        .use_prefix_cache = false,
                        .sink =
                            [&, first = true](const RequestUpdate& update) mutable {
                              num_tokens += static_cast<int64_t>(update.tokens.size());
                              if (first && ++num_started == kStreams) {
                                start = update.at;
                                num_before = num_tokens.load();
                              }
                              first = false;
                              if (update.finish != nullptr) ++num_ended;
                            }})
              .has_value());
  }
  CHECK(service->drain(600));
  const double seconds = seconds_since(start);
  CHECK(num_ended == kStreams && num_tokens == kStreams * kNew);
  return static_cast<double>(num_tokens - num_before) / seconds;
}

void share_of_plain_steps(benchmark::State& state) {
  auto engine = open_embedded();
  double plain = 0, late = 0, at_once = 0;
  for (auto _ : state) {  // in turns, so that both meet the same state of the machine
    plain += plain_tok_s(*engine);
    late += served_tok_s(*engine, true);
    at_once += served_tok_s(*engine, false);
  }
  state.counters["plain tok/s"] = plain / static_cast<double>(state.iterations());
  state.counters["share"] = late / plain;
  state.counters["share, plain loop"] = at_once / plain;
}
BENCHMARK(share_of_plain_steps)->Iterations(3)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moxie

BENCHMARK_MAIN();
