// CPU devices that share threads.
#pragma once

#include <memory>
#include <vector>

#include "core/device.h"
#include "core/numa.h"

namespace moxie {

/// A CPU device whose threads are meant for these cores, at least one.
std::unique_ptr<Device> make_cpu_device(int num_threads, std::vector<UsableCore> cores);
/// A CPU device that works with the threads of another one, which outlives it and is idle while
/// this one works.
std::unique_ptr<Device> make_cpu_device(ThreadPool& threads);

}  // namespace moxie
