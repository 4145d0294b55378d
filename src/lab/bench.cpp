// The list of tests, and what an engine needs for them.
#include "lab/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/add_once.h"
#include "lab/bench_sampler.h"

namespace moxie {

std::string BenchTest::name() const {
  std::string text = n_prompt > 0 ? fmt::format("pp{}", n_prompt) : fmt::format("tg{}", n_gen);
  if (depth > 0) text += fmt::format("@d{}", depth);
  if (streams > 1) text += fmt::format("@b{}", streams);
  return text;
}

std::vector<BenchTest> bench_tests(const std::vector<int32_t>& n_prompt,
                                   const std::vector<int32_t>& n_gen,
                                   const std::vector<int32_t>& depth,
                                   const std::vector<int32_t>& streams) {
  std::vector<BenchTest> tests;
  const auto add = [&tests](const BenchTest& test) { add_once(tests, test); };
  for (const int32_t d : depth) {
    for (const int32_t b : streams) {
      for (const int32_t p : n_prompt) {
        if (p > 0) add({.n_prompt = p, .depth = d, .streams = b});
      }
      for (const int32_t n : n_gen) {
        if (n > 0) add({.n_gen = n, .depth = d, .streams = b});
      }
    }
  }
  return tests;
}

void fit_engine(const std::vector<BenchTest>& tests, EngineOptions* options) {
  int32_t context = 1, streams = 1;
  for (const BenchTest& test : tests) {
    context = std::max(context, test.context());
    streams = std::max(streams, test.streams);
  }
  if (options->max_model_len == 0) options->max_model_len = context;
  const int32_t rows = streams * (1 + most_drafts(options->speculation));
  options->max_num_seqs = 2 * streams;  // the filled depth, and the forks that run on it
  options->max_logit_rows = rows;
  if (options->max_batch_tokens > 0)
    options->max_batch_tokens = std::max(options->max_batch_tokens, rows);
}

Result<BenchResult> run_bench(Engine& engine, const BenchTest& test, int32_t repetitions,
                              const MachineLimits& limits) {
  auto sampler = BenchSampler::start(engine, test, limits, energy_counter_of(engine));
  if (!sampler) return fail(std::move(sampler.error()));
  for (int32_t r = 0; r < repetitions; ++r) {
    if (auto status = (*sampler)->sample(); !status) return fail(std::move(status.error()));
  }
  return (*sampler)->result();
}

}  // namespace moxie
