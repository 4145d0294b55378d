// The CPU's threads, what is known of each CUDA device, and the choice of a row.
#include "ops/moe_fp8_run.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "core/device.h"
#include "core/nearest.h"
#include "core/threads.h"
#if MOXIE_HAS_CUDA
#include <tvm/ffi/extra/c_env_api.h>

#include "core/cuda.h"
#endif

namespace moxie {
namespace {

using MoeFp8Row = Row<MoeFp8Params>;
constexpr const char* kOpName = Op<MoeFp8Params>::info.name;

// A device, and what rows are chosen by. Made at the first use of a device and kept.
struct Target {
  std::unique_ptr<Device> device;
  Features features = kFeatureNone;
  DeviceRates rates;
  std::mutex runs;                 // CPU: a pool does one run at a time
  std::unique_ptr<Stream> stream;  // CPU
};

Result<std::unique_ptr<Target>> make_target(DLDevice id) {
  auto target = std::make_unique<Target>();
  const bool is_cpu = id.device_type == kDLCPU;
  auto made =
      is_cpu ? Result<std::unique_ptr<Device>>(make_cpu_device()) : make_cuda_device(id.device_id);
  if (!made) return fail(made.error());
  target->device = std::move(*made);
  DeviceProperties properties = target->device->properties();
  if (is_cpu) {
    auto stream = target->device->make_stream();
    if (!stream) return fail(stream.error());
    target->stream = std::move(*stream);
    properties.num_units = target->stream->pool->num_threads();
  }
  target->features = is_cpu ? cpu_features() : cuda_features(properties.compute_capability);
  target->rates = rates_of(target->device->kind(), properties);
  return target;
}

Result<Target*> target_of(DLDevice id) {
  // Never destroyed: at the end of the process the CUDA runtime may be gone already.
  static auto* const targets = new std::map<std::pair<int, int>, std::unique_ptr<Target>>;
  static auto* const mutex = new std::mutex;
  const std::lock_guard lock(*mutex);
  auto& known = (*targets)[{id.device_type, id.device_id}];
  if (known == nullptr) {
    auto made = make_target(id);
    if (!made) return fail(made.error());
    known = std::move(*made);
  }
  return known.get();
}

const char* device_name(DeviceKind kind) { return kind == DeviceKind::kCpu ? "the CPU" : "CUDA"; }

// Why the device cannot run the row, whatever the shapes; empty if it can.
std::string why_not_here(const MoeFp8Row& row, const Target& target) {
  if (row.device != target.device->kind())
    return std::string("is for ") + device_name(row.device) + ", the tensors are on " +
           device_name(target.device->kind());
  if (const Features missing = row.needs & ~target.features; missing != 0)
    return "needs " + feature_names(missing) + ", which this device lacks";
  return {};
}

Result<const MoeFp8Row*> row_named(const std::string& name, const MoeFp8Params& p,
                                   const Target& target) {
  const std::string full = name == "reference" ? std::string(kOpName) + "_reference" : name;
  std::vector<std::string> known;
  for (const MoeFp8Row& row : Op<MoeFp8Params>::rows()) {
    known.emplace_back(row.name);
    if (full != row.name) continue;
    if (const std::string why = why_not_here(row, target); !why.empty()) return fail(why, full);
    MoeFp8Params as_run = p;
    as_run.activation = row.activation;
    if (const char* why = row.refuses(as_run)) return fail(why, full);
    return &row;
  }
  return fail("there is no such row", name, "did you mean " + nearest_name(full, known) + "?");
}

// Rows that round the intermediate to E4M3 run by name alone.
Result<const MoeFp8Row*> cheapest_row(const MoeFp8Params& p, const Target& target) {
  const MoeFp8Row* best = nullptr;
  double best_us = 0;
  std::string why_none;
  for (const MoeFp8Row& row : Op<MoeFp8Params>::rows()) {
    if (row.activation != p.activation || row.device != target.device->kind()) continue;
    if (const std::string why = why_not_here(row, target); !why.empty()) {
      why_none = why;
    } else if (const char* refused = row.refuses(p)) {
      why_none = refused;
    } else if (const double us = row.predict_us(p, target.rates); best == nullptr || us < best_us) {
      best = &row, best_us = us;
    }
  }
  if (best != nullptr) return best;
  return fail("no row can run this: " + why_none, kOpName);
}

Status run_on_cpu(const MoeFp8Row& row, MoeFp8Params& p, Target& target) {
  const std::lock_guard lock(target.runs);
  const uint64_t bytes = row.workspace(p);
  auto workspace = target.device->allocate(std::max<uint64_t>(bytes, 64));
  if (!workspace) return fail(workspace.error());
  p.launch = {.device = DeviceKind::kCpu,
              .stream = target.stream.get(),
              .workspace = workspace->data(),
              .workspace_bytes = workspace->bytes()};
  row.run(p);
  return {};
}

#if MOXIE_HAS_CUDA
// The calling thread's current device, which launches change, is restored.
class CurrentDevice {
 public:
  CurrentDevice() { cudaGetDevice(&device_); }
  ~CurrentDevice() { cudaSetDevice(device_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int device_ = 0;
};

Status run_on_cuda(const MoeFp8Row& row, MoeFp8Params& p, DLDevice id) {
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr)
    return fail("nothing that allocates on the device is known", "workspace",
                "pass tensors of PyTorch, whose allocator is then used");
  // No stream is the legacy default stream, whose handle a Stream does not take for one.
  void* native = TVMFFIEnvGetStream(kDLCUDA, id.device_id);
  if (native == nullptr) native = cudaStreamLegacy;
  const auto stream = borrow_cuda_stream(id.device_id, native);
  const int64_t bytes = static_cast<int64_t>(row.workspace(p));
  const DLDataType byte{kDLUInt, 8, 1};
  // Freed when this function returns, in the order of the stream: the allocator's promise.
  const auto workspace = tvm::ffi::Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc,
                                                        tvm::ffi::ShapeView(&bytes, 1), byte, id);
  p.launch = {.device = DeviceKind::kCuda,
              .stream = stream.get(),
              .workspace = static_cast<std::byte*>(workspace.data_ptr()),
              .workspace_bytes = static_cast<uint64_t>(bytes)};
  row.run(p);
  return cuda_check(cudaPeekAtLastError(), row.name);
}
#endif

}  // namespace

Status run_moe_fp8(MoeFp8Params p, DLDevice id, const std::string& name) {
#if MOXIE_HAS_CUDA
  std::optional<CurrentDevice> restored;
  if (id.device_type == kDLCUDA) restored.emplace();
#endif
  auto target = target_of(id);
  if (!target) return fail(target.error());
  auto row = name.empty() ? cheapest_row(p, **target) : row_named(name, p, **target);
  if (!row) return fail(row.error());
  if (p.num_tokens == 0) return {};
  p.activation = (*row)->activation;
  if (id.device_type == kDLCPU) return run_on_cpu(**row, p, **target);
#if MOXIE_HAS_CUDA
  return run_on_cuda(**row, p, id);
#else
  return fail("this build has no CUDA", kOpName);
#endif
}

Result<std::vector<MoeFp8RowState>> moe_fp8_rows(DLDevice id) {
  if (id.device_type != kDLCPU && id.device_type != kDLCUDA)
    return fail("rows are for cpu and cuda", "device type " + std::to_string(id.device_type));
#if MOXIE_HAS_CUDA
  std::optional<CurrentDevice> restored;
  if (id.device_type == kDLCUDA) restored.emplace();
#endif
  auto target = target_of(id);
  if (!target) return fail(target.error());
  std::vector<MoeFp8RowState> rows;
  for (const MoeFp8Row& row : Op<MoeFp8Params>::rows())
    if (row.device == (*target)->device->kind())
      rows.push_back({&row, why_not_here(row, **target)});
  return rows;
}

}  // namespace moxie
