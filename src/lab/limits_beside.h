// The machine's limits for each sample of a test. On a CPU, where other load moves the limits
// within seconds, they are measured before and after each sample, unless samples are so short that
// measuring would take most of the run. Otherwise they are the limits of the whole run.
#pragma once

#include "lab/machine.h"

namespace moxie {

class LimitsBeside {
 public:
  /// Both are borrowed.
  LimitsBeside(Device& device, const MachineLimits& of_run)
      : device_(device), of_run_(of_run), last_(of_run) {}
  /// The limits for the sample that has just ended, which took `seconds`.
  Result<MachineLimits> of(double seconds);

 private:
  Device& device_;
  const MachineLimits& of_run_;
  MachineLimits last_;
  double since_last_ = 0;
};

}  // namespace moxie
