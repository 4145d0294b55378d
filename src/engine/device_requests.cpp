// Lays requests, answers and lists behind one another in one buffer.
#include "engine/device_requests.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace moxie {
namespace {

constexpr uint64_t kAlign = 64;
constexpr uint64_t kFirstBytes = uint64_t{64} << 10;

// Visits each array that a request points at, with its number of bytes.
template <typename Visit>
void for_each_list(SampleRequest& r, int32_t vocab_words, Visit&& visit) {
  visit(r.history_ids, r.num_history);
  visit(r.history_counts, r.num_history);
  visit(r.bias_ids, r.num_bias);
  visit(r.bias_values, r.num_bias);
  visit(r.allowed_mask, r.allowed_mask == nullptr ? 0 : vocab_words);
}

}  // namespace

Status DeviceRequests::reserve(size_t num_requests) {
  return grow(num_requests * (sizeof(SampleRequest) + sizeof(SampleAnswer)) + 2 * kAlign);
}

Status DeviceRequests::grow(uint64_t bytes) {
  const uint64_t room = std::max(kFirstBytes, 2 * bytes);
  auto memory = device_.allocate(room);
  if (!memory) return fail(std::move(memory.error()));
  auto staging = device_.allocate_host(room);
  if (!staging) return fail(std::move(staging.error()));
  memory_ = std::move(*memory);
  staging_ = std::move(*staging);
  return {};
}

Status DeviceRequests::place(std::span<const SampleRequest> requests, Stream& stream) {
  const uint64_t requests_bytes = round_up<uint64_t>(requests.size_bytes(), kAlign);
  answers_at_ = requests_bytes;
  uint64_t bytes =
      requests_bytes + round_up<uint64_t>(requests.size() * sizeof(SampleAnswer), kAlign);
  const uint64_t lists_at = bytes;
  placed_.assign(requests.begin(), requests.end());
  for (SampleRequest& request : placed_) {
    for_each_list(request, vocab_words_, [&](const auto* list, int32_t count) {
      bytes += round_up<uint64_t>(sizeof(*list) * static_cast<uint64_t>(count), kAlign);
    });
  }
  if (bytes > memory_.bytes()) {
    if (auto status = stream.synchronize(); !status) return status;
    if (auto status = grow(bytes); !status) return status;
  }
  uint64_t at = lists_at;
  for (SampleRequest& request : placed_) {
    for_each_list(request, vocab_words_, [&](auto*& list, int32_t count) {
      const uint64_t list_bytes = sizeof(*list) * static_cast<uint64_t>(count);
      if (count == 0) {
        list = nullptr;
        return;
      }
      std::memcpy(staging_.data() + at, list, list_bytes);
      list = reinterpret_cast<std::remove_reference_t<decltype(list)>>(memory_.data() + at);
      at += round_up<uint64_t>(list_bytes, kAlign);
    });
  }
  std::memcpy(staging_.data(), placed_.data(), requests.size_bytes());
  return device_.copy_from_host(memory_.data(), staging_.data(), at, stream);
}

Status DeviceRequests::read(std::span<SampleAnswer> answers, Stream& stream) {
  CHECK(answers.size() == placed_.size());
  std::byte* staging = staging_.data() + answers_at_;
  if (auto status = device_.copy_to_host(staging, this->answers(), answers.size_bytes(), stream);
      !status) {
    return status;
  }
  if (auto status = stream.synchronize(); !status) return status;
  std::memcpy(answers.data(), staging, answers.size_bytes());
  return {};
}

}  // namespace moxie
