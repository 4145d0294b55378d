// The two sides of a self-test: where the rows of a plan run, and where the reference rows do.
#pragma once

#include <optional>
#include <vector>

#include "model/pass.h"
#include "model/self_test.h"

namespace moxie {

/// The tokens of a launch. Positions lie at the border of the window: prompts pass it, and of a
/// single token the first key is out of it.
struct SelfTestTokens {
  std::vector<int32_t> ids, positions, seq_idx, offsets{0}, rows;
  int32_t longest = 0;
  int64_t num_visible_keys = 0;

  SelfTestTokens(const GptOssConfig& config, const SelfTestLaunch& launch);
};

/// Where the rows of a plan run, or the reference rows: weights, activations, cache and inputs of
/// one launch.
struct SelfTestSide {
  Device& device;
  Stream& stream;
  const GptOssConfig& config;
  const ModelWeights& weights;
  bool use_sinks;
  DType activation;
  gemm::Tile tile;
  gemm::TileDevice tile_device;
  uint64_t most_shared = 0;
  int32_t floats_of_x = 1;
  Activations act;
  Buffer act_memory, kv_memory, input_memory, rotary_memory;
  std::vector<KvLayer> kv;
  Rotary rotary;
  Batch batch;
  std::optional<Pass> pass;

  Status make(DType kv_dtype, const KernelChooser& kernels, int32_t max_tokens,
              int32_t most_positions);
  /// The inputs of a launch; all that it writes is NaN at first.
  Status place(const SelfTestTokens& tokens, const std::vector<std::byte>& cache,
               const KvLayer& shape, const std::vector<int32_t>& page_table);

  template <typename T>
  Status write(void* to, const std::vector<T>& values) {
    auto copied = device.copy_from_host(to, values.data(), values.size() * sizeof(T), stream);
    return copied ? stream.synchronize() : copied;
  }
  template <typename T>
  Status read(const void* from, std::vector<T>* values) {
    auto copied = device.copy_to_host(values->data(), from, values->size() * sizeof(T), stream);
    return copied ? stream.synchronize() : copied;
  }
  /// The residual stream in one float a value.
  Status read_x(XForm form, std::vector<float>* x);

 private:
  // Memory of at least so many bytes; what it had may be lost.
  Status hold(uint64_t bytes, Buffer* memory);
  Status make_activations_nan();
};

}  // namespace moxie
