// The inputs of moe_fp8_block_scale outside of a model: tensors under the names of the public
// definition moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048, from a file, from a
// trace's workload or from a seed.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/threads.h"
#include "kernels/moe_fp8/moe_fp8.h"
#include "weights/safetensors.h"

namespace moxie {

/// A tensor to be looked up by name; its bytes are borrowed.
struct OpTensor {
  std::string name;
  std::string dtype;  ///< as safetensors names it: "F32", "F8_E4M3"
  Shape shape;        ///< a scalar has rank 0, or one element
  const std::byte* data = nullptr;
};

/// The tensors in the definition's order; the names of what each shape gives.
const std::vector<std::string>& moe_fp8_input_names();

/// Inputs of a launch, with memory for its output. Params point into it.
class MoeFp8Inputs {
 public:
  /// Every extent comes from the shapes. Fails on a missing or unknown tensor, a wrong dtype or
  /// shape, and extents that no row takes. The tensors must outlive the result. Three scalars may
  /// be absent: `top_k` (8), `n_group` (8) and `topk_group` (4).
  static Result<MoeFp8Inputs> from(const std::vector<OpTensor>& tensors, const std::string& where);
  /// The tensors of a safetensors file.
  static Result<MoeFp8Inputs> open(const std::string& path);

  MoeFp8Inputs(MoeFp8Inputs&&) noexcept = default;  // a copy's pointers would not be its own
  MoeFp8Inputs& operator=(MoeFp8Inputs&&) noexcept = default;

  /// The same with these tokens alone, each an index below num_tokens. A token's output does not
  /// depend on the others. The weights are borrowed as before.
  MoeFp8Inputs only(std::span<const int32_t> tokens) const;

  const MoeFp8Params& params() const { return params_; }
  uint16_t* output() { return output_.data(); }
  const std::vector<uint16_t>& output_values() const { return output_; }

 private:
  MoeFp8Inputs() = default;
  void point_at_own();

  MoeFp8Params params_;
  std::vector<std::vector<float>> floats_;  // aligned copies: a file's tensors may lie anywhere
  std::vector<uint16_t> bias_, output_;
  std::vector<uint8_t> hidden_states_;  // of only()
  std::shared_ptr<SafetensorsFile> file_;
};

/// `count` of `num_tokens` tokens, drawn from the seed, in ascending order; all if there are no
/// more.
std::vector<int32_t> sample_tokens(int32_t num_tokens, int32_t count, uint64_t seed);

/// Fills tensors as the definition's workloads have them: E4M3 from normal values clamped to +-2,
/// floats from normal values of either sign. The same seed gives the same bytes for any number of
/// threads.
class RandomTensors {
 public:
  explicit RandomTensors(ThreadPool& pool) : pool_(pool) {}
  void fill_codes(uint8_t* to, int64_t count, uint64_t seed);
  void fill_normal(float* to, int64_t count, uint64_t seed);

 private:
  ThreadPool& pool_;
  std::vector<uint8_t> codes_;  // of 65536 normal values
};

/// Memory of random inputs and the tensors that point at it.
struct RandomMoeFp8 {
  std::vector<std::unique_ptr<std::byte[]>> memory;
  std::vector<OpTensor> tensors;
};
/// `sizes` gives the extents, the offset and the factor; null pointers.
RandomMoeFp8 random_moe_fp8(const MoeFp8Params& sizes, uint64_t seed, ThreadPool& pool);

}  // namespace moxie
