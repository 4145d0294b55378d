// Level 4: speeds and latencies, with the proof of what was measured: the rows of these launches,
// and prompts that were computed and not found.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/machine_gpu.h"
#include "lab/stats.h"
#include "lab/validate_requests.h"
#include "lab/validate_run.h"
#include "lab/verdict.h"

namespace moxie {
namespace {

// Tokens a second of prompts and of generation, by short probes and then by the tests themselves.
struct Pace {
  double prompt = 0, generate = 0;

  double repetition_s(const BenchTest& test) const {
    return test.n_prompt / prompt + test.n_gen / generate;
  }
  double seconds_of(const BenchTest& test, int32_t repetitions) const {
    return test.depth / prompt + (repetitions + 1) * repetition_s(test);  // and the warm-up
  }
};

Result<Pace> probe(Validation& run, const MachineLimits& limits) {
  const auto rate_of = [&](const BenchTest& test) -> Result<double> {
    const auto result = run.seams().run_bench(run.engine(), test, 1, limits);
    if (!result) return fail(result.error());
    return result->tok_s.front();
  };
  const auto prompt = rate_of({.n_prompt = 64}), generate = rate_of({.n_gen = 8});
  if (!prompt) return fail(prompt.error());
  if (!generate) return fail(generate.error());
  return Pace{.prompt = *prompt, .generate = *generate};
}

// The launches of the repetitions of a test, without drafts.
LaunchList launches_of(const BenchTest& test, int32_t repetitions, int32_t batch_tokens) {
  LaunchList list;
  for (int32_t r = 0; r < repetitions; ++r) {
    for (int32_t at = 0; at < test.n_prompt; at += batch_tokens) {
      const int32_t count = std::min(batch_tokens, test.n_prompt - at);
      note_launch(count, 1, at + batch_tokens >= test.n_prompt ? 1 : 0, &list);
    }
    for (int32_t n = 0; n < test.n_gen; ++n) note_launch(1, 1, 1, &list);
  }
  return list;
}

// As many as let level 5 give a verdict; more of short tests, whose noise is greater.
int32_t num_repetitions(double repetition_s, double wanted_s) {
  constexpr double kLeast = kLeastSamples, kMost = 20;
  return static_cast<int32_t>(std::clamp(wanted_s / repetition_s, kLeast, kMost));
}

struct Speeds {
  int num_tests = 0, num_bad = 0;
  double noisiest = 0;
  std::string noisiest_name, bad_name, path_fault;
};

Status run_test(Validation& run, const BenchTest& test, const MachineLimits& limits,
                int32_t repetitions, Pace* pace, Speeds* speeds) {
  Engine& engine = run.engine();
  const auto result = run.seams().run_bench(engine, test, repetitions, limits);
  if (!result) return fail(result.error());
  const std::vector<double>& samples = result->tok_s;
  ++speeds->num_tests;
  const bool are_fine =
      std::ranges::all_of(samples, [](double s) { return std::isfinite(s) && s > 0; });
  if (std::cmp_not_equal(samples.size(), repetitions) || !are_fine) {
    ++speeds->num_bad;
    speeds->bad_name = test.name();
    return {};
  }
  const Summary summary = summarize(samples);
  (test.n_prompt > 0 ? pace->prompt : pace->generate) = summary.median;
  if (const double noise = summary.mad / summary.median;
      speeds->noisiest_name.empty() || noise > speeds->noisiest) {
    speeds->noisiest = noise;
    speeds->noisiest_name = test.name();
  }
  if (test.n_prompt > 0 || engine.options().speculation.method == SpecMethod::kOff) {
    const auto planned =
        planned_launches(run.options().engine, engine,
                         launches_of(test, repetitions, engine.plan().max_batch_tokens));
    if (!planned) return fail(planned.error());
    const std::string fault = difference(*planned, launches_that_ran(result->kernels), false);
    if (!fault.empty() && speeds->path_fault.empty())
      speeds->path_fault = test.name() + ": " + fault;
  }
  run.say(fmt::format("    {:<16} {:>10.2f} tok/s, MAD {:.1f}%", test.name(), summary.median,
                      100 * summary.mad / summary.median));
  run.figure({.name = test.name(),
              .unit = "tok/s",
              .samples = samples,
              .bytes = result->bytes_per_token,
              .operations = result->flops_per_token,
              .share_of_limit = result->share_of_limit,
              .limit_gb_s = result->read_gb_s,
              .limit_launches_s = result->launches_s,
              .joules_per_token = result->energy.joules_per_token()});
  return {};
}

Status run_speeds(Validation& run, const MachineLimits& limits) {
  const double most_s = run.limit_s(60, 10), most_in_all_s = run.limit_s(240, 60);
  const double wanted_s = run.limit_s(4, 1);
  const auto start = Clock::now();
  const int32_t context = run.engine().plan().max_model_len;
  auto pace = probe(run, limits);
  if (!pace) return fail(std::move(pace.error()));
  Speeds speeds;
  for (const BenchTest& test : speed_tests()) {
    const int32_t repetitions = num_repetitions(pace->repetition_s(test), wanted_s);
    if (test.context() + 1 > context) {
      run.omit(test.name(), fmt::format("the context has {} tokens", context));
    } else if (const double s = pace->seconds_of(test, repetitions); s > most_s) {
      run.omit(test.name(), fmt::format("it would take {:.0f} s, of {:.0f}", s, most_s));
    } else if (const double all_s = s + seconds_since(start); all_s > most_in_all_s) {
      run.omit(test.name(), fmt::format("with it the tests would take {:.0f} s, of {:.0f}", all_s,
                                        most_in_all_s));
    } else if (auto status = run_test(run, test, limits, repetitions, &*pace, &speeds); !status) {
      return status;
    }
  }
  run.check("speeds", speeds.num_tests > 0 && speeds.num_bad == 0,
            speeds.num_bad > 0
                ? fmt::format("{} without a speed: {}", speeds.num_bad, speeds.bad_name)
                : fmt::format("{} tests; noisiest {}: MAD {:.1f}% of the median", speeds.num_tests,
                              speeds.noisiest_name, 100 * speeds.noisiest),
            "every repetition has a speed above 0");
  run.check("rows of these launches", speeds.path_fault.empty(),
            speeds.path_fault.empty() ? "as planned" : speeds.path_fault,
            "for every row as many launches as its plans have");
  if (!speeds.path_fault.empty())
    run.report().invalid_because.push_back("level 4: " + speeds.path_fault);
  if (run.engine().options().speculation.method != SpecMethod::kOff)
    run.omit("rows of launches with drafts", "their sizes depend on what was drafted");
  return {};
}

struct Latencies {
  std::vector<double> ttft, tpot, itl, total;  // ms
};

Latencies latencies_of(const std::vector<ValidateAnswer>& answers) {
  Latencies found;
  const auto ms = [](Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
  };
  for (const ValidateAnswer& answer : answers) {
    const auto& times = answer.token_times;
    found.ttft.push_back(ms(answer.finish.times.submitted, times.front()));
    found.total.push_back(ms(answer.finish.times.submitted, times.back()));
    if (times.size() < 2) continue;
    found.tpot.push_back(ms(times.front(), times.back()) / static_cast<double>(times.size() - 1));
    for (size_t i = 1; i < times.size(); ++i) found.itl.push_back(ms(times[i - 1], times[i]));
  }
  return found;
}

void check_prompts_computed(Validation& run, const std::string& name, const ServiceStats& before,
                            const ServiceStats& after, int64_t prompt_tokens) {
  const int64_t hits = after.prefix_hit_tokens - before.prefix_hit_tokens;
  const int64_t computed = after.computed_tokens - before.computed_tokens;
  run.check(
      {.name = name + ": prompts were computed",
       .passed = hits == 0 && computed >= prompt_tokens,
       .value = fmt::format("{} tokens found in the prefix cache, {} computed", hits, computed),
       .bar = fmt::format("0 found, at least the {} of the prompts computed", prompt_tokens),
       .number = static_cast<double>(hits)});
}

// Requests with the same prompts twice: were the prefix cache on, the second time would show it.
Status run_latencies(Validation& run, int32_t concurrency, const Pace& pace) {
  const bool is_quick = run.options().quick;
  constexpr int32_t kTokens = 32, kWantedPrompt = 512;
  const size_t count = is_quick ? 8 : 24;
  const double most_s = run.limit_s(60, 20);
  const int32_t context = run.engine().plan().max_model_len;
  const auto affordable = static_cast<int32_t>(std::min(
      1e6, pace.prompt *
               std::max(0.0, most_s / static_cast<double>(2 * count) - kTokens / pace.generate)));
  const int32_t length = std::clamp(std::min(affordable, context - kTokens - 1), 16, kWantedPrompt);
  const std::string name = fmt::format("pp{}+tg{}@c{}", length, kTokens, concurrency);
  std::vector<ServiceRequest> requests;
  for (size_t i = 0; i < count; ++i)
    requests.push_back(
        greedy_request(random_ids(length, run.engine().config().vocab, 500 + i), kTokens));
  run.start_path();
  const auto service = run.make_service({.prefix_cache = false});
  const AnswerOptions options{.concurrency = concurrency, .patience_s = run.seams().patience_s};
  const auto warm = answer_all(*service, requests, options);
  if (const auto fault = answers_fault(warm, kTokens); !fault.empty()) return fail(fault, name);
  const ServiceStats before = service->stats();
  const auto answers = answer_all(*service, std::move(requests), options);
  if (const auto fault = answers_fault(answers, kTokens); !fault.empty()) return fail(fault, name);
  const bool is_drained = service->drain(5);
  const ServiceStats after = service->stats();
  run.check(name + ": every request answered", is_drained,
            fmt::format("{} requests", answers.size()), "and none is left");
  check_prompts_computed(run, name, before, after, static_cast<int64_t>(count) * length);
  const Latencies found = latencies_of(answers);
  for (const auto& [kind, samples] :
       {std::pair("ttft", &found.ttft), std::pair("tpot", &found.tpot),
        std::pair("itl", &found.itl), std::pair("e2e", &found.total)}) {
    const Summary summary = summarize(*samples);
    run.say(fmt::format("    {:<24} p50 {:>9.2f} ms, p99 {:>9.2f} ms",
                        fmt::format("{} {}", kind, name), summary.p50, summary.p99));
    run.figure({.name = fmt::format("{} {}", kind, name),
                .unit = "ms",
                .samples = *samples,
                .better = Better::kLower});
  }
  const auto fault = run.path_fault();
  if (!fault) return fail(fault.error());
  run.check(name + ": rows of these launches", fault->empty(),
            fault->empty() ? "as planned" : *fault,
            "for every row as many launches as its plans have");
  return {};
}

}  // namespace

std::vector<BenchTest> speed_tests() {
  return bench_tests({512, 2048, 8192}, {32, 128}, {0, 2048, 8192}, {1});
}

Status run_benchmark(Validation& run) {
  run.start_path();
  Device& device = run.engine().device();
  const CpuState before = run.seams().cpu_state();
  const auto limits = run.seams().limits(device);
  if (!limits) return fail(limits.error());
  run.report().machine = *limits;
  if (auto status = run_speeds(run, *limits); !status) return status;
  run.report().environment.cpu_used_by_others = used_by_others(before, run.seams().cpu_state());
  auto pace = probe(run, *limits);
  if (!pace) return fail(std::move(pace.error()));
  for (const int32_t concurrency : {1, kValidateStreams})
    if (auto status = run_latencies(run, concurrency, *pace); !status) return status;
  if (device.kind() == DeviceKind::kCuda)
    finish_gpu_state(device, &run.report().environment.gpus.front());
  return {};
}

}  // namespace moxie
