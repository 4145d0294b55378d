// Stand-in of a build without CUDA: there is no device to measure or to time.
#include "lab/gpu_time.h"
#include "lab/machine_gpu_read.h"

namespace moxie {

Result<std::vector<double>> time_gpu_reads(const Buffer&, int, Stream&) {
  return fail("this build has no CUDA code", "measuring a GPU");
}

Status fill_l2(const Buffer&, Stream&) {
  return fail("this build has no CUDA code", "filling a GPU's L2");
}

Result<std::vector<double>> time_gpu_products(GpuProducts, Device&, int, Stream&) {
  return fail("this build has no CUDA code", "measuring a GPU");
}

Result<std::vector<double>> time_launches(int, int, Stream&) {
  return fail("this build has no CUDA code", "measuring a GPU");
}

Result<std::vector<double>> time_on_gpu(int, Stream&, const std::function<Status()>&,
                                        const std::function<Status()>&) {
  return fail("this build has no CUDA code", "timing on a GPU");
}

Result<std::unique_ptr<GpuMarks>> GpuMarks::create(size_t) {
  return fail("this build has no CUDA code", "timing on a GPU");
}

std::string gpu_pci_bus_id(Device&) { return ""; }

}  // namespace moxie
