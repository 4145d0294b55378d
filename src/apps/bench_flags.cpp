// The shared part of bench and profile.
#include "apps/bench_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "apps/output.h"
#include "engine/draft_counts.h"
#include "lab/machine_gpu.h"
#include "lab/weights_origin.h"

namespace moxie {
namespace {

constexpr int32_t kMostBenchTokens = 1 << 20;
constexpr const char* kAcceptance = "--spec-acceptance";

Status read_acceptance(const BenchFlags& o, const Flags& flags, std::vector<float>* rates) {
  if (!flags.given(kAcceptance)) return {};
  if (!flags.given("--spec") && !flags.given("--speculative-config")) {
    return fail("nothing is drafted without a method", kAcceptance,
                "add --spec ngram, eagle3 or dflash");
  }
  const char* at = o.acceptance.data();
  const char* const end = at + o.acceptance.size();
  for (;;) {
    float rate = 0;
    const auto [read_to, error] = std::from_chars(at, end, rate);
    if (error != std::errc() || (read_to != end && *read_to != ',')) {
      return fail("'" + o.acceptance + "' is no list of rates", kAcceptance, "such as 0.8,0.6,0.4");
    }
    rates->push_back(rate);
    if (read_to == end) break;
    at = read_to + 1;
  }
  if (std::cmp_greater(rates->size(), kMostDrafts)) {
    return fail(fmt::format("{} rates", rates->size()), kAcceptance,
                fmt::format("at most {}", kMostDrafts));
  }
  return {};
}

}  // namespace

void declare_engine_flags(Flags& flags, BenchFlags* o) {
  declare_model_flags(flags, &o->engine);
  flags.integer("--chunk", &o->engine.max_batch_tokens, {0, kMostBatchTokens},
                "tokens a prefill launch; 0: what suits");
  flags.unsigned64("--seed", &o->engine.seed, {0, UINT64_MAX}, "of synthetic weights");
  flags.toggle("--mirror-ranks", &o->engine.mirrors_ranks,
               "CUDA: the first rank of --tensor-parallel-size alone on one GPU, which takes what "
               "it sends for what the others would: the time of a rank's kernels without links; "
               "tokens are not the model's");
  o->speculation.declare(flags);
  flags.text("--spec-acceptance", &o->acceptance,
             "drafts are accepted at these rates by position, such as 0.8,0.6,0.4 (the share of "
             "launches accepted so far), instead of by comparing tokens");
}

void declare_bench_flags(Flags& flags, BenchFlags* o) {
  declare_engine_flags(flags, o);
  flags.integers("-p,--n-prompt", &o->n_prompt, {0, kMostBenchTokens}, "prompt lengths; 0: none");
  flags.integers("-n,--n-gen", &o->n_gen, {0, kMostBenchTokens}, "tokens to generate; 0: none");
  flags.integers("-d,--n-depth", &o->depth, {0, kMostBenchTokens}, "tokens already in the context");
  flags.integers("-b,--streams", &o->streams, {1, kMostBenchTokens}, "streams at once");
  flags.integer("-r,--repetitions", &o->repetitions, {1, kMostBenchTokens}, "samples a test");
  flags.toggle("--json", &o->json, "print one JSON document");
  flags.text("--report", &o->report, "HTML file for charts, tables and conditions of the run");
  declare_record_flags(flags, &o->record);
  flags.toggle("-v,--verbose", &o->verbose, "print how long the start took");
}

Status complete_engine_flags(BenchFlags* o, const Flags& flags) {
  if (auto status = read_acceptance(*o, flags, &o->speculation.options.acceptance); !status) {
    return status;
  }
  if (auto status = o->speculation.complete(flags); !status) return status;
  o->engine.speculation = o->speculation.options;
  o->engine.speculation.seed = o->engine.seed;
  o->engine.show_progress = o->engine.show_progress && !o->json;
  return {};
}

Result<std::vector<BenchTest>> tests_of(BenchFlags* o, const Flags& flags) {
  if (auto status = complete_engine_flags(o, flags); !status)
    return fail(std::move(status.error()));
  auto tests = bench_tests(o->n_prompt, o->n_gen, o->depth, o->streams);
  if (tests.empty()) return fail("nothing to do; give -p or -n");
  fit_engine(tests, &o->engine);
  return tests;
}

Result<MachineLimits> measure_limits(Device& device) {
  return device.kind() == DeviceKind::kCuda ? measure_gpu(device) : measure_machine(device);
}

void print_limits(const MachineLimits& limits) {
  if (!limits.gpu.empty()) {
    fmt::print("{}: read {:.1f} GB/s", limits.gpu, limits.read_gb_s);
    if (limits.bf16.rate > 0) fmt::print(", bf16 {:.0f} GFLOP/s", limits.bf16.rate);
    if (limits.bf16_mma_gflops > 0 && limits.bf16_mma_gflops < limits.bf16.rate)
      fmt::print(" ({:.0f} by mma.sync)", limits.bf16_mma_gflops);
    if (limits.fp8.rate > 0) fmt::print(", fp8 {:.0f}", limits.fp8.rate);
    fmt::print("\n\n");
    return;
  }
  fmt::print("{}: read {:.1f} GB/s, fp32 {:.0f} GFLOP/s, bf16 {:.0f}, int8 {:.0f}; {} threads\n\n",
             limits.cpu, limits.read_gb_s, limits.fp32.rate, limits.bf16.rate, limits.int8.rate,
             limits.num_threads);
}

void print_rows(const std::vector<KernelChooser::Count>& counts) {
  for (const auto& count : counts) {
    fmt::print("  {:<8} {} x{}\n", count.op->name, count.name, count.launches);
  }
}

nlohmann::ordered_json model_json(Engine& engine) {
  const GptOssConfig& c = engine.config();
  return {{"name", engine.options().model},
          {"path", engine.checkpoint().path()},
          {"format", checkpoint_kind_name(engine.checkpoint().kind())},
          {"layers", c.num_layers},
          {"hidden", c.hidden},
          {"experts", c.num_experts},
          {"vocab", c.vocab},
          {"weight_bytes", engine.weights_bytes()},
          {"mxfp4_layers", engine.options().mxfp4_layers},
          {"mxfp8_layers", engine.options().mxfp8_layers},
          {"kv_dtype", dtype_name(engine.kv_dtype())}};
}

Record record_of(const std::string& kind, Engine& engine, const MachineLimits& limits,
                 const Flags& flags) {
  Record record{.environment = collect_environment(), .machine = limits};
  describe_command(kind, kind, flags, &record);
  record.weights = weights_origin(engine.checkpoint(), engine.weights_bytes());
  nlohmann::ordered_json details = {{"tuning", engine.tuning().text()}};
  if (engine.self_test().is_on) details["self_test"] = engine.self_test().text();
  if (engine.options().mirrors_ranks) details["mirrored_ranks"] = engine.num_ranks();
  record.details = json_text(details);
  record.workload.num_warm_ups = 1;
  record.workload.seed = engine.options().seed;
  record.memory_peak_bytes = peak_memory_bytes();
  return record;
}

Workload workload_of(const BenchTest& test, const Record& record) {
  Workload workload = record.workload;
  workload.num_prompt_tokens = test.n_prompt;
  workload.num_output_tokens = test.n_gen;
  workload.depth = test.depth;
  workload.batch = workload.concurrency = test.streams;
  return workload;
}

void add_rows(const std::vector<KernelChooser::Count>& counts, const std::string& of,
              const SelfTestUse& test, Record* record) {
  for (const auto& count : counts)
    record->kernel_path.push_back(
        {count.op->name, count.name, count.launches, of, test.proven(count.name)});
}

}  // namespace moxie
