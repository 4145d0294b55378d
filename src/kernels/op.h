// An operation: whatever has a table of rows. The steps of a pass are operations; an operation need
// not be a step.
//
// An operation specialises Op beside its Params, and ops.cpp lists it. Tables, switches, counts and
// reports take it from there, tests and benchmarks from its tester (testing/op_testers.h).
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kernels/step.h"

namespace moxie {

template <typename P>
struct Row;

/// An operation without its types. Operations differ by address: each has one instance,
/// Op<P>::info.
struct OpInfo {
  const char* name;  ///< "qkv"; the names of its rows begin with it
};

/// Specialised beside the Params:
///   static constexpr OpInfo info;
///   static std::span<const Row<P>> rows();
///   static Work work(const P&);   the least bytes and operations of a launch
template <typename P>
struct Op;

/// Bytes and operations by operation, in the order of first use.
class WorkByOp {
 public:
  Work& operator[](const OpInfo& op) {
    for (auto& [known, work] : works_)
      if (known == &op) return work;
    return works_.emplace_back(&op, Work{}).second;
  }
  void scale(double factor) {
    for (auto& [op, work] : works_) work = {work.bytes * factor, work.flops * factor};
  }
  Work total() const {
    Work sum;
    for (const auto& [op, work] : works_) sum += work;
    return sum;
  }
  auto begin() const { return works_.begin(); }
  auto end() const { return works_.end(); }

 private:
  std::vector<std::pair<const OpInfo*, Work>> works_;
};

}  // namespace moxie
