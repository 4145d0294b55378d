// Stand-in of a build without CUDA: there is no device to measure.
#include "lab/machine_gpu_read.h"

namespace moxie {

Result<std::vector<double>> time_gpu_reads(const Buffer&, int, Stream&) {
  return fail("this build has no CUDA code", "measuring a GPU");
}

Result<std::vector<double>> time_gpu_products(GpuProducts, Device&, int, Stream&) {
  return fail("this build has no CUDA code", "measuring a GPU");
}

std::string gpu_pci_bus_id(Device&) { return ""; }

}  // namespace moxie
