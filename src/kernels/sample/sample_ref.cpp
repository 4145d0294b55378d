// The definition of sample in double precision: every logit adjusted, the whole vocabulary sorted,
// each filter a cut of the sorted list, noise added to every remaining id. Slow on purpose.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/sample/sample_math.h"
#include "kernels/sample/sample_rows.h"

namespace moxie {
namespace {

struct Candidate {
  int32_t id;
  float logit;
};

bool comes_first(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

// All ids with a logit above -inf, best first.
std::vector<Candidate> sorted_candidates(const SampleRequest& request, const float* raw,
                                         int32_t vocab) {
  std::vector<float> bias(static_cast<size_t>(vocab), 0.0f);
  std::vector<int32_t> count(static_cast<size_t>(vocab), -1);
  for (int32_t i = 0; i < request.num_bias; ++i) {
    const int32_t id = request.bias_ids[i];
    if (id >= 0 && id < vocab) bias[static_cast<size_t>(id)] = request.bias_values[i];
  }
  for (int32_t i = 0; i < request.num_history; ++i) {
    const int32_t id = request.history_ids[i];
    if (id >= 0 && id < vocab) count[static_cast<size_t>(id)] = request.history_counts[i];
  }
  std::vector<Candidate> candidates;
  for (int32_t id = 0; id < vocab; ++id) {
    if (!allowed(request, id)) continue;
    const auto i = static_cast<size_t>(id);
    const float logit = adjusted_logit(request, raw[id], bias[i], count[i]);
    if (logit > -INFINITY) candidates.push_back({id, logit});
  }
  std::sort(candidates.begin(), candidates.end(), comes_first);
  return candidates;
}

// exp of the distance to the best: proportional to the probability.
double weight(const SampleRequest& request, const Candidate& candidate, const Candidate& best) {
  return std::exp((static_cast<double>(candidate.logit) - best.logit) / request.temperature);
}

void cut_top_p(const SampleRequest& request, std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += weight(request, candidate, candidates[0]);
  double mass = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    mass += weight(request, candidates[i], candidates[0]);
    if (mass >= static_cast<double>(request.top_p) * total) {
      candidates.resize(i + 1);
      return;
    }
  }
}

int32_t draw(const SampleRequest& request, std::vector<Candidate> candidates) {
  if (is_greedy(request)) return candidates[0].id;
  if (request.top_k > 0 && static_cast<size_t>(request.top_k) < candidates.size())
    candidates.resize(static_cast<size_t>(request.top_k));
  if (request.top_p < 1) cut_top_p(request, candidates);
  if (request.min_p > 0) {
    const double least = std::min(1.0, static_cast<double>(request.min_p));
    size_t kept = 1;
    while (kept < candidates.size() && weight(request, candidates[kept], candidates[0]) >= least)
      ++kept;
    candidates.resize(kept);
  }
  int32_t best_id = -1;
  double best_score = -INFINITY;
  for (const Candidate& candidate : candidates) {
    const double score = static_cast<double>(candidate.logit) / request.temperature +
                         gumbel_noise(request.seed, request.step, candidate.id);
    if (score > best_score || (score == best_score && candidate.id < best_id)) {
      best_score = score;
      best_id = candidate.id;
    }
  }
  return best_id;
}

void fill_logprobs(const SampleRequest& request, const float* raw, int32_t vocab,
                   SampleAnswer& answer) {
  std::vector<Candidate> sorted;
  for (int32_t id = 0; id < vocab; ++id) sorted.push_back({id, clean_logit(raw[id])});
  std::sort(sorted.begin(), sorted.end(), comes_first);
  double total = 0;
  for (const Candidate& candidate : sorted)
    total += std::exp(static_cast<double>(candidate.logit) - sorted[0].logit);
  auto logprob = [&](float logit) {
    if (logit == -INFINITY) return -INFINITY;
    return static_cast<float>(static_cast<double>(logit) - sorted[0].logit - std::log(total));
  };
  const int32_t wanted = std::min({request.num_logprobs, kMaxTopLogprobs, vocab});
  for (int32_t i = 0; i < wanted && sorted[static_cast<size_t>(i)].logit > -INFINITY; ++i) {
    answer.top_ids[i] = sorted[static_cast<size_t>(i)].id;
    answer.top_logprobs[i] = logprob(sorted[static_cast<size_t>(i)].logit);
    answer.num_top = i + 1;
  }
  if (answer.token < 0) return;
  const float logit = clean_logit(raw[answer.token]);
  answer.logprob = logprob(logit);
  for (const Candidate& candidate : sorted) answer.rank += candidate.logit > logit;
}

}  // namespace

void sample_reference(const SampleParams& params) {
  for (int32_t row = 0; row < params.num_rows; ++row) {
    const float* raw = params.logits + static_cast<int64_t>(row) * params.vocab;
    const SampleRequest& request = params.requests[row];
    SampleAnswer answer;
    const auto candidates = sorted_candidates(request, raw, params.vocab);
    answer.token =
        candidates.empty() ? lowest_allowed(request, params.vocab) : draw(request, candidates);
    if (request.num_logprobs >= 0) fill_logprobs(request, raw, params.vocab, answer);
    params.answers[row] = answer;
  }
}

}  // namespace moxie
