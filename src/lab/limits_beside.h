// The machine's limits for each sample of a test. On a CPU, where other load moves the limits
// within seconds, they are measured before and after each sample, unless samples are so short that
// measuring would take most of the run. On a GPU other load moves the rate at which the host starts
// kernels: it is measured likewise where it may bound the test. Otherwise the limits are those of
// the whole run.
#pragma once

#include "lab/machine.h"

namespace moxie {

class LimitsBeside {
 public:
  /// Both are borrowed. `measures_launches`: if the device is a GPU, the host may bound the test.
  LimitsBeside(Device& device, const MachineLimits& of_run, bool measures_launches = false)
      : device_(device), of_run_(of_run), last_(of_run), measures_launches_(measures_launches) {}
  /// The limits for the sample that has just ended, which took `seconds`. The first call, behind
  /// the warm-up, measures what lies before the first sample.
  Result<MachineLimits> of(double seconds);

 private:
  bool is_due() const;
  Result<MachineLimits> measure() const;

  Device& device_;
  const MachineLimits& of_run_;
  MachineLimits last_;
  const bool measures_launches_;
  double since_last_ = 0;
};

}  // namespace moxie
