// The CPU's name for people, from what Linux says in /proc/cpuinfo.
#pragma once

#include <istream>
#include <string>

namespace moxie {

/// x86-64: the text of `model name`. aarch64, where the kernel gives numbers alone: the names of
/// the kinds of cores with their counts, "10 x Cortex-X925, 10 x Cortex-A725", or the numbers of a
/// kind that is not known here, "4 x part 0xfff of implementer 0x41". "CPU" if neither is there.
std::string cpu_name_of(std::istream& cpuinfo);

}  // namespace moxie
