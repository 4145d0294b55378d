// The CPU device: anonymous pages (huge where granted), a thread pool of its own or another's.
#include "core/device_cpu.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "core/cpu_name.h"
#include "core/threads.h"

namespace moxie {
namespace {

uint64_t read_number(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  return (file >> value) ? value : 0;
}

// MemTotal and MemAvailable of /proc/meminfo, in bytes; where that cannot be read, what sysinfo(2)
// says, without the page cache.
void read_meminfo(uint64_t* total, uint64_t* available) {
  struct sysinfo info {};
  if (::sysinfo(&info) == 0) {
    *total = uint64_t{info.totalram} * info.mem_unit;
    *available = (uint64_t{info.freeram} + info.bufferram) * info.mem_unit;
  }
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    std::getline(file, unit);
    if (key == "MemTotal:") *total = kib * 1024;
    if (key == "MemAvailable:") *available = kib * 1024;
  }
}

class CpuStream final : public Stream {
 public:
  explicit CpuStream(ThreadPool* threads) { pool = threads; }
  Status synchronize() override { return {}; }
  Result<bool> is_idle() override { return true; }
};

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int num_threads)
      : CpuDevice(std::make_unique<ThreadPool>(num_threads), nullptr) {}
  CpuDevice(int num_threads, std::vector<UsableCore> cores)
      : CpuDevice(std::make_unique<ThreadPool>(num_threads, std::move(cores)), nullptr) {}
  explicit CpuDevice(ThreadPool& threads) : CpuDevice(nullptr, &threads) {}
  CpuDevice(std::unique_ptr<ThreadPool> own, ThreadPool* shared)
      : own_(std::move(own)), pool_(shared != nullptr ? *shared : *own_) {
    std::ifstream cpuinfo("/proc/cpuinfo");
    properties_.name = cpu_name_of(cpuinfo);
    properties_.num_units = pool_.num_threads();
    read_meminfo(&properties_.memory_bytes, &properties_.available_bytes);
    // A container's limit (cgroup v2) may be lower than the machine's memory.
    const uint64_t limit = read_number("/sys/fs/cgroup/memory.max");
    if (limit > 0) {
      const uint64_t used = read_number("/sys/fs/cgroup/memory.current");
      properties_.memory_bytes = std::min(properties_.memory_bytes, limit);
      properties_.available_bytes =
          std::min(properties_.available_bytes, limit > used ? limit - used : 0);
    }
  }
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  const DeviceProperties& properties() const override { return properties_; }

  Result<Buffer> allocate(uint64_t bytes) override {
    if (bytes == 0) return Buffer(this, nullptr, 0);
    void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) {
      return fail("cannot allocate " + std::to_string(bytes) + " bytes", "CPU memory",
                  "a smaller model, context or number of streams; `moxie plan` shows the parts");
    }
    if (bytes >= (uint64_t{4} << 20)) ::madvise(data, bytes, MADV_HUGEPAGE);
    return Buffer(this, static_cast<std::byte*>(data), bytes);
  }
  Result<std::unique_ptr<Stream>> make_stream() override {
    return std::unique_ptr<Stream>(std::make_unique<CpuStream>(&pool_));
  }
  Status copy_from_host(void* target, const void* source, uint64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, bytes);
    return {};
  }
  Status copy_to_host(void* target, const void* source, uint64_t bytes, Stream&) override {
    if (bytes > 0) std::memcpy(target, source, bytes);
    return {};
  }
  Status fill_zero(void* target, uint64_t bytes, Stream&) override {
    if (bytes > 0) std::memset(target, 0, bytes);
    return {};
  }

 private:
  void release(std::byte* data, uint64_t bytes) override {
    if (data != nullptr) ::munmap(data, bytes);
  }
  const std::unique_ptr<ThreadPool> own_;  // null: another device's
  ThreadPool& pool_;
  DeviceProperties properties_;
};

}  // namespace

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    reset();
    device_ = std::exchange(other.device_, nullptr);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    is_host_ = other.is_host_;
  }
  return *this;
}

void Buffer::reset() {
  if (device_ != nullptr && is_host_) device_->release_host(data_, bytes_);
  if (device_ != nullptr && !is_host_) device_->release(data_, bytes_);
  device_ = nullptr;
  data_ = nullptr;
  bytes_ = 0;
}

Result<std::unique_ptr<Graph>> Device::capture(Stream&, const std::function<void()>&) {
  return fail("this device records no graphs", properties().name, "--graphs off");
}

std::unique_ptr<Device> make_cpu_device(int num_threads) {
  return std::make_unique<CpuDevice>(num_threads);
}

std::unique_ptr<Device> make_cpu_device(int num_threads, std::vector<UsableCore> cores) {
  return std::make_unique<CpuDevice>(num_threads, std::move(cores));
}

std::unique_ptr<Device> make_cpu_device(ThreadPool& threads) {
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace moxie
