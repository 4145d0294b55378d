// Parts of a CUDA device by the driver's green contexts: contexts whose kernels run on some of the
// device's multiprocessors, and whose memory is that of the runtime's context.
#include "core/cuda_part.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/cuda_place.h"

namespace moxie {
namespace {

// The driver's functions for parts of a device; null in drivers before CUDA 12.4.
struct PartFunctions {
  decltype(&cuDeviceGetDevResource) of_device = nullptr;
  decltype(&cuDevSmResourceSplitByCount) split = nullptr;
  decltype(&cuDevResourceGenerateDesc) describe = nullptr;
  decltype(&cuGreenCtxCreate) create = nullptr;
  decltype(&cuCtxFromGreenCtx) context_of = nullptr;
  decltype(&cuCtxSetCurrent) set_current = nullptr;
  decltype(&cuModuleGetLoadingMode) loading_mode = nullptr;
};

// The driver is loaded at run time, with the runtime.
template <typename Function>
void find(const char* name, Function* function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kVersion = 12040;
  if (cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess)
    found = nullptr;
  cudaGetLastError();
  *function = reinterpret_cast<Function>(found);
}
const PartFunctions& part_functions() {
  static const PartFunctions functions = [] {
    PartFunctions f;
    find("cuDeviceGetDevResource", &f.of_device);
    find("cuDevSmResourceSplitByCount", &f.split);
    find("cuDevResourceGenerateDesc", &f.describe);
    find("cuGreenCtxCreate", &f.create);
    find("cuCtxFromGreenCtx", &f.context_of);
    find("cuCtxSetCurrent", &f.set_current);
    find("cuModuleGetLoadingMode", &f.loading_mode);
    return f;
  }();
  return functions;
}

// The contexts of a device's parts. They are made once and stay: what a process has launched lives
// in them.
Result<std::vector<Place>> make_parts(int index, int count) {
  const std::string where = "--device cuda:" + std::to_string(index);
  const PartFunctions& f = part_functions();
  if (f.of_device == nullptr || f.split == nullptr || f.describe == nullptr ||
      f.create == nullptr || f.context_of == nullptr || f.set_current == nullptr)
    return fail("the driver cannot divide a GPU among ranks", where,
                "install a driver for CUDA 12.4 or newer, or give each rank a GPU of its own");
  const auto check = [&](CUresult result, const char* what) -> Status {
    if (result == CUDA_SUCCESS) return {};
    return fail(std::string(what) + ": error " + std::to_string(result) + " of the driver", where);
  };
  CUdevice device = index;
  CUdevResource whole{}, rest{};
  auto status = check(f.of_device(device, &whole, CU_DEV_RESOURCE_TYPE_SM), "multiprocessors");
  if (!status) return fail(std::move(status.error()));
  constexpr unsigned kStep = 8;  // parts are made of as many
  const unsigned units = whole.sm.smCount / static_cast<unsigned>(count) / kStep * kStep;
  if (units == 0)
    return fail(std::to_string(whole.sm.smCount) + " multiprocessors are too few for " +
                    std::to_string(count) + " ranks",
                where, "fewer ranks, each with a GPU of its own");
  std::vector<CUdevResource> resources(static_cast<size_t>(count));
  auto num_parts = static_cast<unsigned>(count);
  status = check(f.split(resources.data(), &num_parts, &whole, &rest, 0, units), "dividing a GPU");
  if (status && num_parts != static_cast<unsigned>(count))
    status = fail("it divides into " + std::to_string(num_parts) + " parts", where);
  std::vector<Place> parts;
  for (CUdevResource& resource : resources) {
    if (!status) break;
    CUdevResourceDesc description = nullptr;
    CUgreenCtx part = nullptr;
    Place place{.index = index, .num_units = static_cast<int>(resource.sm.smCount)};
    status = check(f.describe(&description, &resource, 1), "describing a part of a GPU");
    if (status)
      status = check(f.create(&part, description, device, CU_GREEN_CTX_DEFAULT_STREAM),
                     "making a part of a GPU");
    if (status) status = check(f.context_of(&place.context, part), "a part's context");
    parts.push_back(place);
  }
  if (!status) return fail(std::move(status.error()));
  return parts;
}

thread_local int units_of_part = 0;  // 0: the current device is whole

}  // namespace

void Place::make_current() const {
  if (context == nullptr)
    cudaSetDevice(index);
  else
    part_functions().set_current(context);
  units_of_part = num_units;
}

int num_multiprocessors() {
  if (units_of_part > 0) return units_of_part;
  int device = 0, units = 0;
  check_launched(cudaGetDevice(&device), "num_multiprocessors");
  cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device);
  return units;
}

void load_kernels_at_once() { setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0); }

Result<Place> place_of_part(int index, int part, int count) {
  CUmoduleLoadingMode mode{};
  if (part_functions().loading_mode == nullptr ||
      part_functions().loading_mode(&mode) != CUDA_SUCCESS || mode != CU_MODULE_EAGER_LOADING)
    return fail(
        "kernels are loaded at their first launch, which may wait for ever where ranks share a GPU",
        "--device cuda:" + std::to_string(index),
        "start with CUDA_MODULE_LOADING=EAGER in the environment");
  static std::mutex mutex;
  static auto* const made = new std::map<std::pair<int, int>, std::vector<Place>>;
  const std::lock_guard lock(mutex);
  std::vector<Place>& parts = (*made)[{index, count}];
  if (parts.empty()) {
    auto places = make_parts(index, count);
    if (!places) return fail(std::move(places.error()));
    parts = std::move(*places);
  }
  return parts[static_cast<size_t>(part)];
}

}  // namespace moxie
