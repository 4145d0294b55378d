// Copies requests to `sample`, with the arrays they point at, to device memory, and the answers
// back. For CUDA only: CPU rows read the host's arrays.
#pragma once

#include <span>
#include <vector>

#include "core/device.h"
#include "kernels/sample/sample.h"

namespace moxie {

class DeviceRequests {
 public:
  DeviceRequests(Device& device, int32_t vocab)
      : device_(device), vocab_words_(ceil_div(vocab, 32)) {}

  /// Makes room for so many requests without arrays. Later growth frees memory, which waits for all
  /// work on the device, that of other ranks there included.
  Status reserve(size_t num_requests);
  /// Copies the requests and their arrays, in stream order. Growing the memory waits for the
  /// stream. Copies and launches of an earlier place() must be done.
  Status place(std::span<const SampleRequest> requests, Stream& stream);
  /// The requests, as a device pointer.
  const SampleRequest* requests() const { return memory_.as<SampleRequest>(); }
  /// The same requests for the host to read; their pointers are device pointers.
  std::span<const SampleRequest> placed() const { return placed_; }
  /// Device memory for one answer a request.
  SampleAnswer* answers() const {
    return reinterpret_cast<SampleAnswer*>(memory_.data() + answers_at_);
  }
  /// Waits for the stream and reads the answers.
  Status read(std::span<SampleAnswer> answers, Stream& stream);

 private:
  Status grow(uint64_t bytes);
  Device& device_;
  int32_t vocab_words_;  // words of an allowed mask
  Buffer memory_, staging_;
  uint64_t answers_at_ = 0;
  std::vector<SampleRequest> placed_;
};

}  // namespace moxie
