// The benchmark behind `moxie bench`: prompt processing and token generation as llama-bench counts
// them. Each figure comes with its least bytes, its share of the limit measured in the same run,
// and the kernels that ran.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "lab/energy.h"
#include "lab/machine.h"

namespace moxie {

struct BenchTest {
  int32_t n_prompt = 0, n_gen = 0, depth = 0, streams = 1;
  std::string name() const;  ///< "pp512", "tg32@d2048", "tg32@d2048@b8"
  int32_t context() const { return depth + std::max(n_prompt, n_gen); }
  bool operator==(const BenchTest&) const = default;
};

struct BenchResult {
  BenchTest test;
  std::vector<double> tok_s;  ///< one sample a repetition, all streams together
  double bytes_per_token = 0, flops_per_token = 0;
  /// The machine's read rate measured beside each sample, 1e9 bytes a second.
  std::vector<double> read_gb_s;
  /// Kernels that the host started in a second, beside each sample: on a GPU where tokens are
  /// generated without graphs. Else empty.
  std::vector<double> launches_s;
  std::vector<double> shares;  ///< of the limit: one a sample, each against the limits beside it
  double share_of_limit = 0;   ///< their median
  EnergyUse energy;            ///< of the samples alone
  int32_t num_loads = 0;       ///< of the engine: samples of one loading stand together
  std::vector<KernelChooser::Count> kernels;
  DraftCounts drafts;  ///< of all repetitions, the warm-up included
  std::string tile;    ///< tile of the experts' products and its reason; empty if the row has none
};

/// One test for each n_prompt and each n_gen, at each depth, for each number of streams, in
/// llama-bench's order. Zeros in the first two lists are left out, and so is a test that is there
/// already: a record has each name once.
std::vector<BenchTest> bench_tests(const std::vector<int32_t>& n_prompt,
                                   const std::vector<int32_t>& n_gen,
                                   const std::vector<int32_t>& depth,
                                   const std::vector<int32_t>& streams);

/// Sets the options that an engine needs for these tests: context, sequences, rows of logits.
void fit_engine(const std::vector<BenchTest>& tests, EngineOptions* options);

/// Runs one test `repetitions` times after one warm-up. Tokens are random from a fixed seed. A
/// generated token costs a forward pass and a greedy draw, but the next random token is fed, so
/// that streams do not converge on the same experts. Tokens are generated through the scheduler,
/// like an answer's, on CUDA in the decode loop; for prompts nothing is drawn. With speculation the
/// drawn tokens are fed, since given ones would never be what was drafted. On a CPU the limits
/// are measured again around each repetition that is not very short, since shared machines change;
/// on a GPU without graphs the rate at which the host starts kernels is, where tokens are
/// generated.
Result<BenchResult> run_bench(Engine& engine, const BenchTest& test, int32_t repetitions,
                              const MachineLimits& limits);

}  // namespace moxie
