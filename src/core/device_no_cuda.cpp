// Stand-in of a build without CUDA: there is no device, and the error says why.
#include "core/cuda_part.h"
#include "core/rank_gather.h"
#include "core/rank_link.h"

namespace moxie {

Result<std::unique_ptr<Device>> make_cuda_device(int) {
  return fail("this build has no CUDA code", "--device cuda",
              "build where nvcc is installed, or use --device cpu");
}

Result<std::unique_ptr<Device>> make_part_of_cuda_device(int index, int, int) {
  return make_cuda_device(index);
}

int num_cuda_devices(std::string* why) {
  if (why != nullptr) *why = "this build has no CUDA code";
  return 0;
}

bool has_cuda_driver() { return false; }

Result<std::vector<std::unique_ptr<RankLink>>> make_peer_links(std::span<Device* const>,
                                                               std::chrono::milliseconds) {
  return fail("this build has no CUDA code", "ranks on GPUs");
}

Result<std::unique_ptr<RankLink>> make_mirrored_link(Device&, int32_t, std::chrono::milliseconds) {
  return fail("this build has no CUDA code", "ranks on GPUs");
}

uint64_t rank_gather_bytes(int32_t) { return 0; }

Result<std::unique_ptr<RankLink>> make_nccl_link(RankLink&, const NcclLibrary&, const NcclId&,
                                                 Device&, Stream&, std::chrono::milliseconds) {
  return fail("this build has no CUDA code", "ranks on GPUs");
}

}  // namespace moxie
