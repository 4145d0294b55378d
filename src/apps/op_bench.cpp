// moxie op bench: times rows of an operation on random inputs, beside the limits of this machine
// measured in the same run.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/op.h"
#include "core/bytes.h"
#include "lab/machine.h"
#include "lab/moe_fp8_inputs.h"
#include "lab/moe_fp8_run.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct BenchFlags {
  std::vector<std::string> names;
  std::vector<int32_t> tokens = {1, 7, 32};
  int32_t experts = 256, local_experts = 32, hidden = 7168, intermediate = 2048, offset = 32;
  int32_t repetitions = 10, threads = 0;
  uint64_t seed = 1;
  std::string kernel = "auto";
  bool json = false;
};

MoeFp8Params sizes_of(const BenchFlags& o, int32_t tokens) {
  return {.num_tokens = tokens,
          .num_experts = o.experts,
          .num_local_experts = o.local_experts,
          .hidden = o.hidden,
          .intermediate = o.intermediate,
          .local_expert_offset = std::min(o.offset, o.experts - o.local_experts),
          .routed_scaling_factor = 2.5f};
}

// Fails if weights and activations would not fit in three quarters of the free memory.
Status check_memory(const BenchFlags& o, const Device& device) {
  const int32_t most = *std::max_element(o.tokens.begin(), o.tokens.end());
  const double weights = 3.0 * o.local_experts * o.hidden * o.intermediate;
  const double tokens = static_cast<double>(most) * (16.0 * o.hidden + 4.0 * o.experts);
  const auto available = static_cast<double>(device.properties().available_bytes);
  if (weights + tokens < 0.75 * available) return {};
  return fail(
      fmt::format("needs {}, of {} free", format_bytes(static_cast<uint64_t>(weights + tokens)),
                  format_bytes(device.properties().available_bytes)),
      "op bench", "--local-experts, --hidden and --intermediate reduce the shape");
}

// One row on one number of tokens.
Result<Json> bench_tokens(const BenchFlags& o, const RandomMoeFp8& weights, int32_t tokens,
                          const MachineLimits& limits, MoeFp8Runner& runner) {
  // The weights are those of the first number of tokens; the rest is made anew.
  RandomMoeFp8 made = random_moe_fp8(
      [&] {
        MoeFp8Params p = sizes_of(o, tokens);
        p.num_local_experts = 1, p.intermediate = kFp8Block;
        return p;
      }(),
      o.seed + static_cast<uint64_t>(tokens), runner.pool());
  for (OpTensor& tensor : made.tensors) {
    if (!tensor.name.starts_with("gemm")) continue;
    for (const OpTensor& of_all : weights.tensors)
      if (of_all.name == tensor.name) tensor = of_all;
  }
  auto inputs = MoeFp8Inputs::from(made.tensors, "random inputs");
  if (!inputs) return fail(inputs.error());
  const MoeFp8Params& p = inputs->params();
  auto row = runner.row_for(p, o.kernel);
  if (!row) return fail(row.error());
  auto seconds = runner.time(**row, p, o.repetitions);
  if (!seconds) return fail(seconds.error());
  const MoeFp8Load load = moe_fp8_load(p);
  const Work work = moe_fp8_work(p, load);
  const Summary summary = summarize(*seconds);
  const Peak& peak = best_peak(limits);
  return Json{
      {"tokens", tokens},
      {"kernel", (*row)->name},
      {"pairs", load.num_pairs},
      {"touched_experts", load.num_touched},
      {"bytes", work.bytes},
      {"flops", work.flops},
      {"median_us", 1e6 * summary.median},
      {"mad_us", 1e6 * summary.mad},
      {"bytes_bound_us", 1e-3 * work.bytes / limits.read_gb_s},
      {"flops_bound_us", 1e-3 * work.flops / peak.rate},
      {"share_of_bound", share_of_limit(limits, peak, work.bytes, work.flops, summary.median)},
      {"samples_us", [&] {
         Json samples = Json::array();
         for (const double s : *seconds) samples.push_back(1e6 * s);
         return samples;
       }()}};
}

int bench(const BenchFlags& o) {
  if (auto known = check_op_name(o.names); !known) return usage(known.error().message());
  if (o.tokens.empty()) return usage("op bench: -T needs a number of tokens");
  for (const int32_t tokens : o.tokens)
    if (const char* why = moe_fp8_shape_fault(sizes_of(o, tokens)))
      return usage(std::string("op bench: ") + why);
  MoeFp8Runner runner(o.threads);
  if (auto fits = check_memory(o, runner.device()); !fits) return report(fits.error());
  auto limits = measure_machine(runner.device());
  if (!limits) return report(limits.error());
  const RandomMoeFp8 weights = random_moe_fp8(sizes_of(o, 1), o.seed, runner.pool());
  Json results = Json::array();
  if (!o.json) {
    fmt::print("{}, {} threads: reads {:.1f} GB/s, {:.0f} GFLOP/s ({})\n", limits->cpu,
               limits->num_threads, limits->read_gb_s, best_peak(*limits).rate,
               best_peak(*limits).instruction);
    fmt::print("{} of {} experts, hidden {}, intermediate {}; median of {}, cold caches\n\n",
               o.local_experts, o.experts, o.hidden, o.intermediate, o.repetitions);
    fmt::print("{:>6} {:>7} {:>8} {:>12} {:>12} {:>12} {:>7}  {}\n", "T", "pairs", "touched", "us",
               "bytes us", "FLOPs us", "share", "kernel");
  }
  for (const int32_t tokens : o.tokens) {
    auto result = bench_tokens(o, weights, tokens, *limits, runner);
    if (!result) return report(result.error());
    const Json& r = *result;
    if (!o.json)
      fmt::print("{:>6} {:>7} {:>8} {:>12.1f} {:>12.1f} {:>12.1f} {:>6.0f}%  {}\n", tokens,
                 r["pairs"].get<double>(), r["touched_experts"].get<double>(),
                 r["median_us"].get<double>(), r["bytes_bound_us"].get<double>(),
                 r["flops_bound_us"].get<double>(), 100 * r["share_of_bound"].get<double>(),
                 r["kernel"].get<std::string>());
    results.push_back(r);
  }
  if (o.json)
    fmt::print("{}\n", Json{{"op", Op<MoeFp8Params>::info.name},
                            {"machine", to_json(*limits)},
                            {"experts", o.experts},
                            {"local_experts", o.local_experts},
                            {"hidden", o.hidden},
                            {"intermediate", o.intermediate},
                            {"seed", o.seed},
                            {"results", results}}
                           .dump(2));
  return kExitDone;
}

}  // namespace

Command op_bench_command() {
  auto o = std::make_shared<BenchFlags>();
  return {
      .name = "bench",
      .summary = "Time an operation on random inputs, with cold caches",
      .example = "moxie op bench moe_fp8_block_scale -T 1,7,32 --local-experts 8",
      .declare =
          [o](Flags& flags) {
            flags.positional("name", &o->names, "the operation: moxie op list", true);
            flags.integers("-T,--tokens", &o->tokens, {0, 1 << 20}, "numbers of tokens");
            flags.text("--kernel", &o->kernel, "a row's name, reference or auto");
            flags.integer("--experts", &o->experts, {8, kMoeFp8MaxExperts}, "all experts");
            flags.integer("--local-experts", &o->local_experts, {1, kMoeFp8MaxExperts},
                          "experts with weights");
            flags.integer("--offset", &o->offset, {0, kMoeFp8MaxExperts}, "of the local experts");
            flags.integer("--hidden", &o->hidden, {kFp8Block, 1 << 20}, "a multiple of 128");
            flags.integer("--intermediate", &o->intermediate, {kFp8Block, 1 << 20},
                          "a multiple of 128");
            flags.integer("--repetitions", &o->repetitions, {1, 10000}, "timed runs");
            flags.integer("--threads", &o->threads, kFromZero, "0: one a usable core");
            flags.unsigned64("--seed", &o->seed, {0, UINT32_MAX}, "of the inputs");
            flags.toggle("--json", &o->json, "print JSON");
          },
      .run = [o](const Flags&) { return bench(*o); }};
}

}  // namespace moxie
