// Without a GPU, its link and its launches cannot be measured, and that is said. With one, launches
// have a rate, and samples that the host may bound have it beside them.
#include "lab/machine_cuda.h"

#include <gtest/gtest.h>

#include "lab/limits_beside.h"

namespace moxie {
namespace {

TEST(HostToDevice, OnlyACudaDeviceHasALink) {
  const auto cpu = make_cpu_device(1);
  const auto rate = measure_h2d_gb_s(*cpu);
  ASSERT_FALSE(rate.has_value());
  EXPECT_NE(rate.error().message().find("only a CUDA device"), std::string::npos);
}

TEST(Launches, OnlyACudaDeviceHasThem) {
  const auto cpu = make_cpu_device(1);
  const auto rate = measure_launches_s(*cpu);
  ASSERT_FALSE(rate.has_value());
  EXPECT_NE(rate.error().message().find("only a CUDA device"), std::string::npos);
}

TEST(Launches, AreStartedAtAPlausibleRate) {
  const auto device = make_cuda_device(0);
  if (!device) GTEST_SKIP() << device.error().message();
  for (int i = 0; i < 3; ++i) {
    const auto rate = measure_launches_s(**device);
    ASSERT_TRUE(rate.has_value()) << rate.error().message();
    EXPECT_GT(*rate, 1e4);
    EXPECT_LT(*rate, 1e7);
  }
}

TEST(Launches, AreMeasuredBesideSamplesWhereAsked) {
  const auto device = make_cuda_device(0);
  if (!device) GTEST_SKIP() << device.error().message();
  const MachineLimits of_run{.read_gb_s = 7};
  const auto rate = [](LimitsBeside& beside, double seconds) {
    const auto limits = beside.of(seconds);
    EXPECT_TRUE(limits.has_value() && limits->read_gb_s == 7);
    return limits ? limits->launches_s : -1;
  };
  LimitsBeside not_asked(**device, of_run), asked(**device, of_run, /*measures_launches=*/true);
  EXPECT_EQ(rate(not_asked, 1), 0);
  const double first = rate(asked, 0.001);
  EXPECT_GT(first, 0);
  EXPECT_EQ(rate(asked, 0.001), first) << "too soon to measure again";
  EXPECT_GT(rate(asked, 1), 0);
}

TEST(Launches, AreNotMeasuredBesideSamplesOnACpu) {
  const auto cpu = make_cpu_device(1);
  const MachineLimits of_run{.read_gb_s = 7};
  LimitsBeside beside(*cpu, of_run, /*measures_launches=*/true);
  const auto limits = beside.of(0.001);
  ASSERT_TRUE(limits.has_value());
  EXPECT_EQ(limits->launches_s, 0);
}

}  // namespace
}  // namespace moxie
