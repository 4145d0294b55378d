// The functions that libmoxie_ops.so exports by TVM-FFI's convention; python/moxie_ops calls them.
//
// A fault becomes an exception here and nowhere else: ValueError for an argument, RuntimeError for
// what the device or its memory says.
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include <nlohmann/json.hpp>

#include "ops/moe_fp8_arguments.h"
#include "ops/moe_fp8_run.h"

namespace moxie {
namespace {

using tvm::ffi::String;
using tvm::ffi::TensorView;

void run(const MoeFp8Arguments& arguments, const std::string& row) {
  const auto params = moe_fp8_params(arguments);
  if (!params) TVM_FFI_THROW(ValueError) << params.error().message();
  const auto ran = run_moe_fp8(*params, arguments.routing_logits.device(), row);
  if (!ran) TVM_FFI_THROW(RuntimeError) << ran.error().message();
}

void moe_fp8_block_scale(TensorView routing_logits, TensorView routing_bias,
                         TensorView hidden_states, TensorView hidden_states_scale,
                         TensorView gemm1_weights, TensorView gemm1_weights_scale,
                         TensorView gemm2_weights, TensorView gemm2_weights_scale,
                         int64_t local_expert_offset, double routed_scaling_factor,
                         TensorView output) {
  run({routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights,
       gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local_expert_offset,
       routed_scaling_factor, output},
      "");
}

// Also with a row's name ("": the cheapest) and the numbers that the definition fixes.
void moe_fp8_block_scale_by(TensorView routing_logits, TensorView routing_bias,
                            TensorView hidden_states, TensorView hidden_states_scale,
                            TensorView gemm1_weights, TensorView gemm1_weights_scale,
                            TensorView gemm2_weights, TensorView gemm2_weights_scale,
                            int64_t local_expert_offset, double routed_scaling_factor,
                            TensorView output, const String& row, int64_t top_k, int64_t n_group,
                            int64_t topk_group) {
  run({routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights,
       gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local_expert_offset,
       routed_scaling_factor, output, top_k, n_group, topk_group},
      std::string(row));
}

// The rows of a device as JSON; type and index are DLPack's.
String moe_fp8_block_scale_rows(int64_t device_type, int64_t device_id) {
  const auto rows =
      moe_fp8_rows({static_cast<DLDeviceType>(device_type), static_cast<int32_t>(device_id)});
  if (!rows) TVM_FFI_THROW(RuntimeError) << rows.error().message();
  auto list = nlohmann::ordered_json::array();
  for (const MoeFp8RowState& state : *rows) {
    list.push_back({{"name", state.row->name},
                    {"runs", state.why_not.empty()},
                    {"why_not", state.why_not},
                    {"supports", state.row->supports},
                    {"limits", state.row->limits}});
  }
  return list.dump();
}

String version() { return MOXIE_VERSION; }

}  // namespace
}  // namespace moxie

// TVM-FFI's macro makes functions with a parameter that they do not use.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
TVM_FFI_DLL_EXPORT_TYPED_FUNC(moe_fp8_block_scale, moxie::moe_fp8_block_scale);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(moe_fp8_block_scale_by, moxie::moe_fp8_block_scale_by);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(moe_fp8_block_scale_rows, moxie::moe_fp8_block_scale_rows);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(version, moxie::version);
#pragma GCC diagnostic pop
