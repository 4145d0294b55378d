// Both engines keep their filled depth while they are sampled in turn.
#include "lab/bench_pair.h"

#include <algorithm>
#include <utility>

#include "core/clock.h"
#include "lab/bench_sampler.h"

namespace moxie {
namespace {

// Looks at growing numbers of samples, since the fewer looks the fewer stop by luck.
class Effort {
 public:
  explicit Effort(const PairEffort& effort)
      : effort_(effort), next_look_(round_up(effort.least, 2)) {}

  // `count` samples were taken of each side; those are asked for at a look only.
  template <typename Samples>
  bool is_enough(int32_t count, const Samples& samples_of) {
    if (count < round_up(effort_.least, 2) || count % 2 != 0) return false;
    if (seconds_since(start_) >= effort_.max_seconds) return true;
    if (count < next_look_) return false;
    next_look_ = count + std::max(2, round_up(count / 8, 2));
    const auto [a, b] = samples_of();
    return could_show(a, b, kPairResolution);
  }

 private:
  const PairEffort effort_;
  const Clock::time_point start_ = Clock::now();
  int32_t next_look_;
};

}  // namespace

Result<BenchPair> run_bench_pair(Engine& a, Engine& b, const BenchTest& test,
                                 const PairEffort& effort, const MachineLimits& limits) {
  auto of_a = BenchSampler::start(a, test, limits);
  if (!of_a) return fail(std::move(of_a.error()));
  auto of_b = BenchSampler::start(b, test, limits);
  if (!of_b) return fail(std::move(of_b.error()));
  Effort sampling(effort);
  const auto samples = [&] { return std::pair((*of_a)->samples(), (*of_b)->samples()); };
  const BenchSampler* last = nullptr;
  for (int32_t r = 0; !sampling.is_enough(r, samples); ++r) {
    const bool a_is_first = r % 2 == 0;
    for (BenchSampler* sampler :
         {a_is_first ? of_a->get() : of_b->get(), a_is_first ? of_b->get() : of_a->get()}) {
      if (sampler != last)
        if (auto status = sampler->settle(); !status) return fail(std::move(status.error()));
      last = sampler;
      if (auto status = sampler->sample(false); !status) return fail(std::move(status.error()));
    }
  }
  BenchPair pair{(*of_a)->result(), (*of_b)->result(), {}};
  pair.difference = judge_paired(pair.a.tok_s, pair.b.tok_s, Better::kHigher);
  return pair;
}

}  // namespace moxie
