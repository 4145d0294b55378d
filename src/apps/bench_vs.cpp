// moxie bench --vs: two engines of one process, sampled in turn, so that what moves the machine
// moves both.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/bench_commands.h"
#include "apps/output.h"
#include "lab/bench_pair.h"
#include "lab/energy.h"
#include "lab/run_watch.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// So many samples of each side at least without --repetitions.
constexpr int32_t kSamplesAtLeast = 40;

// The options of the second engine.
Result<EngineOptions> second_options(const BenchFlags& o, const std::vector<BenchTest>& tests) {
  BenchFlags second = o;
  auto status = parse_switches(
      o.vs, [&](Flags& flags) { declare_engine_flags(flags, &second); },
      [&](const Flags& flags) { return complete_engine_flags(&second, flags); });
  if (!status) return fail(std::move(status.error()));
  fit_engine(tests, &second.engine);
  return second.engine;
}

Series series_of(const BenchResult& result, const std::string& name, const Record& record) {
  return {.name = name,
          .unit = "tok/s",
          .samples = result.tok_s,
          .bytes = result.bytes_per_token,
          .operations = result.flops_per_token,
          .share_of_limit = result.share_of_limit,
          .workload = workload_of(result.test, record),
          .joules_per_token = result.energy.joules_per_token()};
}

class Versus {
 public:
  Versus(const BenchFlags& o, EnginePair& engines, const MachineLimits& limits, const Flags& flags)
      : o_(o),
        engines_(engines),
        effort_(flags.given("--repetitions") ? PairEffort{.least = o.repetitions}
                                             : PairEffort{kSamplesAtLeast, o.vs_seconds}),
        limits_(limits),
        watch_(engines.a().device(),
               counts_all_energy(engines.a()) && counts_all_energy(engines.b())),
        record_(record_of("bench", engines.a(), limits, flags)) {}

  Status run(const BenchTest& test) {
    auto pair = run_bench_pair(engines_, test, effort_, limits_);
    if (!pair) return fail(std::move(pair.error()));
    const std::string name = test.name(), name_b = name_of_second(name, o_.vs);
    record_.results.push_back(series_of(pair->a, name, record_));
    record_.results.push_back(series_of(pair->b, name_b, record_));
    add_rows(pair->a.kernels, name, engines_.a().self_test(), &record_);
    add_rows(pair->b.kernels, name_b, engines_.b().self_test(), &record_);
    watch_.finish(&record_);
    comparison_.series.push_back({.name = name,
                                  .unit = "tok/s",
                                  .median_a = median(pair->a.tok_s),
                                  .median_b = median(pair->b.tok_s),
                                  .difference = pair->difference});
    num_loads_ += pair->num_loads - 1;
    record_.details = json_text(details());
    return {};
  }

  void set_incomplete(const Error& error) {
    Json json = details();
    json["incomplete"] = error.message();
    record_.details = json_text(json);
  }
  const Record& record() const { return record_; }
  const Comparison& comparison() const { return comparison_; }

 private:
  Json details() const {
    return {{"vs", o_.vs}, {"loads", num_loads_}, {"comparison", to_json(comparison_)}};
  }

  const BenchFlags& o_;
  EnginePair& engines_;
  const PairEffort effort_;
  const MachineLimits& limits_;
  RunWatch watch_;
  Record record_;
  Comparison comparison_;
  int32_t num_loads_ = 1;
};

}  // namespace

int bench_against(BenchFlags& o, const std::vector<BenchTest>& tests, const Flags& flags) {
  auto second = second_options(o, tests);
  if (!second) return usage("bench: --vs: " + second.error().message());
  auto keeper = RecordKeeper::open(o.record);
  if (!keeper) return report(keeper.error());
  auto engines = EnginePair::load(o.engine, *second);
  if (!engines) return report(engines.error());
  auto limits = measure_limits(engines->a().device());
  if (!limits) return report(limits.error());
  Versus versus(o, *engines, *limits, flags);
  for (const BenchTest& test : tests) {
    if (auto status = versus.run(test); !status) {
      versus.set_incomplete(status.error());
      report(status.error());
      return keep_and_exit(*keeper, versus.record(), kExitFailed);
    }
    keeper->keep_so_far(versus.record());
  }
  if (o.json) {
    Json document = to_json(versus.comparison());
    document["vs"] = o.vs;
    document["record"] = moxie::to_json(versus.record());
    print_document(document);
  } else {
    print_limits(*limits);
    print_comparison(versus.comparison(), "as given", "with " + o.vs);
  }
  return keep_and_exit(*keeper, versus.record(), kExitDone);
}

}  // namespace moxie
