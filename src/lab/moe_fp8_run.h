// Runs rows of moe_fp8_block_scale outside of a model, on a CPU or a CUDA device, and times them
// with cold caches. Inputs and outputs are in the host's memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/moe_fp8/moe_fp8.h"

namespace moxie {

/// What a GPU's L2 holds before a timed run: lines that were written, as flashinfer-bench leaves
/// it, and that go to memory while the run's reads replace them; or lines that were only read, as
/// the weights of a model's other layers are.
enum class L2Before : uint8_t { kWritten, kRead };

class MoeFp8Runner {
 public:
  /// Chooses among the rows of `device`. `num_threads` is of the host, whose rows run beside a CUDA
  /// device, too; 0: one a usable core.
  static Result<MoeFp8Runner> make(std::unique_ptr<Device> device, int num_threads);

  /// Where the chosen rows run, and the host; the same on a CPU.
  Device& device() { return on_gpu() ? *gpu_.device : *host_.device; }
  Device& host() { return *host_.device; }
  bool on_gpu() const { return gpu_.device != nullptr; }
  ThreadPool& pool() { return *host_.stream->pool; }

  /// The row of the device that runs these params: `kernel` is a row's name, a kind, "reference" or
  /// "auto". No reference row is for CUDA.
  Result<const Row<MoeFp8Params>*> row_for(const MoeFp8Params& params,
                                           const std::string& kernel) const;
  /// The rows of the device that take these params, the reference row last.
  std::vector<const Row<MoeFp8Params>*> rows_for(const MoeFp8Params& params) const;
  /// Runs a row once; params.output is written. A CUDA row gets copies of the inputs.
  Status run(const Row<MoeFp8Params>& row, const MoeFp8Params& params);
  /// The same with the host's reference row, on any device.
  Status run_reference(const MoeFp8Params& params);
  /// Seconds of each of `repetitions` runs after one that is not counted; params.output is written.
  ///
  /// On a CPU, by the clock; before each run other memory is read, twice the size of the last-level
  /// caches. On CUDA, by events around a graph of the row's launches, with the inputs on the device
  /// already; before each run, other memory of twice the L2 cache is written, or read. So no input
  /// is in a cache. Routing is part of the time.
  Result<std::vector<double>> time(const Row<MoeFp8Params>& row, const MoeFp8Params& params,
                                   int repetitions, L2Before l2 = L2Before::kWritten);

 private:
  /// A device with what its rows need. Buffers go before the device.
  struct Place {
    std::unique_ptr<Device> device;
    std::unique_ptr<Stream> stream;
    Buffer workspace, flush;
    std::vector<Buffer> tensors;  ///< CUDA: copies of inputs, and the output
    Status make_stream();
    Status reserve(Buffer* buffer, uint64_t bytes);
    /// Adds the launch to params.
    Result<MoeFp8Params> with_launch(const Row<MoeFp8Params>& row, MoeFp8Params params);
  };

  MoeFp8Runner() = default;
  const Place& place() const { return on_gpu() ? gpu_ : host_; }
  Features features() const;
  Status flush_caches();
  Result<MoeFp8Params> upload(const Row<MoeFp8Params>& row, const MoeFp8Params& params);
  Status download(const MoeFp8Params& uploaded, const MoeFp8Params& params);
  Result<std::vector<double>> time_on_device(const Row<MoeFp8Params>& row,
                                             const MoeFp8Params& params, int repetitions,
                                             L2Before l2);

  Place host_, gpu_;        // no GPU: null pointers
  uint64_t flush_sum_ = 0;  // what flushing read, so that it is not left out
};

}  // namespace moxie
