// What tests of CUDA rows share: the device, uploads that live as long as the test, and outputs
// that are poisoned before and guarded behind.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/features.h"
#include "kernels/step.h"

namespace moxie {

/// An array on the device with kGuardBytes behind it; both start as 0xFF bytes (F32: NaN).
struct DeviceArray {
  static constexpr uint64_t kGuardBytes = 4096;
  Buffer buffer;
  uint64_t bytes = 0;
};

class CudaTest : public ::testing::Test {
 protected:
  /// The device is shared by all tests of the process: making one takes a while.
  static Device& device() {
    static const std::unique_ptr<Device> shared = [] {
      auto made = make_cuda_device(0);
      CHECK(made.has_value(), made ? "" : made.error().message());
      return std::move(*made);
    }();
    return *shared;
  }
  static Features features() { return cuda_features(device().properties().compute_capability); }

  void SetUp() override { stream_ = take(device().make_stream()); }

  Launch launch() {
    return {.device = DeviceKind::kCuda, .stream = stream_.get(), .workspace = nullptr};
  }
  Stream& stream() { return *stream_; }

  /// A poisoned array of `count` T.
  template <typename T>
  DeviceArray poisoned(uint64_t count) {
    DeviceArray array;
    array.bytes = count * sizeof(T);
    const std::vector<uint8_t> poison(array.bytes + DeviceArray::kGuardBytes, 0xFF);
    array.buffer = take(device().allocate(poison.size()));
    done(device().copy_from_host(array.buffer.data(), poison.data(), poison.size(), *stream_));
    done(stream_->synchronize());
    return array;
  }
  /// The device's copy of `values`; lives until the test ends.
  template <typename T>
  T* upload(const std::vector<T>& values) {
    uploads_.push_back(take(device().allocate(std::max<uint64_t>(values.size() * sizeof(T), 1))));
    done(device().copy_from_host(uploads_.back().data(), values.data(), values.size() * sizeof(T),
                                 *stream_));
    done(stream_->synchronize());
    return uploads_.back().as<T>();
  }
  /// Waits for the stream, expects the guard behind the array untouched, and returns the array.
  template <typename T>
  std::vector<T> download(const DeviceArray& array) {
    done(stream_->synchronize());
    std::vector<uint8_t> bytes(array.bytes + DeviceArray::kGuardBytes);
    done(device().copy_to_host(bytes.data(), array.buffer.data(), bytes.size(), *stream_));
    done(stream_->synchronize());
    uint64_t num_touched = 0;
    for (uint64_t i = array.bytes; i < bytes.size(); ++i) num_touched += bytes[i] != 0xFF;
    EXPECT_EQ(num_touched, 0u) << "bytes written behind the array";
    std::vector<T> values(array.bytes / sizeof(T));
    std::memcpy(values.data(), bytes.data(), array.bytes);
    return values;
  }

  /// Frees what was uploaded so far, for tests of many cases.
  void free_uploads() { uploads_.clear(); }

  template <typename T>
  static T take(Result<T> result) {
    CHECK(result.has_value(), result ? "" : result.error().message());
    return std::move(*result);
  }
  static void done(const Status& status) {
    CHECK(status.has_value(), status ? "" : status.error().message());
  }

 private:
  std::unique_ptr<Stream> stream_;
  std::vector<Buffer> uploads_;
};

inline std::vector<float> normal_values(uint64_t count, float scale, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

}  // namespace moxie
