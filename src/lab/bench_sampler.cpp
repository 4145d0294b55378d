// Samples of a test, and the figures of all of them together.
#include "lab/bench_sampler.h"

#include <algorithm>

#include "kernels/experts/experts.h"
#include "kernels/gemm/mma_tiles.h"
#include "lab/stats.h"

namespace moxie {
namespace {

// Rows of a row's tiles; 0: it takes none.
int32_t tile_rows_of(const std::string& name) {
  static const std::vector<RowInfo> rows = all_rows();
  const auto at = std::ranges::find(rows, name, &RowInfo::name);
  return at == rows.end() ? 0 : at->tile_rows;
}

// Whether the host starts each kernel of each token: then it may bound the test.
bool starts_each_kernel(Engine& engine, const BenchTest& test) {
  return test.n_prompt == 0 && !engine.decode_loop().uses_graphs();
}

// The tile of the experts' products in the test's largest launch.
std::string tile_of(Engine& engine, const BenchTest& test) {
  const auto counts = engine.kernels().counts();
  int32_t tile_rows = 0;
  for (const auto& count : counts) tile_rows = std::max(tile_rows, tile_rows_of(count.name));
  if (tile_rows == 0) return {};
  const gemm::Tile forced = engine.kernels().tile();
  if (forced.columns != 0) return gemm::tile_name(forced) + ", forced";
  const GptOssConfig& c = engine.config();
  const int32_t tokens =
      test.n_prompt > 0 ? std::min(test.n_prompt, engine.options().max_batch_tokens) : test.streams;
  const int32_t seqs = test.n_prompt > 0 ? 1 : test.streams;
  if (const auto plan =
          engine.model().plan_for(bracket_of(tokens, seqs, seqs), engine.kv_dtype())) {
    for (const auto& chain : (*plan)->chains)
      for (const PlannedRow& row : chain)
        if (row.tile_columns != 0) return gemm::tile_name(row.tile()) + ", as tuned";
  }
  const auto choice = gemm::choose_tile_of(
      tile_rows, gemm::mean_pairs(tokens, c.top_k, c.num_experts),
      engine.kernels().choice().batch_invariant(), tile_device_of(engine.kernels().rates()));
  return gemm::tile_name({tile_rows, choice.columns}) + ", " + choice.reason;
}

}  // namespace

BenchSampler::BenchSampler(Engine& engine, const BenchTest& test, const MachineLimits& limits,
                           Speculation speculation, EnergyCounter energy)
    : engine_(engine),
      limits_(limits),
      speculation_(std::move(speculation)),
      runner_(engine, test, speculation_.drafting),
      beside_(engine.device(), limits, starts_each_kernel(engine, test)),
      energy_(std::move(energy)),
      result_{.test = test} {}

Result<std::unique_ptr<BenchSampler>> BenchSampler::start(Engine& engine, const BenchTest& test,
                                                          const MachineLimits& limits,
                                                          EnergyCounter energy) {
  auto speculation = make_speculation(engine);
  if (!speculation) return fail(std::move(speculation.error()));
  std::unique_ptr<BenchSampler> sampler(
      new BenchSampler(engine, test, limits, std::move(*speculation), std::move(energy)));
  if (auto status = sampler->warm_up(); !status) return fail(std::move(status.error()));
  return sampler;
}

Status BenchSampler::warm_up() {
  if (auto status = runner_.fill_depth(); !status) return status;
  auto warm = runner_.repeat();
  if (!warm) return fail(std::move(warm.error()));
  if (auto first = beside_.of(warm->seconds()); !first) return fail(std::move(first.error()));
  engine_.kernels().reset_counts();
  return {};
}

Status BenchSampler::settle() {
  constexpr double kColdShowsBelowS = 0.2;
  if (last_s_ >= kColdShowsBelowS) return {};
  auto window = runner_.repeat();
  return window ? Status() : fail(std::move(window.error()));
}

Status BenchSampler::sample(bool with_limits) {
  energy_.begin();
  auto window = runner_.repeat();
  if (!window) return fail(std::move(window.error()));
  energy_.end(tokens_of(result_.test));
  last_s_ = window->seconds();
  result_.tok_s.push_back(tokens_of(result_.test) / window->seconds());
  auto limits_now = with_limits ? beside_.of(window->seconds()) : Result<MachineLimits>(limits_);
  if (!limits_now) return fail(std::move(limits_now.error()));
  if (with_limits) {
    result_.read_gb_s.push_back(limits_now->read_gb_s);
    if (limits_now->launches_s > 0) result_.launches_s.push_back(limits_now->launches_s);
  }
  of_samples_.push_back(std::move(*limits_now));
  return {};
}

BenchResult BenchSampler::result() {
  BenchResult result = result_;
  const double tokens = tokens_of(result.test);
  result.kernels = engine_.kernels().counts();
  result.drafts = runner_.drafts();
  result.tile = tile_of(engine_, result.test);
  const WorkByOp works = least_work(engine_, result.test);
  const Peak& peak = best_peak(limits_);
  Work work;
  double flops_at_peak = 0;  // converted to operations at the best peak that take as long
  for (const auto& [op, of_op] : works) {
    work += of_op;
    const double rate = peak_of_row(limits_, row_of(result.kernels, *op)).rate;
    flops_at_peak += rate > 0 ? of_op.flops * peak.rate / rate : of_op.flops;
  }
  result.bytes_per_token = work.bytes / tokens;
  result.flops_per_token = work.flops / tokens;
  for (size_t i = 0; i < of_samples_.size(); ++i) {
    result.shares.push_back(share_of_limit(of_samples_[i], best_peak(of_samples_[i]), work.bytes,
                                           flops_at_peak, tokens / result.tok_s[i]));
  }
  result.share_of_limit = median(result.shares);
  result.energy = energy_.use();
  result.num_loads = 1;
  return result;
}

}  // namespace moxie
