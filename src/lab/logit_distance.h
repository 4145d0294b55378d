// Distances between rows of logits, in double.
#pragma once

#include <cstdint>

namespace moxie {

/// log(sum(exp(row))).
double log_sum_exp(const float* row, int32_t n);

/// KL(p || q) of the softmaxes of two rows of logits, nats.
double row_kl(const float* p, const float* q, int32_t vocab);

}  // namespace moxie
