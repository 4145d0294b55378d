// Which code of a build a device runs.
#include "core/cuda_archs.h"

#include <gtest/gtest.h>

namespace moxie::testing {
namespace {

constexpr const char* kAll = "80 90a 100a 120f";

TEST(CudaArchs, LaterDevicesOfOneFamilyRunPlainCode) {
  for (const int32_t capability : {80, 86, 87, 89}) EXPECT_EQ(code_for(capability, kAll), 80);
  EXPECT_EQ(code_for(89, "80 86 90a"), 86);
  EXPECT_EQ(code_for(80, "86 90a"), 0);
  EXPECT_EQ(code_for(75, kAll), 0);
}

TEST(CudaArchs, CodeWithALetterRunsWhereItIsFor) {
  EXPECT_EQ(code_for(90, kAll), 90);
  EXPECT_EQ(code_for(100, kAll), 100);
  EXPECT_EQ(code_for(103, kAll), 0);
  EXPECT_EQ(code_for(120, kAll), 120);
  EXPECT_EQ(code_for(121, kAll), 120);
  EXPECT_EQ(code_for(90, "80"), 0);
}

TEST(CudaArchs, IntermediateCodeRunsEverywhereLaterUnlessThereIsRealCode) {
  EXPECT_EQ(code_for(90, "80-virtual"), 80);
  EXPECT_EQ(code_for(121, "80-virtual"), 80);
  EXPECT_EQ(code_for(75, "80-virtual"), 0);
  EXPECT_EQ(code_for(90, "80-virtual 90a"), 90);
}

TEST(CudaArchs, ABuildWithoutCodeRunsNowhere) {
  EXPECT_EQ(code_for(90, ""), 0);
  EXPECT_EQ(code_for(90, "x"), 0);
}

}  // namespace
}  // namespace moxie::testing
