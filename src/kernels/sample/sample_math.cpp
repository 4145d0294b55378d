// Bias, penalties and noise, one id at a time.
#include "kernels/sample/sample_math.h"

#include <cfloat>
#include <cmath>

#include "kernels/sample/philox.h"

namespace moxie {

double gumbel_noise(uint64_t seed, uint64_t step, int32_t id) {
  const double u = (sample_word(seed, step, id) + 0.5) * 0x1p-32;
  return -std::log(-std::log(u));
}

float clean_logit(float raw) {
  if (std::isnan(raw)) return -INFINITY;
  if (raw > FLT_MAX) return FLT_MAX;
  return std::fabs(raw) < FLT_MIN ? 0.0f : raw;
}

float adjusted_logit(const SampleRequest& request, float raw, float bias, int32_t count) {
  double value = clean_logit(raw);
  if (value == -INFINITY) return -INFINITY;
  value += bias;
  if (count >= 0 && request.repetition_penalty > 0) {
    const double penalty = request.repetition_penalty;
    value = value > 0 ? value / penalty : value * penalty;
  }
  if (count > 0) {
    value -= static_cast<double>(request.frequency_penalty) * count;
    value -= request.presence_penalty;
  }
  return clean_logit(static_cast<float>(value));
}

int32_t lowest_allowed(const SampleRequest& request, int32_t vocab) {
  for (int32_t id = 0; id < vocab; ++id) {
    if (allowed(request, id)) return id;
  }
  return -1;
}

}  // namespace moxie
