// Without a GPU, its link cannot be measured, and that is said.
#include "lab/machine_cuda.h"

#include <gtest/gtest.h>

namespace moxie {
namespace {

TEST(HostToDevice, OnlyACudaDeviceHasALink) {
  const auto cpu = make_cpu_device(1);
  const auto rate = measure_h2d_gb_s(*cpu);
  ASSERT_FALSE(rate.has_value());
  EXPECT_NE(rate.error().message().find("only a CUDA device"), std::string::npos);
}

}  // namespace
}  // namespace moxie
