// Loads NVML by name at run time: the binary must start on machines without a driver.
#include "lab/machine_gpu.h"

#include <dlfcn.h>

#include <vector>

#include "lab/machine_gpu_read.h"
#include "lab/stats.h"

namespace moxie {
namespace {

// The part of nvml.h that is used; the library's interface is stable.
struct Nvml {
  using Handle = void*;
  using Memory = struct { unsigned long long total, free, used; };
  int (*init)() = nullptr;
  int (*by_pci)(const char*, Handle*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*clock)(Handle, int, unsigned*) = nullptr;
  int (*power_milliwatts)(Handle, unsigned*) = nullptr;
  int (*temperature)(Handle, int, unsigned*) = nullptr;
  int (*throttle_reasons)(Handle, unsigned long long*) = nullptr;
  int (*energy_millijoules)(Handle, unsigned long long*) = nullptr;
  int (*memory)(Handle, Memory*) = nullptr;
  bool usable = false;

  static const Nvml& get() {
    static const Nvml nvml = open();
    return nvml;
  }

 private:
  static Nvml open() {
    Nvml n;
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return n;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    };
    find(n.init, "nvmlInit_v2");
    find(n.by_pci, "nvmlDeviceGetHandleByPciBusId_v2");
    find(n.driver_version, "nvmlSystemGetDriverVersion");
    find(n.clock, "nvmlDeviceGetClockInfo");
    find(n.power_milliwatts, "nvmlDeviceGetPowerUsage");
    find(n.temperature, "nvmlDeviceGetTemperature");
    find(n.throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find(n.memory, "nvmlDeviceGetMemoryInfo");
    find(n.energy_millijoules, "nvmlDeviceGetTotalEnergyConsumption");
    n.usable = n.init != nullptr && n.by_pci != nullptr && n.init() == 0;
    return n;
  }
};

// Null where NVML does not know the device.
Nvml::Handle handle_of(Device& device) {
  const Nvml& nvml = Nvml::get();
  const std::string pci = gpu_pci_bus_id(device);
  Nvml::Handle handle = nullptr;
  if (!nvml.usable || pci.empty() || nvml.by_pci(pci.c_str(), &handle) != 0) return nullptr;
  return handle;
}

constexpr int kSmClock = 1, kMemoryClock = 2;

int clock_mhz(Nvml::Handle handle, int which) {
  const Nvml& nvml = Nvml::get();
  unsigned mhz = 0;
  if (handle == nullptr || nvml.clock == nullptr || nvml.clock(handle, which, &mhz) != 0) return 0;
  return static_cast<int>(mhz);
}

std::string throttle_text(unsigned long long reasons) {
  static constexpr struct {
    unsigned long long bit;
    const char* name;
  } kReasons[] = {{0x1, "idle"},        {0x2, "application clocks"}, {0x4, "power cap"},
                  {0x8, "hardware"},    {0x10, "sync boost"},        {0x20, "software thermal"},
                  {0x40, "hw thermal"}, {0x80, "power brake"},       {0x100, "display clocks"}};
  std::string text;
  for (const auto& reason : kReasons) {
    if (reasons & reason.bit) text += (text.empty() ? "" : ", ") + std::string(reason.name);
  }
  return text.empty() ? "none" : text;
}

// What moves while a GPU works; zeros and an empty text where it is not told.
struct Moving {
  double power_watts = 0, temperature_celsius = 0;
  std::string throttle_reasons;
  uint64_t memory_used_bytes = 0;
};

Moving read_moving(Nvml::Handle handle) {
  const Nvml& nvml = Nvml::get();
  Moving now;
  if (handle == nullptr) return now;
  unsigned value = 0;
  unsigned long long reasons = 0;
  Nvml::Memory memory{};
  if (nvml.power_milliwatts != nullptr && nvml.power_milliwatts(handle, &value) == 0) {
    now.power_watts = value * 1e-3;
  }
  if (nvml.temperature != nullptr && nvml.temperature(handle, 0, &value) == 0) {
    now.temperature_celsius = value;
  }
  if (nvml.throttle_reasons != nullptr && nvml.throttle_reasons(handle, &reasons) == 0) {
    now.throttle_reasons = throttle_text(reasons);
  }
  if (nvml.memory != nullptr && nvml.memory(handle, &memory) == 0) {
    now.memory_used_bytes = memory.used;
  }
  return now;
}

}  // namespace

GpuState read_gpu_state(Device& device) {
  GpuState state{.name = device.properties().name,
                 .memory_bytes = device.properties().memory_bytes};
  const Nvml& nvml = Nvml::get();
  const Nvml::Handle handle = handle_of(device);
  state.sm_clock_mhz_before = clock_mhz(handle, kSmClock);
  state.memory_clock_mhz_before = clock_mhz(handle, kMemoryClock);
  const Moving now = read_moving(handle);
  state.power_watts_before = now.power_watts;
  state.temperature_celsius_before = now.temperature_celsius;
  state.throttle_reasons_before = now.throttle_reasons;
  char text[96] = {};
  if (nvml.usable && nvml.driver_version != nullptr &&
      nvml.driver_version(text, sizeof text) == 0) {
    state.driver = text;
  }
  return state;
}

void finish_gpu_state(Device& device, GpuState* state) {
  const Nvml::Handle handle = handle_of(device);
  state->sm_clock_mhz_after = clock_mhz(handle, kSmClock);
  state->memory_clock_mhz_after = clock_mhz(handle, kMemoryClock);
  const Moving now = read_moving(handle);
  state->power_watts = now.power_watts;
  state->temperature_celsius = now.temperature_celsius;
  state->throttle_reasons = now.throttle_reasons;
  state->memory_used_bytes = now.memory_used_bytes;
}

std::optional<double> gpu_energy_joules(Device& device) {
  const Nvml& nvml = Nvml::get();
  const Nvml::Handle handle = handle_of(device);
  unsigned long long millijoules = 0;
  if (handle == nullptr || nvml.energy_millijoules == nullptr ||
      nvml.energy_millijoules(handle, &millijoules) != 0) {
    return std::nullopt;
  }
  return static_cast<double>(millijoules) * 1e-3;
}

Result<MachineLimits> measure_gpu(Device& device, const GpuReadOptions& options) {
  if (device.kind() != DeviceKind::kCuda) {
    return fail("only a CUDA device is measured here", device.properties().name);
  }
  const uint64_t bytes = std::min(options.buffer_bytes, device.properties().available_bytes / 4) /
                         kGpuReadGrain * kGpuReadGrain;
  // A model may have taken the memory: a smaller buffer will do, if it is larger than the cache.
  const uint64_t least = std::max<uint64_t>(8 * device.properties().l2_bytes, kGpuReadGrain);
  Result<Buffer> buffer = device.allocate(bytes);
  for (uint64_t less = bytes / 2; !buffer && less >= least; less /= 2) {
    buffer = device.allocate(less / kGpuReadGrain * kGpuReadGrain);
  }
  if (!buffer) return fail(std::move(buffer.error()));
  auto stream = device.make_stream();
  if (!stream) return fail(std::move(stream.error()));
  if (auto status = device.fill_zero(buffer->data(), buffer->bytes(), **stream); !status) {
    return fail(std::move(status.error()));
  }
  auto seconds = time_gpu_reads(*buffer, options.passes, **stream);
  if (!seconds) return fail(std::move(seconds.error()));
  std::vector<double> rates;
  for (const double s : *seconds) {
    rates.push_back(static_cast<double>(buffer->bytes()) / s * 1e-9);
  }
  const Summary summary = summarize(rates);
  MachineLimits limits;
  limits.cpu = make_cpu_device(1)->properties().name;
  limits.gpu = device.properties().name;
  limits.features = feature_names(cuda_features(device.properties().compute_capability));
  limits.num_threads = 1;
  limits.read_gb_s = summary.median;
  limits.read_gb_s_best = summary.max;
  limits.read_instruction = "ld.global.v4";
  limits.read_buffer_bytes = buffer->bytes();
  if (!options.products) return limits;
  auto products = time_gpu_products(GpuProducts::kBF16, device, options.passes, **stream);
  if (!products) return fail(std::move(products.error()));
  auto by_mma = time_gpu_products(GpuProducts::kBF16Mma, device, options.passes, **stream);
  if (!by_mma) return fail(std::move(by_mma.error()));
  limits.bf16_mma_gflops = median(*by_mma) * 1e-9;
  limits.bf16 = {limits.bf16_mma_gflops, "mma.sync m16n8k16 f32.bf16"};
  if (!products->empty()) limits.bf16 = {median(*products) * 1e-9, "wgmma m64n128k16 f32.bf16"};
  auto products_fp8 = time_gpu_products(GpuProducts::kFP8, device, options.passes, **stream);
  if (!products_fp8) return fail(std::move(products_fp8.error()));
  if (!products_fp8->empty()) {
    limits.fp8 = {median(*products_fp8) * 1e-9, "wgmma m64n256k32 f32.e5m2.e4m3"};
  }
  return limits;
}

}  // namespace moxie
