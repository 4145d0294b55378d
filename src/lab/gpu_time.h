// Times work of a CUDA stream by events of the device, for code that is compiled without CUDA too.
#pragma once

#include <functional>
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

}  // namespace moxie
