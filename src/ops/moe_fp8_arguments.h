// Arguments of moe_fp8_block_scale as TVM-FFI hands them over, and what they must be.
//
// The order is that of the public definition: inputs, then the output, which the caller made
// (destination passing).
#pragma once

#include <tvm/ffi/container/tensor.h>

#include "core/base.h"
#include "kernels/moe_fp8/moe_fp8.h"

namespace moxie {

struct MoeFp8Arguments {
  tvm::ffi::TensorView routing_logits;       // [tokens, experts] F32
  tvm::ffi::TensorView routing_bias;         // [experts] BF16
  tvm::ffi::TensorView hidden_states;        // [tokens, hidden] E4M3
  tvm::ffi::TensorView hidden_states_scale;  // [hidden / 128, tokens] F32
  tvm::ffi::TensorView gemm1_weights;        // [local, 2 intermediate, hidden] E4M3
  tvm::ffi::TensorView gemm1_weights_scale;  // [local, 2 intermediate / 128, hidden / 128] F32
  tvm::ffi::TensorView gemm2_weights;        // [local, hidden, intermediate] E4M3
  tvm::ffi::TensorView gemm2_weights_scale;  // [local, hidden / 128, intermediate / 128] F32
  int64_t local_expert_offset;
  double routed_scaling_factor;
  tvm::ffi::TensorView output;  // [tokens, hidden] BF16
  int64_t top_k = 8, num_groups = 8, kept_groups = 4;
};

/// Params with pointers into the tensors, or the first thing that is wrong: type, shape, device,
/// strides, alignment, range. Tensors of unsigned integers of the same size may hold the bits of
/// E4M3 and BF16, for those who have no such types.
Result<MoeFp8Params> moe_fp8_params(const MoeFp8Arguments& arguments);

}  // namespace moxie
