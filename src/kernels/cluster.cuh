// The blocks of a cluster as cooperative groups have them, or a block alone in code for
// architectures without clusters (core/cuda_launch.cuh: code_has_clusters).
#pragma once

#include <cooperative_groups.h>

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

}  // namespace moxie
