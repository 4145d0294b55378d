// A device that calls itself CUDA and keeps everything in memory of the host: loads for a GPU run
// on it piece by piece, and tests read what they made.
#pragma once

#include <cstdlib>
#include <cstring>

#include "core/device.h"

namespace moxie {

/// Memory starts poisoned (0xEE).
class HostCudaDevice final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const DeviceProperties& properties() const override { return properties_; }
  Result<Buffer> allocate(uint64_t bytes) override {
    auto* data = static_cast<std::byte*>(std::aligned_alloc(256, round_up<uint64_t>(bytes, 256)));
    std::memset(data, 0xEE, bytes);
    num_allocated += bytes;
    return Buffer(this, data, bytes);
  }
  Result<std::unique_ptr<Stream>> make_stream() override {
    class HostStream final : public Stream {
     public:
      Status synchronize() override { return {}; }
      Result<bool> is_idle() override { return true; }
    };
    return std::unique_ptr<Stream>(std::make_unique<HostStream>());
  }
  Status copy_from_host(void* target, const void* source, uint64_t bytes, Stream&) override {
    std::memcpy(target, source, bytes);
    return {};
  }
  Status copy_to_host(void* target, const void* source, uint64_t bytes, Stream&) override {
    std::memcpy(target, source, bytes);
    return {};
  }
  Status fill_zero(void* target, uint64_t bytes, Stream&) override {
    std::memset(target, 0, bytes);
    return {};
  }
  uint64_t num_allocated = 0;  ///< bytes not given back

 private:
  void release(std::byte* data, uint64_t bytes) override {
    num_allocated -= bytes;
    std::free(data);
  }
  DeviceProperties properties_{.name = "host memory", .available_bytes = uint64_t{8} << 30};
};

}  // namespace moxie
