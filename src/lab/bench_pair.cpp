// Both engines keep their filled depth while they are sampled in turn.
#include "lab/bench_pair.h"

#include "lab/bench_sampler.h"

namespace moxie {

Result<BenchPair> run_bench_pair(Engine& a, Engine& b, const BenchTest& test, int32_t repetitions,
                                 const MachineLimits& limits) {
  auto of_a = BenchSampler::start(a, test, limits);
  if (!of_a) return fail(std::move(of_a.error()));
  auto of_b = BenchSampler::start(b, test, limits);
  if (!of_b) return fail(std::move(of_b.error()));
  for (int32_t r = 0; r < round_up(repetitions, 2); ++r) {
    const bool a_is_first = r % 2 == 0;
    for (BenchSampler* sampler :
         {a_is_first ? of_a->get() : of_b->get(), a_is_first ? of_b->get() : of_a->get()}) {
      if (auto status = sampler->sample(false); !status) return fail(std::move(status.error()));
    }
  }
  BenchPair pair{(*of_a)->result(), (*of_b)->result(), {}};
  pair.difference = judge_paired(pair.a.tok_s, pair.b.tok_s, Better::kHigher);
  return pair;
}

}  // namespace moxie
