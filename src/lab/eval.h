// Runs sets of questions at several efforts, and sums up the answers. Where the answers come from
// is the caller's: an engine in this process, or an endpoint.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/eval_samples.h"
#include "lab/eval_set.h"
#include "lab/proportions.h"

namespace moxie {

struct EvalOptions {
  std::vector<std::string> efforts = {"low", "medium", "high"};
  std::string variant;  ///< names the switches that the model runs with; empty: as given
  int32_t max_tokens = 0;
  float temperature = 0, top_p = 1;
  uint64_t seed = 0;  ///< of question i: seed + i
  int32_t concurrency = 1;
};

/// The body of a chat completion without "model": what is asked of an engine or an endpoint.
std::string eval_request(const EvalOptions& options, const EvalQuestion& question, size_t idx,
                         const std::string& effort);

/// Answers one request; called from several threads at once. A fault ends the run.
using Ask = std::function<Result<EvalReply>(const std::string& request)>;
/// After each answer, from any thread but one at a time.
using OnEvalProgress = std::function<void(size_t num_done, size_t num_asked, size_t num_right)>;

/// Asks every question at every effort, `concurrency` at once, but for those whose answers
/// `samples` has; new ones are added there. Once `stop` is true no more are asked, and the run
/// fails with "interrupted". Returns a judged sample for each question and effort, in their order.
Result<std::vector<EvalSample>> run_eval(const std::vector<EvalQuestion>& questions,
                                         const EvalOptions& options, const Ask& ask,
                                         EvalSamples* samples, const std::atomic<bool>& stop,
                                         const OnEvalProgress& on_progress = {});

/// Counts of one task, or of all (an empty task), at one effort.
struct EvalCounts {
  std::string task, effort;
  int64_t total = 0, right = 0, invalid = 0;
  int64_t prompt_tokens = 0, completion_tokens = 0;

  double accuracy() const { return total > 0 ? static_cast<double>(right) / total : 0; }
  Interval interval() const { return wilson_interval(right, total); }
};
/// By task and effort, in the order of their first samples; then each effort's sum over all tasks,
/// if there are several tasks.
std::vector<EvalCounts> count_samples(const std::vector<EvalSample>& samples);

/// How the same questions at the same efforts were answered by `a` and by `b`.
PairedCounts pair_samples(const std::vector<EvalSample>& a, const std::vector<EvalSample>& b);

nlohmann::ordered_json to_json(const EvalCounts& counts);

}  // namespace moxie
