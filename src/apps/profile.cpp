// moxie profile: where the time of bench's tests goes, by category, step and kernel, held against
// the machine's limits; and a trace of it.
#include "lab/profile.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_flags.h"
#include "apps/kernels_json.h"
#include "apps/output.h"
#include "apps/startup.h"
#include "lab/energy.h"
#include "lab/report.h"
#include "lab/run_watch.h"
#include "lab/shared_experts.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct ProfileFlags {
  BenchFlags bench;
  std::string trace, cupti, texts;
  int32_t num_top = 12;
};

// Longest prompt with its answer where texts are given and no context is asked for.
constexpr int32_t kTextContext = 4096;

void print_header(const PhaseProfile& phase) {
  const double plain = median(phase.plain_tok_s), profiled = median(phase.profiled_tok_s);
  fmt::print("{} ({}): {:.1f} us a {} under the recorder, {:.2f} tok/s", phase.test.name(),
             phase.is_decode() ? "decode" : "prefill", phase.window_us, phase.unit(), profiled);
  fmt::print("; {:.2f} tok/s without it ({:+.1f}% time)\n\n", plain, 100 * (phase.slow_down() - 1));
}

std::string of_limit(const LimitedPart& part) {
  if (!part.share_of_limit) return "";
  return fmt::format("{:.1f}% of {}", 100 * *part.share_of_limit,
                     part.is_by_flops ? "flops" : "bytes");
}

void print_parts(const char* what, const char* unit, const std::vector<LimitedPart>& parts) {
  fmt::print(
      "| {:<20} | {:>12} | {:>8} | {:>15} | {:>14} | {:>9} |\n"
      "|{:-<22}|{:->14}|{:->10}|{:->17}|{:->16}|{:->11}|\n",
      what, fmt::format("us/{}", unit), "of time", "of limit", "above limit", "launches", "", ":",
      ":", ":", ":", ":");
  for (const LimitedPart& part : parts) {
    if (part.us == 0 && part.launches == 0) continue;
    fmt::print("| {:<20} | {:>12.2f} | {:>7.1f}% | {:>15} | {:>14} | {:>9.1f} |\n", part.name,
               part.us, 100 * part.share_of_time, of_limit(part),
               part.share_of_limit ? fmt::format("{:.2f} us", part.above_limit_us) : "",
               part.launches);
  }
}

void print_kernels(const PhaseProfile& phase, int32_t num_top) {
  fmt::print("\ntop kernels:\n");
  int32_t num_left = num_top;
  for (const KernelPart& kernel : phase.kernels) {
    if (num_left-- == 0) break;
    fmt::print("  {:>10.2f} us {:>5.1f}%  x{:<8.1f} {:<8} {}\n", kernel.us,
               100 * kernel.share_of_time, kernel.launches, kernel.place.step, kernel.name);
  }
}

void print_gates(const std::vector<Gate>& gates) {
  fmt::print(
      "\n| gate         | of time |    bar | passed "
      "|\n|--------------|--------:|-------:|--------|\n");
  for (const Gate& gate : gates) {
    fmt::print("| {:<12} | {:>7} | {:>5.0f}% | {:<6} |\n", gate.name,
               gate.share ? fmt::format("{:.1f}%", 100 * *gate.share) : "unseen",
               100 * gate.threshold,
               !gate.share     ? "-"
               : gate.passed() ? "yes"
                               : "no");
  }
  for (const Gate& gate : gates) {
    const char* answer = !gate.share ? "not seen here" : gate.is_over() ? "yes" : "no";
    fmt::print("{} {}{}{}\n", gate.question, answer,
               gate.next.empty() ? "" : "; next: ", gate.next);
  }
  fmt::print("\n");
}

void print_phase(const PhaseProfile& phase, int32_t num_top, bool is_simulated) {
  print_header(phase);
  print_parts("category", phase.unit(), phase.categories);
  fmt::print("\n");
  print_parts("step", phase.unit(), phase.steps);
  if (!phase.by_drafts.empty()) {
    fmt::print(
        "\n| {:<20} | {:>12} |  of time |  launches |\n"
        "|----------------------|-------------:|---------:|----------:|\n",
        is_simulated ? "drafts, simulated" : "drafts", fmt::format("us/{}", phase.unit()));
    for (const TimePart& part : phase.by_drafts) {
      fmt::print("| {:<20} | {:>12.2f} | {:>7.1f}% | {:>9.2f} |\n", part.name, part.us,
                 100 * part.share_of_time, part.launches);
    }
  }
  print_kernels(phase, num_top);
  fmt::print("\nrows:\n");
  print_rows(phase.rows);
  fmt::print("\ngaps: {:.1f} a {}, the longest {:.1f} us; kernels overlap for {:.2f} us a {}\n",
             phase.gaps, phase.unit(), phase.longest_gap_us, phase.overlap_us, phase.unit());
  print_gates(phase.gates);
}

void print_distinct(const std::string& name, const SharedExperts::ByTokens& distinct) {
  fmt::print("| {:<24} |", name.substr(0, 24));
  for (const double count : distinct) fmt::print(" {:>6.2f} |", count);
  fmt::print("\n");
}

void print_shared(const SharedExperts& shared) {
  fmt::print("experts that neighbouring tokens read, of {} with {} a token:\n\n| {:<24} |",
             shared.num_experts, shared.top_k, "tokens");
  for (int32_t n = SharedExperts::kLeastTokens; n <= SharedExperts::kMostTokens; ++n)
    fmt::print(" {:>6} |", n);
  fmt::print("\n|{:-<26}|", "");
  for (size_t n = 0; n < shared.independent.size(); ++n) fmt::print("{:->8}|", ":");
  fmt::print("\n");
  print_distinct("independent routing", shared.independent);
  print_distinct(fmt::format("all {} tokens", shared.all.num_tokens), shared.all.mean);
  if (shared.parts.size() > 1) {
    for (const SharedExperts::Part& part : shared.parts) print_distinct(part.name, part.mean);
  }
  for (size_t l = 0; l < shared.all.layers.size(); ++l)
    print_distinct(fmt::format("layer {}", l), shared.all.layers[l]);
  fmt::print("\n");
  const std::vector<double>& guessed = shared.all.guessed;
  if (guessed.empty()) return;
  const auto [least, most] = std::ranges::minmax(guessed);
  fmt::print(
      "experts that a layer's router names from x before its attention: {:.1f}% ({:.1f} to {:.1f}% "
      "by layer)\n\n",
      100 * shared.all.mean_guessed, 100 * least, 100 * most);
}

// What a decode test generates: the model's own greedy text. Empty without such a test.
Result<std::vector<RoutedText>> own_text(Engine& engine, const std::vector<BenchTest>& tests) {
  int32_t most = 0;
  for (const BenchTest& test : tests) most = std::max(most, test.n_gen);
  if (most <= SharedExperts::kMostTokens) return std::vector<RoutedText>{};
  RoutedText text{.name = "its own greedy text", .ids = {engine.config().vocab / 2}, .first = 1};
  const auto made = engine.generate(
      text.ids, {.temperature = 0, .seed = 0, .max_tokens = most, .ignore_eos = true});
  if (!made) return fail(made.error());
  text.ids.insert(text.ids.end(), made->ids.begin(), made->ids.end());
  text.ids.pop_back();  // never a token of a launch
  if (text.ids.size() < text.first + SharedExperts::kMostTokens) return std::vector<RoutedText>{};
  return std::vector{std::move(text)};
}

// Of `texts`, or if there are none of the model's own. Empty, with the reason in `why`, where
// nothing can be read.
Result<std::optional<SharedExperts>> shared_experts(Engine& engine, std::vector<RoutedText> texts,
                                                    const std::vector<BenchTest>& tests,
                                                    std::string* why) {
  if (texts.empty() && engine.graphs() != nullptr) {
    *why = "with --spec on a GPU they are not read: leave out --spec, which changes no choice";
    return std::optional<SharedExperts>{};
  }
  if (texts.empty()) {
    auto own = own_text(engine, tests);
    if (!own) return fail(std::move(own.error()));
    texts = std::move(*own);
  }
  if (texts.empty()) {
    *why = "no text: --texts, or a decode test of more than 8 tokens";
    return std::optional<SharedExperts>{};
  }
  auto shared = measure_shared_experts(engine, texts);
  if (!shared) return fail(std::move(shared.error()));
  return std::optional(std::move(*shared));
}

void add_phase(const PhaseProfile& phase, const SelfTestUse& test, Record* record) {
  const std::string name = phase.test.name();
  for (const auto& [of, samples] : {std::pair(name, &phase.plain_tok_s),
                                    std::pair(name + " profiled", &phase.profiled_tok_s)}) {
    record->results.push_back({.name = of,
                               .unit = "tok/s",
                               .samples = *samples,
                               .workload = workload_of(phase.test, *record)});
  }
  add_rows(phase.rows, name, test, record);
}

Json phases_json(const std::vector<PhaseProfile>& phases, bool is_simulated) {
  Json list = Json::array();
  for (const PhaseProfile& phase : phases) {
    list.push_back(to_json(phase));
    if (!phase.by_drafts.empty())
      list.back()["acceptance"] = is_simulated ? "simulated" : "compared";
    list.back()["rows"] = kernels_json(phase.rows);
  }
  return list;
}

// Whether a GPU may be what runs: then CUPTI has to be there, which is better said before loading.
bool may_use_gpu(const std::string& device) {
  return device.starts_with("cuda") || (device == "auto" && num_cuda_devices() > 0);
}

int run(ProfileFlags& o, const Flags& flags) {
  const auto tests = tests_of(&o.bench, flags);
  if (!tests) return usage("profile: " + tests.error().message());
  auto keeper = RecordKeeper::open(o.bench.record);
  if (!keeper) return report(keeper.error());
  for (const std::string& file : {o.bench.report, o.trace})
    if (auto status = check_output(file); !status) return report(status.error());
  std::string texts_json;
  if (!o.texts.empty()) {
    auto json = read_text(o.texts);
    if (!json) return report(json.error());
    texts_json = std::move(*json);
    if (!flags.given("--max-model-len"))
      o.bench.engine.max_model_len = std::max(o.bench.engine.max_model_len, kTextContext);
  }
  std::unique_ptr<ActivityRecorder> recorder;
  if (may_use_gpu(o.bench.engine.device) && num_cuda_devices() > 0) {
    auto made = make_cupti_recorder(o.cupti);
    if (!made) return report(made.error());
    recorder = std::move(*made);
  }
  auto engine = Engine::load(o.bench.engine);
  if (!engine) return report(engine.error());
  std::vector<RoutedText> texts;
  if (!o.texts.empty()) {
    auto parsed =
        parse_routed_texts(texts_json, o.texts, (*engine)->tokenizer(), (*engine)->config().vocab);
    if (!parsed) return report(parsed.error());
    texts = std::move(*parsed);
  }
  Device& device = (*engine)->device();
  const bool on_gpu = device.kind() == DeviceKind::kCuda;
  if (!on_gpu) recorder = make_step_recorder((*engine)->kernels());
  auto limits = measure_limits(device);
  if (!limits) return report(limits.error());
  RunWatch watch(device, counts_all_energy(**engine));
  Record record = record_of("profile", **engine, *limits, flags);
  auto phases = run_profile(**engine, *tests, o.bench.repetitions, *limits, *recorder);
  if (!phases) return report(phases.error());
  for (const PhaseProfile& phase : *phases) add_phase(phase, (*engine)->self_test(), &record);
  const bool is_simulated = !o.bench.engine.speculation.acceptance.empty();
  record.details = json_text(Json{{"phases", phases_json(*phases, is_simulated)}});
  watch.finish(&record);
  keeper->keep_so_far(record);
  std::string why_not;
  auto shared = shared_experts(**engine, std::move(texts), *tests, &why_not);
  if (!shared) return report(shared.error());
  if (!o.trace.empty()) {
    if (auto status = write_trace(*phases, o.trace); !status) return report(status.error());
  }
  const Json document = {{"machine", moxie::to_json(*limits)},
                         {"model", model_json(**engine)},
                         {"startup", startup_json((*engine)->timeline())},
                         {"phases", phases_json(*phases, is_simulated)},
                         {"shared_experts", *shared ? moxie::to_json(**shared) : Json()},
                         {"record", moxie::to_json(record)}};
  if (!o.bench.report.empty()) {
    const Page page = profile_page(*phases, *limits, document);
    if (auto status = write_page(page, o.bench.report); !status) return report(status.error());
  }
  if (o.bench.json) {
    print_document(document);
    return keep_and_exit(*keeper, record, kExitDone);
  }
  print_limits(*limits);
  if (o.bench.verbose) print_startup((*engine)->timeline());
  for (const PhaseProfile& phase : *phases) print_phase(phase, o.num_top, is_simulated);
  if (*shared) {
    print_shared(**shared);
  } else {
    fmt::print("experts that neighbouring tokens read: {}\n", why_not);
  }
  return keep_and_exit(*keeper, record, kExitDone);
}

}  // namespace

Command profile_command() {
  auto o = std::make_shared<ProfileFlags>();
  o->bench.repetitions = 3;
  return {
      .name = "profile",
      .summary = "Where the time goes: by category, step and kernel, as shares of the limit",
      .example = "moxie profile --model synthetic:gpt-oss-20b -p 2048 -n 64 -d 0 --trace t.json",
      .declare =
          [o](Flags& flags) {
            declare_bench_flags(flags, &o->bench);
            flags.integer("--top", &o->num_top, kFromZero, "kernels to print a phase");
            flags.text("--trace", &o->trace,
                       "file for trace events of the last repetitions (Chrome, Perfetto)");
            flags.text(
                "--texts", &o->texts,
                "JSON file of texts by name, {\"name\": [ids or string or {\"prompt\": ..., "
                "\"answer\": ...}]}: how many experts their neighbouring tokens read; without "
                "it the model's own greedy text");
            flags.text("--cupti", &o->cupti,
                       "CUDA: path of libcupti.so.13; else it is looked for by the loader, "
                       "beside this program and below /usr/local/cuda*");
          },
      .run = [o](const Flags& flags) { return run(*o, flags); }};
}

}  // namespace moxie
