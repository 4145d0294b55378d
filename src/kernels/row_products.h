// What a row's products take, as its name says, and the greatest rate of such products.
#pragma once

#include <string_view>

namespace moxie {

class KernelChooser;

/// E4M3 by E4M3. Attention over a cache in E4M3 is not: it widens keys and values to BF16.
bool multiplies_e4m3(std::string_view row);
/// 8-bit integers.
bool multiplies_i8(std::string_view row);

/// In 1e9 operations a second, of a row of the chooser's device. Of a CPU none is known (its rate
/// is what plain rows reach): infinite, so that a limit is that of its memory.
double greatest_gflops(const KernelChooser& kernels, std::string_view row);

}  // namespace moxie
