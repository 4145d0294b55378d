// Replaces CUPTI in builds without CUDA or without CUPTI's header: kernels cannot be recorded.
#include "lab/activity.h"

namespace moxie {

Result<std::unique_ptr<ActivityRecorder>> make_cupti_recorder(const std::string&) {
  return fail("this build has no code for CUPTI", "profile",
              "build it where CUDA's toolkit has cupti.h (package nvidia-cuda-cupti)");
}

}  // namespace moxie
