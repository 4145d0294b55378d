// moxie bench serve: measures OpenAI-compatible endpoints over HTTP.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "apps/cli.h"
#include "apps/output.h"
#include "apps/record_flags.h"
#include "apps/stop_signal.h"
#include "core/add_once.h"
#include "lab/serve_bench_report.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kMostServeTokens = 1 << 20, kMostStreams = 4096;

struct ServeFlags {
  std::vector<std::string> urls;
  std::string model, api_key, endpoint = "chat", rates, goodput, latency = "api";
  std::vector<int32_t> n_prompt{512}, n_gen{128}, depth{0}, concurrency{1};
  int32_t num_requests = 32, block = 0, num_warm_ups = 1, max_errors = 10;
  float duration_s = 0, connect_s = 10, stall_s = 120, timeout_s = 600;
  uint64_t seed = 0;
  bool keeps_prefix_cache = false, ignores_eos = false, json = false;
  RecordFlags record;
};

void declare(Flags& flags, ServeFlags* o) {
  flags.texts("--url", &o->urls,
              "an endpoint, such as http://127.0.0.1:8000 or https://host/v1; repeatable: the "
              "others are compared to the first");
  flags.text("--model", &o->model, "as the endpoint names it; default: the first that it lists");
  flags.text("--api-key", &o->api_key, "sent as Authorization: Bearer");
  flags.choice("--endpoint", &o->endpoint, {"chat", "completions"}, "which requests to send");
  flags.integers("--concurrency", &o->concurrency, {1, kMostStreams}, "streams at once");
  flags.text("--rate", &o->rates,
             "requests a second at Poisson's intervals, such as 2,8, instead of --concurrency");
  flags.integer("--requests", &o->num_requests, kFromOne, "measured, a test and endpoint");
  flags.number("--duration", &o->duration_s, {0, 1e6},
               "seconds in which requests are begun, instead of --requests");
  flags.integers("-p,--n-prompt", &o->n_prompt, {1, kMostServeTokens},
                 "prompt lengths in tokens, template included");
  flags.integers("-n,--n-gen", &o->n_gen, {1, kMostServeTokens}, "tokens to generate at most");
  flags.integers("-d,--n-depth", &o->depth, {0, kMostServeTokens},
                 "tokens of context before the prompt");
  flags.unsigned64("--seed", &o->seed, {0, UINT64_MAX},
                   "of prompts and arrivals; default: another each run, so that no prefix cache "
                   "has the prompts");
  flags.toggle("--prefix-cache", &o->keeps_prefix_cache,
               "with -d: send the context first, unmeasured; pp then counts the prompt alone");
  flags.toggle("--ignore-eos", &o->ignores_eos,
               "ask for answers of full length (vLLM's ignore_eos and min_tokens)");
  flags.integer("--warm-up", &o->num_warm_ups, {0, kMostCount},
                "unmeasured requests before each test and endpoint");
  flags.integer("--block", &o->block, {0, kMostCount},
                "of several endpoints: requests before the next one's turn; 0: what suits");
  flags.choice("--latency-mode", &o->latency, {"api", "none"},
               "api: the mean time of listing the models is taken off the time of a prompt");
  flags.text("--goodput", &o->goodput,
             "bars for a good request: ttft_ms=500,tpot_ms=50,e2e_ms=10000");
  flags.number("--connect-timeout", &o->connect_s, {0.001F, 3600}, "seconds to connect");
  flags.number("--stall-timeout", &o->stall_s, {0.001F, 86400}, "seconds without a byte");
  flags.number("--timeout", &o->timeout_s, {0.001F, 86400}, "seconds for one request");
  flags.integer("--max-errors", &o->max_errors, kFromOne, "failed requests that end the run");
  declare_record_flags(flags, &o->record);
  flags.toggle("--json", &o->json, "print one JSON document");
}

Result<std::vector<double>> parse_rates(const std::string& text) {
  std::vector<double> rates;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    double rate = 0;
    const auto [read_to, error] = std::from_chars(at, end, rate);
    const bool is_number = error == std::errc() && std::isfinite(rate) && rate > 0 && rate <= 1e5;
    if (!is_number || (read_to != end && *read_to != ','))
      return fail("'" + text + "' is no list of rates above 0", "--rate", "such as 2,8");
    rates.push_back(rate);
    at = read_to == end ? end : read_to + 1;
  }
  return rates;
}

Result<std::vector<ServeTest>> tests_of(const ServeFlags& o, const Flags& flags) {
  auto rates = parse_rates(o.rates);
  if (!rates) return fail(rates.error());
  std::vector<ServeTest> tests;
  // Once: a record has each name once.
  const auto add = [&tests](const ServeTest& test) { add_once(tests, test); };
  for (const int32_t depth : o.depth) {
    for (const int32_t n_prompt : o.n_prompt) {
      for (const int32_t n_gen : o.n_gen) {
        ServeTest test{.n_prompt = n_prompt, .n_gen = n_gen, .depth = depth};
        if (rates->empty() || flags.given("--concurrency")) {
          for (const int32_t c : o.concurrency) {
            test.concurrency = c;
            add(test);
          }
        }
        test.concurrency = 0;
        for (const double rate : *rates) {
          test.rate = rate;
          add(test);
        }
      }
    }
  }
  return tests;
}

Result<ServeOptions> options_of(const ServeFlags& o, const Flags& flags) {
  if (o.urls.empty()) return fail("no endpoint is named", "--url", "--url http://127.0.0.1:8000");
  if (o.duration_s > 0 && flags.given("--requests"))
    return fail("give --requests or --duration, not both", "--duration");
  if (o.duration_s > 0 && o.keeps_prefix_cache)
    return fail("--prefix-cache needs --requests: contexts are sent before", "--duration");
  ServeOptions options{
      .model = o.model,
      .is_chat = o.endpoint == "chat",
      .num_requests = o.num_requests,
      .duration_s = o.duration_s,
      .block = o.block,
      .num_warm_ups = o.num_warm_ups,
      .max_errors = o.max_errors,
      .keeps_prefix_cache = o.keeps_prefix_cache,
      .ignores_eos = o.ignores_eos,
      .measures_latency = o.latency == "api",
      .seed = o.seed,
      .limits = {.connect_s = o.connect_s, .stall_s = o.stall_s, .total_s = o.timeout_s}};
  for (const std::string& url : o.urls) {
    auto endpoint = parse_endpoint(url, o.api_key);
    if (!endpoint) return fail(endpoint.error());
    options.endpoints.push_back(std::move(*endpoint));
  }
  return options;
}

Record make_record(const ServeFlags& o, const Flags& flags, const ServeRun& run) {
  Record record{.environment = collect_environment()};
  describe_command("serve", "bench serve", flags, &record);
  if (!run.endpoints.empty()) record.weights.model = run.endpoints.front().model;
  record.workload = {.num_prompt_tokens = o.n_prompt.front(),
                     .num_output_tokens = o.n_gen.front(),
                     .depth = o.depth.front(),
                     .concurrency = o.concurrency.front(),
                     .seed = o.seed,
                     .prefix_cache = o.keeps_prefix_cache,
                     .num_warm_ups = o.num_warm_ups};
  record.results = series_of(run);
  record.details = json_text(details_of(run));
  record.memory_peak_bytes = peak_memory_bytes();
  return record;
}

// Prints what was found, also where the run ended early; returns the exit code.
int finish(const ServeFlags& o, const ServeRun& run, const Record& record, RecordKeeper* keeper) {
  if (o.json) {
    Json document = to_json(run);
    document["seed"] = o.seed;
    document["record"] = to_json(record);
    print_document(document);
  } else {
    for (const std::string& note : notes_of(run)) fmt::print("note: {}\n", note);
  }
  std::fflush(stdout);
  std::fputs(errors_of(run).c_str(), stderr);
  int code = kExitDone;
  if (!run.stopped.empty()) {
    code = report({"stopped: " + run.stopped, "bench serve", "what was measured is above"});
  } else if (run.num_errors() > 0) {
    code = report({fmt::format("{} requests failed", run.num_errors()), "bench serve",
                   "the figures are of the others"});
  }
  return keep_and_exit(*keeper, record, code);
}

// Measures test by test; what was measured is kept after each.
int measure(const ServeFlags& o, const Flags& flags, const std::vector<ServeTest>& tests,
            const Goodput& goodput, ServeBench& bench, RecordKeeper* keeper) {
  ServeRun found{.endpoints = bench.endpoints(),
                 .goodput = goodput,
                 .keeps_prefix_cache = o.keeps_prefix_cache};
  if (!o.json) {
    for (const EndpointFacts& facts : found.endpoints) {
      fmt::print("{}: model {}, latency {:.2f} ms\n", facts.url, facts.model,
                 1e3 * facts.latency_s);
    }
  }
  for (const ServeTest& test : tests) {
    auto outcome = bench.run(test);
    found.endpoints = bench.endpoints();
    if (!outcome) {
      found.stopped = outcome.error().message();
      break;
    }
    found.stopped = outcome->stopped;
    found.cells.push_back({test, std::move(*outcome)});
    if (!o.json) fmt::print("{}", table_of(found, found.cells.back()));
    std::fflush(stdout);
    if (!found.stopped.empty()) break;
    if (&test != &tests.back()) keeper->keep_so_far(make_record(o, flags, found));
  }
  return finish(o, found, make_record(o, flags, found), keeper);
}

int run(ServeFlags& o, const Flags& flags) {
  if (!flags.given("--seed"))
    o.seed = (uint64_t{std::random_device{}()} << 20) ^ std::random_device{}();
  auto options = options_of(o, flags);
  if (!options) return usage(options.error().message());
  const auto tests = tests_of(o, flags);
  if (!tests) return usage(tests.error().message());
  const auto goodput = parse_goodput(o.goodput);
  if (!goodput) return usage(goodput.error().message());
  auto keeper = RecordKeeper::open(o.record);
  if (!keeper) return report(keeper.error());
  stop_at({SIGINT, SIGTERM});  // what was measured is kept and printed
  auto bench = ServeBench::prepare(*options, stop_asked());
  if (!bench) return report(bench.error());
  return measure(o, flags, *tests, *goodput, **bench, &*keeper);
}

}  // namespace

Command bench_serve_command() {
  auto o = std::make_shared<ServeFlags>();
  return {.name = "serve",
          .summary = "Speed of an OpenAI-compatible endpoint over HTTP",
          .example =
              "moxie bench serve --url http://127.0.0.1:8000 --concurrency 1,8,64 -p 512 -n 128\n"
              "  moxie bench serve --url http://127.0.0.1:8000 --rate 2,8 --duration 60 "
              "--goodput ttft_ms=500,tpot_ms=50\n"
              "  moxie bench serve --url http://a:8000 --url http://b:8000   (which is faster?)",
          .declare = [o](Flags& flags) { declare(flags, o.get()); },
          .run = [o](const Flags& flags) { return run(*o, flags); }};
}

}  // namespace moxie
