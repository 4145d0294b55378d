// Which architectures this build has GPU code for, and which of them a device runs.
#pragma once

#include <cstdint>
#include <string>

namespace moxie {

/// The architecture whose code of this build a device of this compute capability (80, 90, 121)
/// runs: 80, 86, 90 (of sm_90a), 100, 120 ...; 0: none. Code for sm_8x runs on every later sm_8x.
/// Code with a letter runs on its own architecture alone, or on its family (f). What is only
/// intermediate code ("80-virtual") runs on every device from there on, compiled by the driver.
int32_t code_for(int32_t compute_capability);

/// The same for a list like the build's: "80 90a 100a 120f", "80-virtual".
int32_t code_for(int32_t compute_capability, const std::string& archs);

/// The build's list; empty without GPU code.
std::string cuda_archs();

}  // namespace moxie
