// The limits beside the samples of a test: on a CPU, where neighbours move them within seconds,
// those measured before and behind each, unless samples are so short that measuring would be most
// of the run; else those of the run.
#pragma once

#include "lab/machine.h"

namespace moxie {

class LimitsBeside {
 public:
  /// Both are borrowed.
  LimitsBeside(Device& device, const MachineLimits& of_run)
      : device_(device), of_run_(of_run), last_(of_run) {}
  /// Of the sample that has just taken so long.
  Result<MachineLimits> of(double seconds);

 private:
  Device& device_;
  const MachineLimits& of_run_;
  MachineLimits last_;
  double since_last_ = 0;
};

}  // namespace moxie
