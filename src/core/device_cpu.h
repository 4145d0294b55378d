// CPU devices that share threads.
#pragma once

#include <memory>

#include "core/device.h"

namespace moxie {

/// A CPU device that works with the threads of another one, which outlives it and is idle while
/// this one works.
std::unique_ptr<Device> make_cpu_device(ThreadPool& threads);

}  // namespace moxie
