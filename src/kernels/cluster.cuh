// The blocks of a cluster as cooperative groups have them, or a block alone in code for
// architectures without clusters (core/cuda_launch.cuh: code_has_clusters).
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "core/cuda_launch.cuh"

namespace moxie {

#if __CUDA_ARCH__ >= 900

class ClusterOfBlocks {
 public:
  __device__ void sync() const { group_.sync(); }
  __device__ void arrive() { group_.barrier_arrive(); }
  __device__ void wait() { group_.barrier_wait(); }
  __device__ int rank() const { return static_cast<int>(group_.block_rank()); }
  __device__ int num_blocks() const { return static_cast<int>(group_.num_blocks()); }
  /// The address in block `rank` of what this block has at `shared`.
  template <typename T>
  __device__ T* in_block(T* shared, int rank) const {
    return group_.map_shared_rank(shared, rank);
  }

 private:
  cooperative_groups::cluster_group group_ = cooperative_groups::this_cluster();
};

#else

class ClusterOfBlocks {
 public:
  __device__ void sync() const { __syncthreads(); }
  __device__ void arrive() {}
  __device__ void wait() { __syncthreads(); }
  __device__ int rank() const { return 0; }
  __device__ int num_blocks() const { return 1; }
  template <typename T>
  __device__ T* in_block(T* shared, int) const {
    return shared;
  }
};

#endif

/// Clusters of a shape that the current device runs side by side. They may be fewer than its number
/// of multiprocessors allows, because groups of multiprocessors differ in size.
inline int clusters_at_once(const char* row, const void* kernel, const LaunchShape& shape) {
  check_launched(allow_shared_bytes(kernel, shape.shared_bytes), row);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.num_threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  check_launched(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), row);
  return std::max(1, clusters);
}

}  // namespace moxie
