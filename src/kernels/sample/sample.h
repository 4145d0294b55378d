// sample: one token from each row of logits.
//
// In this order: allowed-token mask, logit bias, repetition, frequency and presence penalties,
// temperature, top-k, top-p, min-p, draw. Temperature 0 is greedy: the greatest logit, ties to the
// lower id. The draw is Gumbel-max: argmax of logit / temperature + gumbel(seed, step, id), where
// the noise of an id depends on nothing else, so that rows, batches and devices agree.
// Log-probabilities are of the raw logits, before all of the above (as vLLM reports them).
//
// Exactly, so that every row draws the same token: a changed logit is computed in double and
// rounded to F32 once; NaN and masked ids are -inf and never drawn, +inf counts as the greatest
// float, subnormals as 0. Ids are ordered by (falling logit, rising id); top-k, top-p and min-p
// each keep a prefix of that order, and at least one id. If no id is left, the token is the lowest
// allowed id, or -1 if the mask allows none.
#pragma once

#include "core/rank_link.h"
#include "kernels/registry.h"

namespace moxie {

inline constexpr int32_t kMaxTopLogprobs = 20;

/// Temperatures below this (negative ones and NaN too) are greedy.
inline constexpr float kGreedyTemperature = 1e-5f;

/// The parameters of one row of logits. Plain data; arrays are in the device's memory.
struct SampleRequest {
  float temperature = 0;         // 0: greedy
  int32_t top_k = 0;             // 0: all
  float top_p = 1;               // 1: all
  float min_p = 0;               // 0: all; relative to the greatest probability
  float repetition_penalty = 1;  // over prompt and output: logit > 0 divided, else multiplied
  float frequency_penalty = 0;   // times the count in the output
  float presence_penalty = 0;    // once, if in the output
  int32_t num_logprobs = -1;     // -1: none, 0: of the token only, n: also of the n best
  uint64_t seed = 0;
  uint64_t step = 0;                        // tokens drawn before this one with this seed
  const int32_t* history_ids = nullptr;     // [num_history] distinct ids of prompt and output
  const int32_t* history_counts = nullptr;  // [num_history] times each is in the output (0: prompt)
  int32_t num_history = 0;
  const int32_t* bias_ids = nullptr;  // [num_bias]
  const float* bias_values = nullptr;
  int32_t num_bias = 0;
  const uint32_t* allowed_mask = nullptr;  // bit i of word i / 32: id i may be drawn; null: all
};

struct SampleAnswer {
  int32_t token = -1;
  float logprob = 0;  // of the token, if asked for
  int32_t rank = 0;   // tokens with a greater raw logit
  int32_t num_top = 0;
  int32_t top_ids[kMaxTopLogprobs] = {};  // by falling raw logit
  float top_logprobs[kMaxTopLogprobs] = {};
};

struct AdvanceParams;

struct SampleParams {
  Launch launch;
  int32_t num_rows = 0, vocab = 0;
  const float* logits = nullptr;            // [rows, vocab]
  const SampleRequest* requests = nullptr;  // [rows]
  SampleAnswer* answers = nullptr;          // [rows], written
  /// The caller, who knows the requests, guarantees is_plain() for every row of logits: a CUDA
  /// launch cannot check it. False is always right.
  bool all_plain = false;
  /// Of ranks: `logits` are [rows, part_width], those of this rank's ids, which begin with
  /// first_id. Every rank gets the answers, but none after a fault, which the link keeps.
  LinkKind kind = LinkKind::kNone;
  RankLink* link = nullptr;
  int32_t first_id = 0, part_width = 0;
  /// Of the decode loop: the row moves the streams to their next launch once it has drawn
  /// (kernels/sample/advance.h). Null: it only draws.
  const AdvanceParams* advance = nullptr;
};

/// Whether a request needs only the greatest logit, or only a draw by temperature.
inline bool is_plain(const SampleRequest& r) {
  return r.num_logprobs < 0 && r.num_history == 0 && r.num_bias == 0 && r.allowed_mask == nullptr &&
         r.top_k <= 0 && !(r.top_p < 1) && !(r.min_p > 0);
}

template <>
struct Op<SampleParams> {
  static constexpr OpInfo info{"sample"};
  static std::span<const Row<SampleParams>> rows();
  static Work work(const SampleParams& params);
};

/// The noise of one id: -log(-log(u)), u = (w + 0.5) / 2^32 in (0, 1), w the first word of
/// Philox4x32-10 (Salmon et al. 2011) with key = seed and counter = (id, step low, step high, 0).
double gumbel_noise(uint64_t seed, uint64_t step, int32_t id);

}  // namespace moxie
