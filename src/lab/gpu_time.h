// Times work of a CUDA stream by events of the device, for code that is compiled without CUDA too.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/device.h"

namespace moxie {

/// Seconds of each of `repetitions` calls of `launch`, after one that is not counted. Both
/// functions give work to `stream` and do not wait. What `before` gives runs ahead of the first
/// event, so that it is not timed; the host does not wait between them, so that the device finds
/// the launches queued. Fails in a build without CUDA.
Result<std::vector<double>> time_on_gpu(int repetitions, Stream& stream,
                                        const std::function<Status()>& before,
                                        const std::function<Status()>& launch);

/// Events of the device between pieces of work that the host gives to a stream one by one.
class GpuMarks {
 public:
  /// For up to `most` marks. Fails in a build without CUDA.
  static Result<std::unique_ptr<GpuMarks>> create(size_t most);
  virtual ~GpuMarks() = default;
  /// Keeps the device busy for `hold_us`, so that it finds queued what the host gives meanwhile,
  /// and sets the first mark.
  virtual Status begin(Stream& stream, double hold_us) = 0;
  /// Gives the device a kernel that does nothing.
  virtual void nothing(Stream& stream) = 0;
  /// A mark behind all work given so far.
  virtual Status mark(Stream& stream) = 0;
  /// Waits for the last mark. Microseconds from each mark to the next.
  virtual Result<std::vector<double>> between_us(Stream& stream) = 0;
};

}  // namespace moxie
