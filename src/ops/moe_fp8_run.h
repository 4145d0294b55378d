// Chooses and runs a row of moe_fp8_block_scale on the device that holds the tensors, on the stream
// that the caller works on. Nothing waits for the device.
#pragma once

#include <tvm/ffi/container/tensor.h>

#include <string>
#include <vector>

#include "core/base.h"
#include "kernels/moe_fp8/moe_fp8.h"

namespace moxie {

/// Runs the cheapest row, or the one of this name ("reference" is short for that of the table).
/// On CUDA the workspace comes from the allocator that the caller's framework gave TVM-FFI: of
/// PyTorch that is its caching allocator, which knows streams and graphs.
Status run_moe_fp8(MoeFp8Params params, DLDevice device, const std::string& row);

struct MoeFp8RowState {
  const Row<MoeFp8Params>* row;
  std::string why_not;  ///< empty: the device can run it
};
/// The rows for this kind of device.
Result<std::vector<MoeFp8RowState>> moe_fp8_rows(DLDevice device);

}  // namespace moxie
