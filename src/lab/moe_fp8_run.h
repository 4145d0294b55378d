// Runs rows of moe_fp8_block_scale on a CPU outside of a model, and times them with cold caches.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/moe_fp8/moe_fp8.h"

namespace moxie {

class MoeFp8Runner {
 public:
  /// `num_threads` 0: one a usable core.
  explicit MoeFp8Runner(int num_threads);

  Device& device() { return *device_; }
  ThreadPool& pool() { return *stream_->pool; }
  /// The row that runs these params: `kernel` is a row's name, "reference" or "auto".
  Result<const Row<MoeFp8Params>*> row_for(const MoeFp8Params& params,
                                           const std::string& kernel) const;
  /// The rows of this machine that take these params, the reference row last.
  std::vector<const Row<MoeFp8Params>*> rows_for(const MoeFp8Params& params) const;
  /// Runs a row once; params.output is written.
  Status run(const Row<MoeFp8Params>& row, const MoeFp8Params& params);
  /// Seconds of each of `repetitions` runs after one that is not counted. Before each run other
  /// memory is read, twice the size of the last-level caches, so that no input is in a cache.
  Result<std::vector<double>> time(const Row<MoeFp8Params>& row, const MoeFp8Params& params,
                                   int repetitions);

 private:
  Status make_workspace(uint64_t bytes);
  Status flush_caches();

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Buffer workspace_, flush_;
  uint64_t flush_sum_ = 0;  // what flushing read, so that it is not left out
};

}  // namespace moxie
