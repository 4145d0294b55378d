// One asynchronous copy for all lists.
#include "engine/packed_copy.h"

#include <cstring>

namespace moxie {

Result<PackedCopy> PackedCopy::create(Device& device, uint64_t bytes) {
  PackedCopy copy;
  copy.device_ = &device;
  if (bytes == 0) return copy;
  auto memory = device.allocate(bytes);
  if (!memory) return fail(std::move(memory.error()));
  copy.memory_ = std::move(*memory);
  if (device.kind() == DeviceKind::kCpu) return copy;
  auto staging = device.allocate_host(kSlots * bytes);
  if (!staging) return fail(std::move(staging.error()));
  copy.staging_ = std::move(*staging);
  return copy;
}

Status PackedCopy::begin(Stream& stream) {
  used_ = 0;
  if (device_->kind() == DeviceKind::kCpu) return {};
  if (slot_ == kSlots) {
    if (auto status = stream.synchronize(); !status) return status;
    slot_ = 0;
  }
  host_ = staging_.data() + static_cast<uint64_t>(slot_++) * memory_.bytes();
  return {};
}

int32_t* PackedCopy::reserve(uint64_t count) {
  CHECK(used_ + padded(count) <= memory_.bytes(), "lists larger than their limits");
  auto* place = reinterpret_cast<int32_t*>(memory_.data() + used_);
  used_ += padded(count);
  return place;
}

const int32_t* PackedCopy::put(std::span<const int32_t> list) {
  if (device_->kind() == DeviceKind::kCpu) return list.data();
  std::byte* at = host_ + used_;
  const int32_t* place = reserve(list.size());
  if (!list.empty()) std::memcpy(at, list.data(), list.size_bytes());
  return place;
}

Status PackedCopy::finish(Stream& stream) {
  if (device_->kind() == DeviceKind::kCpu || used_ == 0) return {};
  return device_->copy_from_host(memory_.data(), host_, used_, stream);
}

}  // namespace moxie
