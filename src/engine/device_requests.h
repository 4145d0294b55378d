// Requests to sample with the arrays they point at, copied to the memory of the device, and their
// answers back. For CUDA; CPU rows read the host's arrays themselves.
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

  /// Copies the requests and what they point at, in stream order. Memory grows when it must, which
  /// waits for the stream. Nothing placed before may still be on its way.
  Status place(std::span<const SampleRequest> requests, Stream& stream);
  /// The requests as the device reads them.
  const SampleRequest* requests() const { return memory_.as<SampleRequest>(); }
  /// The same, one by one, for the host: their pointers are the device's.
  std::span<const SampleRequest> placed() const { return placed_; }
  /// Room on the device for as many answers.
  SampleAnswer* answers() const {
    return reinterpret_cast<SampleAnswer*>(memory_.data() + answers_at_);
  }
  /// Waits for the stream and reads the answers.
  Status read(std::span<SampleAnswer> answers, Stream& stream);

 private:
  Device& device_;
  int32_t vocab_words_;  // of an allowed mask
  Buffer memory_, staging_;
  uint64_t answers_at_ = 0;
  std::vector<SampleRequest> placed_;
};

}  // namespace moxie
