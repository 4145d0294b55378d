// The CUDA device: memory, streams and copies through the CUDA runtime (linked statically; it
// loads the driver at run time, so that the binary also runs where there is none).
//
// Only devices that this build has code for can be made. Every call first sets its device, because
// the current device is a property of the thread, and any thread may use any Device.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/cuda.h"
#include "core/cuda_archs.h"
#include "core/cuda_part.h"
#include "core/cuda_place.h"
#include "core/launch_log.h"

namespace moxie {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string hint_for(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "a smaller model, context or number of streams; `moxie plan` shows the parts";
    case cudaErrorInsufficientDriver:
      return "install an NVIDIA driver for CUDA " + version_text(CUDART_VERSION) + " or newer";
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
      return "`nvidia-smi -L` lists the devices; CUDA_VISIBLE_DEVICES may hide them";
    case cudaErrorSystemDriverMismatch:
      return "the driver's library and its kernel module differ: restart the machine";
    case cudaErrorSystemNotReady:
      return "the driver's services are not up; with NVSwitch, nvidia-fabricmanager";
    case cudaErrorDevicesUnavailable:
      return "another process holds the device exclusively";
    case cudaErrorNoKernelImageForDevice:
      return "`moxie kernels` lists the architectures of this build";
    default:
      return "`moxie doctor` checks the machine; CUDA_LAUNCH_BLOCKING=1 finds the launch";
  }
}

// Success, or the reason why no CUDA device can be used at all.
Status check_driver(int* num_devices) {
  *num_devices = 0;
  const std::string where = "CUDA";
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return fail("no NVIDIA driver was found", where, hint_for(cudaErrorInsufficientDriver));
  }
  const cudaError_t error = cudaGetDeviceCount(num_devices);
  if (error == cudaErrorInsufficientDriver) {
    return fail("the driver supports CUDA " + version_text(driver) + ", this build needs " +
                    version_text(CUDART_VERSION),
                where, hint_for(error));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && *num_devices == 0)) {
    return fail("the driver reports no device", where, hint_for(cudaErrorNoDevice));
  }
  return cuda_check(error, where);
}

int compute_capability(int index) {
  int major = 0, minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) != cudaSuccess) {
    return 0;
  }
  return major * 10 + minor;
}

std::string no_code_text(int capability) {
  return "device of compute capability " + version_text(capability * 100) +
         ", but this build has code for " + cuda_archs();
}

class CudaStream final : public Stream {
 public:
  CudaStream(const Place& place, cudaStream_t stream, bool is_borrowed = false)
      : place_(place), is_borrowed_(is_borrowed) {
    native = stream;
  }
  ~CudaStream() override {
    if (is_borrowed_) return;
    // Errors are not reported: at the end of the process the runtime may be gone already.
    place_.make_current();
    cudaStreamDestroy(static_cast<cudaStream_t>(native));
  }
  Status synchronize() override {
    return cuda_check(cudaStreamSynchronize(handle()), "CUDA stream");
  }
  Result<bool> is_idle() override {
    const cudaError_t error = cudaStreamQuery(handle());
    if (error == cudaErrorNotReady) return false;
    if (auto status = cuda_check(error, "CUDA stream"); !status) return fail(status.error());
    return true;
  }
  cudaStream_t handle() const {
    place_.make_current();
    return static_cast<cudaStream_t>(native);
  }

 private:
  Place place_;
  bool is_borrowed_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(cudaGraphExec_t graph, std::vector<NotedLaunch> captured)
      : graph_(graph), captured_(std::move(captured)) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  Status launch(Stream& stream) override {
    const auto status = cuda_check(cudaGraphLaunch(graph_, launch_stream(&stream)), "CUDA graph");
    if (status) note_graph_launch(captured_, stream.native);
    return status;
  }

 private:
  cudaGraphExec_t graph_;
  std::vector<NotedLaunch> captured_;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(const Place& place, DeviceProperties properties)
      : place_(place), properties_(std::move(properties)) {}
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const DeviceProperties& properties() const override { return properties_; }

  Result<Buffer> allocate(uint64_t bytes) override {
    if (bytes == 0) return Buffer(this, nullptr, 0);
    place_.make_current();
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error != cudaSuccess) {
      cudaGetLastError();
      size_t available = 0, total = 0;
      cudaMemGetInfo(&available, &total);
      return fail("cannot allocate " + std::to_string(bytes) + " bytes, " +
                      std::to_string(available) + " are free (" + cudaGetErrorString(error) + ")",
                  where(), hint_for(error));
    }
    return Buffer(this, static_cast<std::byte*>(data), bytes);
  }
  Result<Buffer> allocate_host(uint64_t bytes) override {
    if (bytes == 0) return Buffer(this, nullptr, 0, true);
    place_.make_current();
    void* data = nullptr;
    auto status =
        cuda_check(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                   where() + ", " + std::to_string(bytes) + " bytes of pinned host memory");
    if (!status) return fail(std::move(status.error()));
    return Buffer(this, static_cast<std::byte*>(data), bytes, true);
  }
  Result<std::unique_ptr<Stream>> make_stream() override {
    place_.make_current();
    cudaStream_t stream = nullptr;
    const auto status =
        cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), where());
    if (!status) return fail(status.error());
    return std::unique_ptr<Stream>(std::make_unique<CudaStream>(place_, stream));
  }
  Status copy_from_host(void* target, const void* source, uint64_t bytes, Stream& stream) override {
    return copy(target, source, bytes, cudaMemcpyHostToDevice, stream);
  }
  Status copy_to_host(void* target, const void* source, uint64_t bytes, Stream& stream) override {
    return copy(target, source, bytes, cudaMemcpyDeviceToHost, stream);
  }
  Status copy_on_device(void* target, const void* source, uint64_t bytes, Stream& stream) override {
    return copy(target, source, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  Status fill_zero(void* target, uint64_t bytes, Stream& stream) override {
    if (bytes == 0) return {};
    return cuda_check(cudaMemsetAsync(target, 0, bytes, launch_stream(&stream)),
                      where() + ", fill of " + std::to_string(bytes) + " bytes");
  }
  bool has_graphs() const override { return true; }
  Result<std::unique_ptr<Graph>> capture(Stream& stream,
                                         const std::function<void()>& launches) override {
    const cudaStream_t native = launch_stream(&stream);
    // Relaxed: a kernel's code may be loaded at its first launch, also while recording.
    auto status = cuda_check(cudaStreamBeginCapture(native, cudaStreamCaptureModeRelaxed), where());
    if (!status) return fail(std::move(status.error()));
    LaunchCapture captured;
    launches();
    cudaGraph_t graph = nullptr;
    status = cuda_check(cudaStreamEndCapture(native, &graph), where() + ", recording a graph");
    if (!status) return fail(std::move(status.error()));
    cudaGraphExec_t ready = nullptr;
    status = cuda_check(cudaGraphInstantiate(&ready, graph, 0), where() + ", making a graph");
    cudaGraphDestroy(graph);
    if (!status) return fail(std::move(status.error()));
    status = cuda_check(cudaGraphUpload(ready, native), where() + ", uploading a graph");
    auto made = std::make_unique<CudaGraph>(ready, captured.take());
    if (!status) return fail(std::move(status.error()));
    return std::unique_ptr<Graph>(std::move(made));
  }

 private:
  Status copy(void* target, const void* source, uint64_t bytes, cudaMemcpyKind kind,
              Stream& stream) {
    if (bytes == 0) return {};
    return cuda_check(cudaMemcpyAsync(target, source, bytes, kind, launch_stream(&stream)),
                      where() + ", copy of " + std::to_string(bytes) + " bytes");
  }
  void release(std::byte* data, uint64_t) override {
    if (data == nullptr) return;
    place_.make_current();
    cudaFree(data);
  }
  void release_host(std::byte* data, uint64_t) override {
    if (data == nullptr) return;
    place_.make_current();
    cudaFreeHost(data);
  }
  std::string where() const { return "cuda:" + std::to_string(place_.index); }

  Place place_;
  DeviceProperties properties_;
};

std::atomic<uint64_t> shared_bound{0};  // 0: none

}  // namespace

Status cuda_check(cudaError_t error, const std::string& where) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // reported here: the next launch must not find it
  return fail(std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")", where,
              hint_for(error));
}

void bound_shared_bytes(uint64_t bytes) { shared_bound = bytes; }

SharedMemory shared_memory() {
  int device = 0, of_block = 0, of_sm = 0;
  check_launched(cudaGetDevice(&device), "shared_memory");
  cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaDeviceGetAttribute(&of_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  SharedMemory found{static_cast<uint64_t>(of_block), static_cast<uint64_t>(of_sm)};
  if (const uint64_t bound = shared_bound.load(std::memory_order_relaxed); bound > 0) {
    found.of_block = std::min(found.of_block, bound);
    found.of_sm = std::min(found.of_sm, bound + 1024);
  }
  return found;
}

cudaError_t allow_shared_bytes(const void* kernel, uint64_t bytes) {
  if (const uint64_t bound = shared_bound.load(std::memory_order_relaxed); bound > 0) {
    cudaFuncAttributes of_kernel{};
    if (const auto error = cudaFuncGetAttributes(&of_kernel, kernel); error != cudaSuccess)
      return error;
    if (of_kernel.sharedSizeBytes + bytes > bound) return cudaErrorInvalidValue;
  }
  // For each device by itself: a kernel's code may be loaded here, which waits for the device, and
  // with it for the other devices whose ranks it exchanges values with.
  struct OfDevice {
    std::mutex mutex;
    std::map<const void*, uint64_t> allowed;
  };
  constexpr int kMostDevices = 64;
  static auto* const devices = new std::array<OfDevice, kMostDevices>;
  int index = 0;
  cudaError_t error = cudaGetDevice(&index);
  if (error != cudaSuccess) return error;
  OfDevice& device = (*devices)[static_cast<size_t>(index % kMostDevices)];
  const std::lock_guard lock(device.mutex);
  uint64_t& most = device.allowed[kernel];
  if (bytes <= most) return cudaSuccess;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

bool code_has_clusters() {
  constexpr size_t kMostDevices = 64;
  static std::array<std::atomic<int32_t>, kMostDevices> known{};  // code_for, or 0: not asked yet
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return false;
  std::atomic<int32_t>& code = known[static_cast<size_t>(device) % kMostDevices];
  if (code.load(std::memory_order_relaxed) == 0)
    code.store(code_for(compute_capability(device)), std::memory_order_relaxed);
  return code.load(std::memory_order_relaxed) >= 90;
}

cudaStream_t launch_stream(Stream* stream) {
  // Every stream with a native handle is a CudaStream.
  CHECK(stream != nullptr && stream->native != nullptr, "not a CUDA stream");
  return static_cast<CudaStream*>(stream)->handle();
}

std::unique_ptr<Stream> borrow_cuda_stream(int index, void* native) {
  return std::make_unique<CudaStream>(Place{.index = index}, static_cast<cudaStream_t>(native),
                                      true);
}

void check_launched(cudaError_t error, const char* row) {
  switch (error) {
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorLaunchOutOfResources:
    case cudaErrorCooperativeLaunchTooLarge:
      CHECK(error == cudaSuccess, std::string(row) + ": " + cudaGetErrorString(error));
      break;
    default:
      break;
  }
}

bool has_cuda_driver() {
  int driver = 0;
  return cudaDriverGetVersion(&driver) == cudaSuccess && driver != 0;
}

int num_cuda_devices(std::string* why) {
  int num_devices = 0;
  if (const auto status = check_driver(&num_devices); !status) {
    if (why != nullptr) *why = status.error().message();
    return 0;
  }
  int num_usable = 0;
  std::string reason;
  for (int i = 0; i < num_devices; ++i) {
    if (const int capability = compute_capability(i); code_for(capability) != 0)
      ++num_usable;
    else
      reason = "cuda:" + std::to_string(i) + ": " + no_code_text(capability);
  }
  if (num_usable == 0 && why != nullptr) *why = reason;
  return num_usable;
}

namespace {

// What a device says of itself; it is the current one then.
Result<DeviceProperties> open_device(int index) {
  int num_devices = 0;
  if (const auto status = check_driver(&num_devices); !status) return fail(status.error());
  const std::string where = "--device cuda:" + std::to_string(index);
  if (index < 0 || index >= num_devices) {
    return fail("there are " + std::to_string(num_devices) + " CUDA devices", where,
                hint_for(cudaErrorInvalidDevice));
  }
  cudaDeviceProp found{};
  if (const auto status = cuda_check(cudaGetDeviceProperties(&found, index), where); !status) {
    return fail(status.error());
  }
  const int capability = found.major * 10 + found.minor;
  if (code_for(capability) == 0) {
    return fail(found.name + (": " + no_code_text(capability)), where, "use --device cpu");
  }
  // The first use of a device makes its context, which can fail if others hold the device.
  size_t available = 0, total = 0;
  cudaError_t error = cudaSetDevice(index);
  if (error == cudaSuccess) error = cudaMemGetInfo(&available, &total);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return fail("not even a context fits into the memory that is free", where,
                "`nvidia-smi` lists who holds it");
  }
  if (const auto status = cuda_check(error, where); !status) return fail(status.error());
  DeviceProperties properties;
  properties.name = found.name;
  properties.memory_bytes = total;
  properties.available_bytes = available;
  properties.num_units = found.multiProcessorCount;
  properties.compute_capability = capability;
  properties.shared_bytes = found.sharedMemPerBlockOptin;
  properties.l2_bytes = static_cast<uint64_t>(found.l2CacheSize);
  int memory_khz = 0, clock_khz = 0;  // stay 0 where the driver does not say
  cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, index);
  cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, index);
  cudaGetLastError();
  properties.memory_gb_s = 2e-6 * memory_khz * found.memoryBusWidth / 8;  // two bits a clock
  properties.clock_ghz = 1e-6 * clock_khz;
  return properties;
}

}  // namespace

Result<std::unique_ptr<Device>> make_cuda_device(int index) {
  auto properties = open_device(index);
  if (!properties) return fail(std::move(properties.error()));
  return std::unique_ptr<Device>(
      std::make_unique<CudaDevice>(Place{.index = index}, std::move(*properties)));
}

Result<std::unique_ptr<Device>> make_part_of_cuda_device(int index, int part, int count) {
  load_kernels_at_once();
  auto properties = open_device(index);
  if (!properties) return fail(std::move(properties.error()));
  auto place = place_of_part(index, part, count);
  if (!place) return fail(std::move(place.error()));
  const auto share = static_cast<uint64_t>(count);
  properties->memory_bytes /= share;
  properties->available_bytes /= share;
  properties->num_units = place->num_units;
  properties->memory_gb_s /= count;
  return std::unique_ptr<Device>(std::make_unique<CudaDevice>(*place, std::move(*properties)));
}

}  // namespace moxie
