// Tensor maps of Hopper's copies of boxes (copy_box() in kernels/ptx.cuh).
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <string>

#include "core/cuda.h"

namespace moxie {

/// A map of boxes of `box_rows` rows of 128 bytes with the 128-byte swizzle, of a matrix with rows
/// of `columns` elements. The driver's function is asked for at run time, so that nothing links
/// libcuda.
inline CUtensorMap map_of_boxes(const char* row, const void* base, CUtensorMapDataType type,
                                int64_t element_bytes, int64_t columns, int64_t rows,
                                int box_rows) {
  static const auto encode = [row] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = {};
    constexpr unsigned kVersion = 12000;
    check_launched(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kVersion,
                                                    cudaEnableDefault, &result),
                   row);
    CHECK(found != nullptr, "the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  const cuuint64_t extents[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns * element_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(128 / element_bytes),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t ones[2] = {1, 1};
  CUtensorMap map;
  const CUresult error =
      encode(&map, type, 2, const_cast<void*>(base), extents, strides, box, ones,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(error == CUDA_SUCCESS, "cuTensorMapEncodeTiled: " + std::to_string(error));
  return map;
}

}  // namespace moxie
