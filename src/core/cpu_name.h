// The CPU's name for people, from Linux's /proc/cpuinfo.
#pragma once

#include <istream>
#include <string>

namespace moxie {

/// x86-64: the text of `model name`. aarch64, where the kernel gives only numbers: the kinds of
/// cores with their counts, "10 x Cortex-X925, 10 x Cortex-A725"; an unknown kind is shown by its
/// numbers, "4 x part 0xfff of implementer 0x41". "CPU" if the file has neither.
std::string cpu_name_of(std::istream& cpuinfo);

}  // namespace moxie
