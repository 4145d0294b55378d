// The list of tests, what an engine needs for them, and their figures.
#include "lab/bench.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/experts/experts.h"
#include "kernels/gemm/tile_model.h"
#include "lab/bench_runner.h"
#include "lab/limits_beside.h"
#include "lab/stats.h"

namespace moxie {
namespace {

bool takes_tile(const std::string& name) {
  static const std::vector<RowInfo> rows = all_rows();
  return std::any_of(rows.begin(), rows.end(),
                     [&](const RowInfo& row) { return row.takes_tile && row.name == name; });
}

// The tile of the experts' products in the test's largest launch.
std::string tile_of(Engine& engine, const BenchTest& test) {
  const auto counts = engine.kernels().counts();
  if (std::none_of(counts.begin(), counts.end(),
                   [](const auto& count) { return takes_tile(count.name); })) {
    return {};
  }
  const int32_t forced = engine.kernels().tile_columns();
  if (forced != 0) return gemm::tile_name(forced) + ", forced";
  const GptOssConfig& c = engine.config();
  const int32_t tokens =
      test.n_prompt > 0 ? std::min(test.n_prompt, engine.options().max_batch_tokens) : test.streams;
  const auto choice = gemm::choose_tile(gemm::mean_pairs(tokens, c.top_k, c.num_experts),
                                        engine.kernels().choice().batch_invariant());
  return gemm::tile_name(choice.columns) + ", " + choice.reason;
}

}  // namespace

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
  for (const int32_t d : depth) {
    for (const int32_t b : streams) {
      for (const int32_t p : n_prompt) {
        if (p > 0) tests.push_back({.n_prompt = p, .depth = d, .streams = b});
      }
      for (const int32_t n : n_gen) {
        if (n > 0) tests.push_back({.n_gen = n, .depth = d, .streams = b});
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
  auto speculation = make_speculation(engine);
  if (!speculation) return fail(std::move(speculation.error()));
  BenchRunner runner(engine, test, speculation->drafting);
  if (auto status = runner.fill_depth(); !status) return fail(std::move(status.error()));
  auto warm = runner.repeat();
  if (!warm) return fail(std::move(warm.error()));
  LimitsBeside beside(engine.device(), limits);
  if (auto first = beside.of(warm->seconds()); !first) return fail(std::move(first.error()));
  engine.kernels().reset_counts();
  BenchResult result{.test = test};
  const double tokens = tokens_of(test);
  std::vector<MachineLimits> of_samples;
  for (int32_t r = 0; r < repetitions; ++r) {
    auto window = runner.repeat();
    if (!window) return fail(std::move(window.error()));
    result.tok_s.push_back(tokens / window->seconds());
    auto limits_now = beside.of(window->seconds());
    if (!limits_now) return fail(std::move(limits_now.error()));
    result.read_gb_s.push_back(limits_now->read_gb_s);
    of_samples.push_back(std::move(*limits_now));
  }
  result.kernels = engine.kernels().counts();
  result.drafts = runner.drafts();
  result.tile = tile_of(engine, test);
  const WorkByOp works = least_work(engine, test);
  const Peak& peak = best_peak(limits);
  Work work;
  double flops_at_peak = 0;  // converted to operations at the best peak that take as long
  for (const auto& [op, of_op] : works) {
    work += of_op;
    const double rate = peak_of_row(limits, row_of(result.kernels, *op)).rate;
    flops_at_peak += rate > 0 ? of_op.flops * peak.rate / rate : of_op.flops;
  }
  result.bytes_per_token = work.bytes / tokens;
  result.flops_per_token = work.flops / tokens;
  std::vector<double> shares;
  for (size_t i = 0; i < of_samples.size(); ++i) {
    shares.push_back(share_of_limit(of_samples[i], best_peak(of_samples[i]), work.bytes,
                                    flops_at_peak, tokens / result.tok_s[i]));
  }
  result.share_of_limit = median(shares);
  return result;
}

}  // namespace moxie
