// Tensor maps of Hopper's copies of boxes (copy_box() in kernels/ptx.cuh), and copies of boxes of
// three dimensions.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/cuda.h"
#include "kernels/ptx.cuh"

namespace moxie {

/// A map of a tensor of N dimensions, the first of them contiguous. strides: bytes, of the others.
/// The driver's function is asked for at run time, so that nothing links libcuda.
template <size_t N>
CUtensorMap tensor_map(const char* row, const void* base, CUtensorMapDataType type,
                       const std::array<int64_t, N>& extents,
                       const std::array<int64_t, N - 1>& strides, const std::array<int, N>& box,
                       CUtensorMapSwizzle swizzle,
                       CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
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
  std::array<cuuint64_t, N> sizes;
  std::array<cuuint64_t, N - 1> steps;
  std::array<cuuint32_t, N> of_box, ones;
  std::copy(extents.begin(), extents.end(), sizes.begin());
  std::copy(strides.begin(), strides.end(), steps.begin());
  std::copy(box.begin(), box.end(), of_box.begin());
  ones.fill(1);
  CUtensorMap map;
  const CUresult error = encode(&map, type, N, const_cast<void*>(base), sizes.data(), steps.data(),
                                of_box.data(), ones.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK(error == CUDA_SUCCESS, "cuTensorMapEncodeTiled: " + std::to_string(error));
  return map;
}

/// A map of boxes of `box_rows` rows of 128 bytes with the 128-byte swizzle, of a matrix with rows
/// of `columns` elements.
inline CUtensorMap map_of_boxes(const char* row, const void* base, CUtensorMapDataType type,
                                int64_t element_bytes, int64_t columns, int64_t rows,
                                int box_rows) {
  return tensor_map<2>(row, base, type, {columns, rows}, {columns * element_bytes},
                       {static_cast<int>(128 / element_bytes), box_rows},
                       CU_TENSOR_MAP_SWIZZLE_128B);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/// copy_box() of a map of three dimensions.
__device__ __forceinline__ void copy_box(void* to, const void* map, int32_t x, int32_t y, int32_t z,
                                         uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}
#endif

}  // namespace moxie
