// moxie op bench: times rows of an operation on random inputs, beside the limits of this machine
// measured in the same run, and beside peers' times from a file.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/bench_flags.h"
#include "apps/op.h"
#include "apps/output.h"
#include "core/add_once.h"
#include "core/bytes.h"
#include "lab/machine.h"
#include "lab/moe_fp8_inputs.h"
#include "lab/peer_figures.h"
#include "lab/run_watch.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct OpBenchFlags {
  std::vector<std::string> names;
  std::vector<int32_t> tokens = {1, 7, 32};
  int32_t experts = 256, local_experts = 32, hidden = 7168, intermediate = 2048, offset = 32;
  int32_t repetitions = 0;
  OpDevice on;
  uint64_t seed = 1;
  std::string kernel = "auto", l2 = "written", peers;
  RecordFlags record;
  bool json = false;
};

MoeFp8Params sizes_of(const OpBenchFlags& o, int32_t tokens) {
  return {.num_tokens = tokens,
          .num_experts = o.experts,
          .num_local_experts = o.local_experts,
          .hidden = o.hidden,
          .intermediate = o.intermediate,
          .local_expert_offset = std::min(o.offset, o.experts - o.local_experts),
          .routed_scaling_factor = 2.5f};
}

// Fails if weights and activations would not fit in three quarters of a device's free memory. A
// GPU needs them in the host's memory, too, where they are made.
Status check_memory(const OpBenchFlags& o, MoeFp8Runner& runner) {
  const int32_t most = *std::max_element(o.tokens.begin(), o.tokens.end());
  const double weights = 3.0 * o.local_experts * o.hidden * o.intermediate;
  const double tokens = static_cast<double>(most) * (16.0 * o.hidden + 4.0 * o.experts);
  for (const Device* device : {&runner.device(), &runner.host()}) {
    const uint64_t available = device->properties().available_bytes;
    if (weights + tokens < 0.75 * static_cast<double>(available)) continue;
    return fail(
        fmt::format("needs {}, of {} free", format_bytes(static_cast<uint64_t>(weights + tokens)),
                    format_bytes(available)),
        device->kind() == DeviceKind::kCuda ? "op bench, the GPU's memory" : "op bench",
        "--local-experts, --hidden and --intermediate reduce the shape");
  }
  return {};
}

// What a run of the command compares with.
struct Beside {
  MachineLimits limits;
  std::optional<PeerFigures> peers;
};

Json peers_of(const Beside& beside, int32_t tokens, double median_us) {
  Json list = Json::array();
  if (!beside.peers) return list;
  for (const auto& figure : beside.peers->figures)
    if (figure.tokens == tokens)
      list.push_back({{"name", figure.name},
                      {"median_us", figure.median_us},
                      {"ratio", figure.median_us / median_us}});
  return list;
}

int repetitions_of(const OpBenchFlags& o, const MoeFp8Runner& runner) {
  return o.repetitions > 0 ? o.repetitions : runner.on_gpu() ? 50 : 10;
}

// One row on one number of tokens.
Result<Json> bench_tokens(const OpBenchFlags& o, const RandomMoeFp8& weights, int32_t tokens,
                          const Beside& beside, MoeFp8Runner& runner) {
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
  auto seconds = runner.time(**row, p, repetitions_of(o, runner),
                             o.l2 == "read" ? L2Before::kRead : L2Before::kWritten);
  if (!seconds) return fail(seconds.error());
  const MoeFp8Load load = moe_fp8_load(p);
  const Work work = moe_fp8_work(p, load);
  const Summary summary = summarize(*seconds);
  const MachineLimits& limits = beside.limits;
  const Peak& peak = peak_of_row(limits, (*row)->name);
  Json result{
      {"tokens", tokens},
      {"kernel", (*row)->name},
      {"pairs", load.num_pairs},
      {"touched_experts", load.num_touched},
      {"bytes", work.bytes},
      {"flops", work.flops},
      {"median_us", 1e6 * summary.median},
      {"mad_us", 1e6 * summary.mad},
      {"bytes_bound_us", 1e-3 * work.bytes / limits.read_gb_s},
      {"flops_bound_us", peak.rate > 0 ? Json(1e-3 * work.flops / peak.rate) : Json()},
      {"share_of_bound", share_of_limit(limits, peak, work.bytes, work.flops, summary.median)},
      {"samples_us", [&] {
         Json samples = Json::array();
         for (const double s : *seconds) samples.push_back(1e6 * s);
         return samples;
       }()}};
  if (beside.peers) result["peers"] = peers_of(beside, tokens, 1e6 * summary.median);
  return result;
}

void print_head(const OpBenchFlags& o, const Beside& beside, MoeFp8Runner& runner) {
  const MachineLimits& limits = beside.limits;
  if (runner.on_gpu()) {
    print_limits(limits);
  } else {
    const Peak& peak = best_peak(limits);
    fmt::print("{}, {} threads: reads {:.1f} GB/s, {:.0f} GFLOP/s ({})\n", limits.cpu,
               limits.num_threads, limits.read_gb_s, peak.rate, peak.instruction);
  }
  fmt::print("{} of {} experts, hidden {}, intermediate {}; median of {}, {}\n", o.local_experts,
             o.experts, o.hidden, o.intermediate, repetitions_of(o, runner),
             runner.on_gpu() ? "L2 holds other memory, " + o.l2 : "cold caches");
  if (beside.peers) fmt::print("peers' figures: {}, of {}\n", o.peers, beside.peers->device);
  fmt::print("\n{:>6} {:>7} {:>8} {:>12} {:>12} {:>12} {:>7}  {}\n", "T", "pairs", "touched", "us",
             "bytes us", "FLOPs us", "share", "kernel");
}

void print_result(const Json& r) {
  const Json& flops = r["flops_bound_us"];
  fmt::print("{:>6} {:>7} {:>8} {:>12.1f} {:>12.1f} {:>12} {:>6.0f}%  {}\n",
             r["tokens"].get<int32_t>(), r["pairs"].get<double>(),
             r["touched_experts"].get<double>(), r["median_us"].get<double>(),
             r["bytes_bound_us"].get<double>(),
             flops.is_null() ? "-" : fmt::format("{:.1f}", flops.get<double>()),
             100 * r["share_of_bound"].get<double>(), r["kernel"].get<std::string>());
  if (!r.contains("peers")) return;
  for (const Json& peer : r["peers"])
    fmt::print("{:>6} {:>7} {:>8} {:>12.1f} {:>12} {:>12} {:>6.2f}x  {}\n", "", "", "peer",
               peer["median_us"].get<double>(), "", "", peer["ratio"].get<double>(),
               peer["name"].get<std::string>());
}

Result<Beside> measure_beside(const OpBenchFlags& o, MoeFp8Runner& runner) {
  Beside beside;
  if (!o.peers.empty()) {
    auto text = read_text(o.peers, 1 << 20);
    if (!text) return fail(text.error());
    auto peers = parse_peer_figures(*text, o.peers);
    if (!peers) return fail(peers.error());
    if (peers->device != runner.device().properties().name)
      log_warn(o.peers + ": the figures are of " + peers->device + ", this is " +
               runner.device().properties().name);
    beside.peers = std::move(*peers);
  }
  auto limits = measure_limits(runner.device());
  if (!limits) return fail(limits.error());
  beside.limits = std::move(*limits);
  return beside;
}

// One series a number of tokens, of what bench_tokens() gave.
void add_result(const OpBenchFlags& o, const Json& r, Record* record) {
  const std::string name =
      fmt::format("{} T={}", Op<MoeFp8Params>::info.name, r["tokens"].get<int32_t>());
  Workload workload = record->workload;
  workload.num_prompt_tokens = r["tokens"].get<int64_t>();
  record->results.push_back({.name = name,
                             .unit = "us",
                             .samples = r["samples_us"].get<std::vector<double>>(),
                             .bytes = r["bytes"].get<double>(),
                             .operations = r["flops"].get<double>(),
                             .share_of_limit = r["share_of_bound"].get<double>(),
                             .better = Better::kLower,
                             .workload = workload});
  const auto num_runs = static_cast<uint64_t>(r["samples_us"].size());
  record->kernel_path.push_back(
      {Op<MoeFp8Params>::info.name, r["kernel"].get<std::string>(), num_runs, name});
  record->weights.bytes = static_cast<uint64_t>(3.0 * o.local_experts * o.hidden * o.intermediate);
}

Record make_record(const OpBenchFlags& o, const MachineLimits& limits, const Flags& flags) {
  Record record{.environment = collect_environment(), .machine = limits};
  describe_command("op bench", "op bench", flags, &record);
  record.weights.model =
      fmt::format("random: {} of {} experts, hidden {}, intermediate {}, seed {}", o.local_experts,
                  o.experts, o.hidden, o.intermediate, o.seed);
  record.weights.formats = {"fp8_e4m3 by blocks"};
  record.workload.seed = o.seed;
  return record;
}

// Each number once, as a record has each name once.
std::vector<int32_t> without_repeats(const std::vector<int32_t>& numbers) {
  std::vector<int32_t> once;
  for (const int32_t number : numbers) add_once(once, number);
  return once;
}

int bench(OpBenchFlags& o, const Flags& flags) {
  if (auto known = check_op_name(o.names); !known) return usage(known.error().message());
  if (o.tokens.empty()) return usage("op bench: -T needs a number of tokens");
  o.tokens = without_repeats(o.tokens);
  for (const int32_t tokens : o.tokens)
    if (const char* why = moe_fp8_shape_fault(sizes_of(o, tokens)))
      return usage(std::string("op bench: ") + why);
  if (flags.given("--offset") && o.offset > o.experts - o.local_experts)
    return usage(fmt::format("op bench: --offset {}: {} local experts of {} begin at {} at most",
                             o.offset, o.local_experts, o.experts, o.experts - o.local_experts));
  auto keeper = RecordKeeper::open(o.record);
  if (!keeper) return report(keeper.error());
  auto runner = open_runner(o.on);
  if (!runner) return report(runner.error());
  if (auto fits = check_memory(o, *runner); !fits) return report(fits.error());
  const auto beside = measure_beside(o, *runner);
  if (!beside) return report(beside.error());
  const RandomMoeFp8 weights = random_moe_fp8(sizes_of(o, 1), o.seed, runner->pool());
  Json results = Json::array();
  RunWatch watch(runner->device());
  Record record = make_record(o, beside->limits, flags);
  if (!o.json) print_head(o, *beside, *runner);
  for (const int32_t tokens : o.tokens) {
    auto result = bench_tokens(o, weights, tokens, *beside, *runner);
    if (!result) {
      report(result.error());
      record.details = json_text(Json{{"incomplete", result.error().message()}});
      return keep_and_exit(*keeper, record, kExitFailed);
    }
    add_result(o, *result, &record);
    watch.finish(&record);
    keeper->keep_so_far(record);
    if (!o.json) print_result(*result);
    std::fflush(stdout);
    results.push_back(std::move(*result));
  }
  if (!o.json) return keep_and_exit(*keeper, record, kExitDone);
  Json all{{"op", Op<MoeFp8Params>::info.name},
           {"machine", to_json(beside->limits)},
           {"device", runner->device().properties().name},
           {"timed_by", runner->on_gpu() ? "events around a CUDA graph" : "clock"},
           {"experts", o.experts},
           {"local_experts", o.local_experts},
           {"hidden", o.hidden},
           {"intermediate", o.intermediate},
           {"seed", o.seed},
           {"repetitions", repetitions_of(o, *runner)},
           {"l2", runner->on_gpu() ? Json(o.l2) : Json()},
           {"results", results}};
  if (beside->peers) all["peers"] = {{"file", o.peers}, {"device", beside->peers->device}};
  all["record"] = moxie::to_json(record);
  print_document(all);
  return keep_and_exit(*keeper, record, kExitDone);
}

}  // namespace

Command op_bench_command() {
  auto o = std::make_shared<OpBenchFlags>();
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
            flags.integer("--repetitions", &o->repetitions, {0, 10000},
                          "timed runs; 0: 50 on CUDA, 10 on a CPU");
            declare_op_device(flags, &o->on);
            flags.choice("--l2", &o->l2, {"written", "read"},
                         "what a GPU's L2 holds before each run: other memory that was written (it "
                         "goes back to memory during the run), or only read");
            flags.text("--peers", &o->peers,
                       "JSON of others' times, to print beside: {\"device\": \"...\", "
                       "\"results\": [{\"name\": \"...\", \"tokens\": 7, \"median_us\": 1.5}]}");
            flags.unsigned64("--seed", &o->seed, {0, UINT32_MAX}, "of the inputs");
            flags.toggle("--json", &o->json, "print JSON");
            declare_record_flags(flags, &o->record);
          },
      .run = [o](const Flags& flags) { return bench(*o, flags); }};
}

}  // namespace moxie
