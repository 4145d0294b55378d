// Samples are spread evenly over the rounds.
#include "lab/bench_rounds.h"

#include <algorithm>

#include "core/clock.h"
#include "lab/bench_sampler.h"
#include "lab/stats.h"

namespace moxie {
namespace {

// Places in memory that a test sees at most, and what seeing them may take.
constexpr int32_t kMostRounds = 8;
constexpr double kMostLoadingS = 3;

// `seconds`: what a round takes before its first sample.
int32_t num_rounds(const BenchEngine& engine, double seconds, int32_t repetitions) {
  if (!engine.may_reload()) return 1;
  const auto affordable = 1 + static_cast<int32_t>(kMostLoadingS / std::max(seconds, 1e-3));
  return std::clamp(affordable, 1, std::min(kMostRounds, repetitions));
}

void add_launches(const KernelChooser::Count& count, std::vector<KernelChooser::Count>* counts) {
  const auto known = std::ranges::find_if(
      *counts, [&](const auto& one) { return one.op == count.op && one.name == count.name; });
  if (known == counts->end())
    counts->push_back(count);
  else
    known->launches += count.launches;
}

}  // namespace

Result<BenchEngine> BenchEngine::load(const EngineOptions& options) {
  BenchEngine engine(options);
  if (auto status = engine.reload(); !status) return fail(std::move(status.error()));
  engine.options_.show_progress = false;
  return engine;
}

Status BenchEngine::reload() {
  engine_ = nullptr;
  const auto start = Clock::now();
  auto loaded = Engine::load(options_);
  if (!loaded) return fail(std::move(loaded.error()));
  engine_ = std::move(*loaded);
  load_seconds_ = seconds_since(start);
  return {};
}

void BenchRounds::add(const BenchResult& round) {
  if (all_.num_loads == 0) {
    all_ = round;
    return;
  }
  const auto append = [](const std::vector<double>& from, std::vector<double>* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  append(round.tok_s, &all_.tok_s);
  append(round.read_gb_s, &all_.read_gb_s);
  append(round.launches_s, &all_.launches_s);
  append(round.shares, &all_.shares);
  all_.share_of_limit = median(all_.shares);
  all_.energy.add(round.energy);
  all_.drafts.add(round.drafts);
  all_.num_loads += round.num_loads;
  for (const auto& count : round.kernels) add_launches(count, &all_.kernels);
}

Result<BenchResult> run_bench_in_rounds(BenchEngine& engine, const BenchTest& test,
                                        int32_t repetitions, const MachineLimits& limits) {
  BenchRounds all;
  int32_t rounds = 1;
  for (int32_t round = 0; round < rounds; ++round) {
    if (round > 0)
      if (auto status = engine.reload(); !status) return fail(std::move(status.error()));
    const auto start = Clock::now();
    auto sampler = BenchSampler::start(*engine, test, limits, energy_counter_of(*engine));
    if (!sampler) return fail(std::move(sampler.error()));
    if (round == 0)
      rounds = num_rounds(engine, engine.load_seconds() + seconds_since(start), repetitions);
    const int32_t first = repetitions * round / rounds, end = repetitions * (round + 1) / rounds;
    for (int32_t r = first; r < end; ++r) {
      if (auto status = (*sampler)->sample(); !status) return fail(std::move(status.error()));
    }
    all.add((*sampler)->result());
  }
  return all.result();
}

}  // namespace moxie
