// Checks of a request that need no state of the service.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>

#include "engine/request.h"

namespace moxie {
namespace {

Status check_ids(std::span<const int32_t> ids, int32_t vocab, const char* where) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      return fail(fmt::format("token id {}, vocabulary of {}", id, vocab), where);
    }
  }
  return {};
}

Status check_range(double value, double least, double most, const char* where) {
  if (value >= least && value <= most) return {};
  return fail(fmt::format("{}, not from {} to {}", value, least, most), where);
}

Status check_sampling(const SamplingOptions& sampling, int32_t vocab) {
  constexpr double kMost = std::numeric_limits<float>::max();
  constexpr int32_t kMostInt = std::numeric_limits<int32_t>::max();
  const std::array checks = {
      check_range(sampling.temperature, 0, kMost, "temperature"),
      check_range(sampling.top_p, 0, 1, "top_p"),
      check_range(sampling.min_p, 0, 1, "min_p"),
      check_range(sampling.top_k, -1, kMostInt, "top_k"),
      check_range(sampling.repetition_penalty, std::numeric_limits<float>::min(), kMost,
                  "repetition_penalty"),
      check_range(sampling.frequency_penalty, -kMost, kMost, "frequency_penalty"),
      check_range(sampling.presence_penalty, -kMost, kMost, "presence_penalty"),
      check_range(sampling.num_logprobs, -1, kMaxTopLogprobs, "logprobs"),
      check_range(sampling.max_tokens, 0, kMostInt, "max_tokens"),
      check_range(sampling.min_tokens, 0, sampling.max_tokens > 0 ? sampling.max_tokens : kMostInt,
                  "min_tokens"),
      check_ids(sampling.allowed_ids, vocab, "allowed_token_ids"),
  };
  for (const Status& status : checks) {
    if (!status) return status;
  }
  for (const auto& [id, value] : sampling.logit_bias) {
    if (auto status = check_ids({&id, 1}, vocab, "logit_bias"); !status) return status;
    if (std::isnan(value)) return fail("not a number", "logit_bias");
  }
  return {};
}

}  // namespace

Status check_request(const ServiceRequest& request, int32_t vocab) {
  if (request.prompt.empty()) return fail("no tokens", "prompt", "give at least one");
  if (auto status = check_ids(request.prompt, vocab, "prompt"); !status) return status;
  if (request.constraint != nullptr && request.sampling.ignore_eos) {
    return fail("an answer that is bound must be free to end", "ignore_eos", "leave it out");
  }
  if (auto status = check_ids(request.given, vocab, "given"); !status) return status;
  if (auto status = check_range(request.prompt_logprobs, -1, kMaxTopLogprobs, "prompt_logprobs");
      !status) {
    return status;
  }
  return check_sampling(request.sampling, vocab);
}

Status check_length(int64_t num_prompt, int32_t max_model_len) {
  if (num_prompt < max_model_len) return {};
  return fail(fmt::format("{} tokens, where {} fit", num_prompt, max_model_len - 1), "prompt",
              "a shorter prompt, or a greater --max-model-len");
}

}  // namespace moxie
