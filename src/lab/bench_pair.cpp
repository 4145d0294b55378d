// Samples of one loading are a round: both engines keep their filled depth while they are sampled.
#include "lab/bench_pair.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "lab/bench_rounds.h"
#include "lab/bench_sampler.h"
#include "lab/stats.h"

namespace moxie {
namespace {

// A round takes so many times what loading and warming up took.
constexpr double kRoundPerLoad = 2;

// Looks at growing numbers of samples, since the fewer looks the fewer stop by luck.
class Effort {
 public:
  explicit Effort(const PairEffort& effort)
      : effort_(effort), next_look_(round_up(effort.least, 2)) {}

  // Those are the samples of both sides, as many and even.
  bool is_enough(std::span<const double> a, std::span<const double> b) {
    const auto count = static_cast<int32_t>(a.size());
    if (count < round_up(effort_.least, 2)) return false;
    if (seconds_since(start_) >= effort_.max_seconds) return true;
    if (count < next_look_) return false;
    next_look_ = count + std::max(2, round_up(count / 8, 2));
    return could_show(a, b, kPairResolution);
  }

 private:
  const PairEffort effort_;
  const Clock::time_point start_ = Clock::now();
  int32_t next_look_;
};

struct PairOfRounds {
  BenchRounds a, b;
};

std::vector<double> joined(const std::vector<double>& before, std::span<const double> now) {
  std::vector<double> all = before;
  all.insert(all.end(), now.begin(), now.end());
  return all;
}

// Whether all samples are enough; else the engines should be loaded again.
Result<bool> run_round(EnginePair& engines, const BenchTest& test, const MachineLimits& limits,
                       Effort* effort, PairOfRounds* rounds) {
  const auto start = Clock::now();
  auto of_a = BenchSampler::start(engines.a(), test, limits, energy_counter_of(engines.a()));
  if (!of_a) return fail(std::move(of_a.error()));
  auto of_b = BenchSampler::start(engines.b(), test, limits, energy_counter_of(engines.b()));
  if (!of_b) return fail(std::move(of_b.error()));
  BenchSampler &a = **of_a, &b = **of_b;
  const double most_s = kRoundPerLoad * (engines.load_seconds() + seconds_since(start));
  const auto sampling = Clock::now();
  const BenchSampler* last = nullptr;
  bool is_enough = false;
  while (!is_enough &&
         !(engines.may_reload() && !a.samples().empty() && seconds_since(sampling) >= most_s)) {
    for (BenchSampler* sampler : {&a, &b, &b, &a}) {
      if (sampler != last)
        if (auto status = sampler->settle(); !status) return fail(std::move(status.error()));
      last = sampler;
      if (auto status = sampler->sample(false); !status) return fail(std::move(status.error()));
    }
    is_enough = effort->is_enough(joined(rounds->a.samples(), a.samples()),
                                  joined(rounds->b.samples(), b.samples()));
  }
  rounds->a.add(a.result());
  rounds->b.add(b.result());
  return is_enough;
}

}  // namespace

Result<EnginePair> EnginePair::load(const EngineOptions& a, const EngineOptions& b) {
  EnginePair pair(a, b);
  if (auto status = pair.load_both(); !status) return fail(std::move(status.error()));
  return pair;
}

bool EnginePair::may_reload() const {
  return engines_[0]->device().kind() == DeviceKind::kCpu &&
         engines_[1]->device().kind() == DeviceKind::kCpu;
}

Status EnginePair::reload() {
  free_both();
  first_ = 1 - first_;
  for (EngineOptions& options : options_) options.show_progress = false;
  return load_both();
}

Status EnginePair::load_both() {
  const auto start = Clock::now();
  options_[first_].shared_threads = nullptr;
  auto first = Engine::load(options_[first_]);
  if (!first) return fail(std::move(first.error()));
  engines_[first_] = std::move(*first);
  EngineOptions& of_second = options_[1 - first_];
  if (of_second.threads == options_[first_].threads) {
    auto stream = engines_[first_]->device().make_stream();
    if (!stream) return fail(std::move(stream.error()));
    of_second.shared_threads = (*stream)->pool;  // null on a GPU
  }
  auto second = Engine::load(of_second);
  if (!second) return fail(std::move(second.error()));
  engines_[1 - first_] = std::move(*second);
  load_seconds_ = seconds_since(start);
  return {};
}

// The one that borrows threads before their owner.
void EnginePair::free_both() {
  engines_[1 - first_] = nullptr;
  engines_[first_] = nullptr;
}

Result<BenchPair> run_bench_pair(EnginePair& engines, const BenchTest& test,
                                 const PairEffort& effort, const MachineLimits& limits) {
  Effort sampling(effort);
  PairOfRounds rounds;
  int32_t num_loads = 1;
  for (;; ++num_loads) {
    const auto is_enough = run_round(engines, test, limits, &sampling, &rounds);
    if (!is_enough) return fail(is_enough.error());
    if (*is_enough) break;
    if (auto status = engines.reload(); !status) return fail(std::move(status.error()));
  }
  BenchPair pair{rounds.a.result(), rounds.b.result(), {}, num_loads};
  pair.difference = judge_paired(pair.a.tok_s, pair.b.tok_s, Better::kHigher);
  return pair;
}

}  // namespace moxie
