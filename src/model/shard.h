// Divides a model among ranks: the heads of qkv and out, the experts' columns or the experts, and
// the head's rows. Embedding, norms and router are whole on every rank. A rank's configuration and
// its view of a checkpoint's tensors are those of a smaller model, so that layout, loader and rows
// know nothing of ranks.
#pragma once

#include "model/stored_weights.h"

namespace moxie {

/// The configuration of one rank, with its Share. Heads of keys and values are divided evenly, or
/// each is on as many ranks as it takes; columns go by two MX blocks of 32 where they are even, and
/// the head's rows by tiles of 16, so that ranks may differ by one. Fails, naming the number, where
/// that cannot be done.
Result<GptOssConfig> config_of_rank(const GptOssConfig& whole, const Ranks& ranks, int32_t rank);

/// The parts of stored tensors that a rank's weights are: no others are read. They lie in the files
/// of `whole`, which owns them.
StoredWeights stored_of_rank(const StoredWeights& whole, const GptOssConfig& of_rank);

}  // namespace moxie
