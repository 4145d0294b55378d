// A model of the self-test: a layer of each kind that the real model has, in its formats, with
// sizes small enough for the reference rows and as ragged as the model's, and seeded weights.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"
#include "model/config.h"
#include "model/weights.h"

namespace moxie {

/// How much of the real model's sizes a test model has.
enum class TestSizes : uint8_t {
  kNarrow,  ///< fewer heads, and a fraction of the widths with the same remainders
  kWide     ///< heads and hidden size as they are, for rows that take no others
};

struct SelfTestModel {
  GptOssConfig config;
  std::vector<size_t> kinds;  ///< the real model's layer that each layer stands for
  ModelWeights weights;       ///< on the device
  /// The same values in the CPU's layout, mostly in F32, for the reference rows.
  ModelWeights reference;
};

/// The sizes of a test model.
GptOssConfig self_test_config(const GptOssConfig& config, const std::vector<size_t>& kinds,
                              TestSizes sizes);
/// All that a test model of `config` and `formats` depends on, as text.
std::string self_test_shapes(const GptOssConfig& config, const ModelWeights& formats);

/// Makes the weights on the threads of `pool`, the reference's in memory of `host`. Weights that a
/// model lacks are zeros; in the others nothing is zero or one alike, so that no term of a step can
/// be left out unseen: rows of the router are equal in pairs, so that choices have ties, and sinks
/// have a good part of attention.
Result<SelfTestModel> make_self_test_model(const GptOssConfig& config, const ModelWeights& formats,
                                           TestSizes sizes, Device& device, Stream& stream,
                                           Device& host, ThreadPool& pool);

}  // namespace moxie
