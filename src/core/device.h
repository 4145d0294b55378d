// Devices: where weights, caches and activations live and where steps run. CPU and CUDA.
//
// A Buffer owns memory of one device. An Arena hands out pieces of one buffer and never frees them
// singly. A Stream is a queue of work that is done in order. Steps take a Stream and neither
// allocate nor synchronise. On the CPU a stream runs work at once, on its thread pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/base.h"

namespace moxie {

class ThreadPool;

enum class DeviceKind : uint8_t { kCpu, kCuda };

/// A queue of work on one device, done in order.
class Stream {
 public:
  virtual ~Stream() = default;
  /// Waits until all work given to this stream is done. Reports faults of asynchronous kernels.
  virtual Status synchronize() = 0;
  /// Whether all work given to this stream is done. Does not wait; reports faults as synchronize().
  virtual Result<bool> is_idle() = 0;
  /// CPU: the pool that runs steps. Null on CUDA.
  ThreadPool* pool = nullptr;
  /// CUDA: the cudaStream_t. Null on the CPU.
  void* native = nullptr;
};

class Device;

/// Work recorded once from a stream, which can be launched again as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual Status launch(Stream& stream) = 0;
};

/// Owns `bytes` of one device's memory, or of host memory that the device can access, aligned to at
/// least 256 bytes. Movable.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device* device, std::byte* data, uint64_t bytes, bool is_host = false)
      : device_(device), data_(data), bytes_(bytes), is_host_(is_host) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { reset(); }

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  void reset();

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  bool is_host_ = false;
};

struct DeviceProperties {
  std::string name;              ///< "Intel(R) Xeon(R) ...", "NVIDIA H200"
  uint64_t memory_bytes = 0;     ///< total
  uint64_t available_bytes = 0;  ///< free now (CPU: MemAvailable, or the cgroup's limit if lower)
  int num_units = 0;             ///< cores this process may use, or SMs
  int compute_capability = 0;    ///< CUDA: 90 for sm_90; 0 on the CPU
  double memory_gb_s = 0;        ///< CUDA: by clock and bus width, 1e9 bytes/s; 0: not known
  double clock_ghz = 0;          ///< CUDA: the SMs' greatest clock
  uint64_t shared_bytes = 0;     ///< CUDA: opt-in shared memory of a block
  uint64_t l2_bytes = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual const DeviceProperties& properties() const = 0;
  /// Uninitialised memory. The error states the size asked for and the free memory.
  virtual Result<Buffer> allocate(uint64_t bytes) = 0;
  /// Uninitialised host memory for asynchronous copies and for direct writes by kernels (CUDA:
  /// pinned and mapped at the same address). The default is for devices whose memory is the host's.
  virtual Result<Buffer> allocate_host(uint64_t bytes) { return allocate(bytes); }
  virtual Result<std::unique_ptr<Stream>> make_stream() = 0;
  /// Ordered on `stream`; host memory must live until the stream has done the copy.
  virtual Status copy_from_host(void* target, const void* source, uint64_t bytes,
                                Stream& stream) = 0;
  virtual Status copy_to_host(void* target, const void* source, uint64_t bytes, Stream& stream) = 0;
  /// A copy within this device's memory. The default is for devices whose memory is the host's.
  virtual Status copy_on_device(void* target, const void* source, uint64_t bytes, Stream& stream) {
    return copy_from_host(target, source, bytes, stream);
  }
  virtual Status fill_zero(void* target, uint64_t bytes, Stream& stream) = 0;
  /// Whether capture() works.
  virtual bool has_graphs() const { return false; }
  /// Records the work that `launches` gives to `stream`, without running it. `launches` may launch
  /// kernels and copy on the device. `stream` may be busy, but not capturing.
  virtual Result<std::unique_ptr<Graph>> capture(Stream& stream,
                                                 const std::function<void()>& launches);

 private:
  friend class Buffer;
  virtual void release(std::byte* data, uint64_t bytes) = 0;
  virtual void release_host(std::byte* data, uint64_t bytes) { release(data, bytes); }
};

/// A CPU device with `num_threads` workers (0: one a usable core).
std::unique_ptr<Device> make_cpu_device(int num_threads = 0);

/// CUDA device `index`. Fails where the build has no CUDA, no driver answers, or no such device
/// exists, saying which. Defined by the CUDA build or by a stand-in that always fails.
Result<std::unique_ptr<Device>> make_cuda_device(int index = 0);
/// Number of usable CUDA devices; 0 with the reason in `why` where there is none.
int num_cuda_devices(std::string* why = nullptr);
/// Whether an NVIDIA driver of any version answers. A machine without one lacks nothing.
bool has_cuda_driver();

/// Hands out pieces of one buffer, each aligned to 256 bytes. Nothing is freed singly.
class Arena {
 public:
  Arena() = default;
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}
  /// CHECKs that the piece fits: sizes are planned before.
  std::byte* take(uint64_t bytes) {
    const uint64_t at = round_up<uint64_t>(used_, 256);
    CHECK(at + bytes <= buffer_.bytes(), "arena of " + std::to_string(buffer_.bytes()) +
                                             " bytes, " + std::to_string(at) + " used, asked for " +
                                             std::to_string(bytes));
    used_ = at + bytes;
    return buffer_.data() + at;
  }
  template <typename T>
  T* take_array(uint64_t count) {
    return reinterpret_cast<T*>(take(count * sizeof(T)));
  }
  uint64_t used() const { return used_; }
  void rewind() { used_ = 0; }
  /// Gives up the buffer. Pieces handed out stay valid as long as the buffer lives.
  Buffer release() { return std::move(buffer_); }
  const Buffer& buffer() const { return buffer_; }

 private:
  Buffer buffer_;
  uint64_t used_ = 0;
};

}  // namespace moxie
