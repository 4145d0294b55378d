// What every step's Params share: the device order, scratch memory, the KV cache of a layer, rotary
// tables, and the fewest bytes and operations that a step needs.
//
// Params are plain data with pointers into the memory of the device that runs the step. Activations
// are F32 [tokens, width], row-major; on CUDA each value of the residual stream `x` is the sum of
// two floats (kernels/residual.cuh). Nothing here allocates or synchronises.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/forms.h"

namespace moxie {

/// Where a step runs, and its scratch. `workspace` holds at least what the row asked for, aligned
/// to 256 bytes.
struct Launch {
  DeviceKind device = DeviceKind::kCpu;
  Stream* stream = nullptr;
  std::byte* workspace = nullptr;
  uint64_t workspace_bytes = 0;
  L1Form l1 = L1Form::kShared;  // CUDA
  uint64_t most_shared = 0;     // CUDA: bytes of a block that rows may plan with; 0: the device's
};

/// Floats of one value of the residual stream on CUDA.
inline constexpr int32_t kFloatsOfCudaX = 2;

/// The least bytes through memory and the least operations of one launch: the roofline's two
/// coordinates. Weights are counted once, activations in and out once.
struct Work {
  double bytes = 0;
  double flops = 0;
  Work& operator+=(const Work& other) {
    bytes += other.bytes;
    flops += other.flops;
    return *this;
  }
  Work& operator-=(const Work& other) {
    bytes -= other.bytes;
    flops -= other.flops;
    return *this;
  }
};

/// The pages of one layer's cache, and which page holds which tokens of which sequence.
///
/// Logical page p of a sequence holds its tokens p * page_tokens .. (p + 1) * page_tokens - 1.
/// In a page, K and V are each [kv_heads, page_tokens, head_dim].
struct KvLayer {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t page_stride_bytes = 0;        ///< from a page to the next, of K and of V alike
  const int32_t* page_table = nullptr;  ///< [num_seqs, table_stride]; -1: none, or freed
  int32_t table_stride = 0;
  int32_t page_tokens = 0;
  DType dtype = DType::kBF16;  ///< kBF16, kF8E4M3 (unit scale, saturating) or kF32

  /// Bytes of one token of one head.
  int64_t row_bytes(int32_t head_dim) const {
    return static_cast<int64_t>(dtype_bytes(dtype, static_cast<uint64_t>(head_dim)));
  }
  int32_t page_of(int32_t seq, int32_t position) const {
    return page_table[static_cast<int64_t>(seq) * table_stride + position / page_tokens];
  }
  /// Byte offset of (page, kv head, position) in `k` and in `v`.
  int64_t offset(int32_t page, int32_t head, int32_t position, int32_t head_dim) const {
    return page * page_stride_bytes +
           (static_cast<int64_t>(head) * page_tokens + position % page_tokens) *
               row_bytes(head_dim);
  }
};

/// Which tokens a launch holds: prefill chunks, decode tokens and drafts of several sequences, one
/// after another. Positions count from 0 in each sequence.
struct Ragged {
  int32_t num_tokens = 0;
  int32_t num_seqs = 0;
  const int32_t* positions = nullptr;    ///< [num_tokens]
  const int32_t* seq_idx = nullptr;      ///< [num_tokens] row of the page table
  const int32_t* row_offsets = nullptr;  ///< [num_seqs + 1] tokens of sequence s
  /// Sum over tokens of the keys that a full layer shows each token; for Work only. 0: unknown.
  int64_t num_visible_keys = 0;
};

/// YaRN by parts, not truncated (docs/architecture.md gives the formula). cos and sin are already
/// multiplied by the concentration.
struct Rotary {
  const float* table = nullptr;  ///< [max_positions, head_dim]: head_dim / 2 cos, then as many sin
  int32_t max_positions = 0;
};

}  // namespace moxie
