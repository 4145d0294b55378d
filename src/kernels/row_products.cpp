#include "kernels/row_products.h"

#include <limits>

#include "kernels/registry.h"

namespace moxie {

bool multiplies_e4m3(std::string_view row) {
  return row.find("_e4m3_") != row.npos && !row.starts_with("attend_");
}
bool multiplies_i8(std::string_view row) { return row.find("_i8_") != row.npos; }

double greatest_gflops(const KernelChooser& kernels, std::string_view row) {
  if (kernels.device() == DeviceKind::kCpu) return std::numeric_limits<double>::infinity();
  return multiplies_e4m3(row) || multiplies_i8(row) ? kernels.rates().fp8_gflops
                                                    : kernels.rates().bf16_gflops;
}

}  // namespace moxie
