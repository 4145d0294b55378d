// Lays out a row's scratch memory: the same few lines give the size to plan (without a base) and
// the pieces to use (with the launch's workspace as base), so that the two cannot differ.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base.h"

namespace moxie {

/// Hands out pieces of the workspace in order, each aligned to 64 bytes.
class Scratch {
 public:
  explicit Scratch(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    const uint64_t at = bytes_;
    bytes_ = round_up<uint64_t>(at + static_cast<uint64_t>(count) * sizeof(T), 64);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  uint64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  uint64_t bytes_ = 0;
};

}  // namespace moxie
