// A fault of a file that holds weights: the file, the tensor, what was found and what was expected.
// Readers collect all faults of a file, so that people can mend them all at once.
#pragma once

#include <string>
#include <vector>

namespace moxie {

/// One fault of a checkpoint's files.
struct Fault {
  std::string file, tensor, found, expected;
  std::string message() const;  ///< "FILE: TENSOR: found X, expected Y"
};

/// The faults of one file or checkpoint. A hostile file could name millions: after kMaxFaults only
/// one more is kept, which says so.
class FaultList {
 public:
  static constexpr size_t kMaxFaults = 500;
  void add(Fault fault);
  const std::vector<Fault>& all() const { return faults_; }
  bool empty() const { return faults_.empty(); }

 private:
  std::vector<Fault> faults_;
};

}  // namespace moxie
