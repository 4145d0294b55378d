// What the ranks of a model say to each other within a pass: each gives an array, and sees those of
// all. Between threads of a process nothing is copied.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base.h"

namespace moxie {

/// kThreads: ranks are threads of a process.
enum class LinkKind : uint8_t { kNone, kThreads };

/// An array of another rank, or one's own.
struct RankArray {
  const float* data = nullptr;
  int64_t count = 0;
};

class RankLink {
 public:
  virtual ~RankLink() = default;
  virtual LinkKind kind() const = 0;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  /// Gives `mine`, waits for the others and returns all ranks' arrays by rank. They stay as they
  /// are until the next exchange: a rank may write its own again only after that. Empty after a
  /// fault.
  virtual std::span<const RankArray> exchange(RankArray mine) = 0;
  /// Ends all exchanges, those of other ranks too. The first fault stays.
  virtual void set_fault(const std::string& text) = 0;
  /// The fault, if there was one.
  virtual Status status() const = 0;
};

/// Links of `size` ranks that are threads of this process. A rank that the others have awaited for
/// `patience` is a fault, which names it.
std::vector<std::unique_ptr<RankLink>> make_thread_links(
    int32_t size, std::chrono::milliseconds patience = std::chrono::seconds(10));

}  // namespace moxie
