// Plans for a GPU: the device's layout and what it holds besides, what fits and what is said of
// what does not.
#include "engine/plan.h"

#include <gtest/gtest.h>

namespace moxie {
namespace {

const KernelChooser kGpuKernels(DeviceKind::kCuda, cuda_features(90), {});

TEST(GpuPlan, SumsItsPartsAndCountsTheContext) {
  auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  ASSERT_TRUE(checkpoint.has_value());
  const uint64_t available = uint64_t{139} << 30;
  const MemoryPlan plan = plan_memory(**checkpoint, {.load = {.mxfp4_layers = {true, true, true}}},
                                      available, kGpuKernels);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.max_model_len, kDefaultContext);
  uint64_t sum = 0;
  for (const PlanPart& part : plan.parts) sum += part.bytes;
  EXPECT_EQ(sum, plan.total_bytes);
  EXPECT_EQ(plan.parts.back().name, "CUDA context and code");
  EXPECT_EQ(plan.parts.back().bytes, kCudaContextBytes);
  // What is free was taken with the context made.
  EXPECT_EQ(plan.available_bytes, available + kCudaContextBytes);
  const uint64_t weights =
      (*checkpoint)
          ->packed_bytes({.mxfp4_layers = {true, true, true}, .device = DeviceKind::kCuda});
  EXPECT_EQ(plan.parts.front().bytes, weights);
  EXPECT_NEAR(static_cast<double>(weights), 63.1e9, 0.8e9);
}

TEST(GpuPlan, RefusesWhatDoesNotFitAndSaysWhatWould) {
  auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  ASSERT_TRUE(checkpoint.has_value());
  const MemoryPlan none = plan_memory(**checkpoint, {}, uint64_t{31} << 30, kGpuKernels);
  EXPECT_FALSE(none.fits);
  EXPECT_NE(none.advice.find("gpt-oss-20b"), std::string::npos) << none.advice;
  const MemoryPlan roomy = plan_memory(**checkpoint, {}, uint64_t{100} << 30, kGpuKernels);
  // The context shrinks to the memory there is, down to the byte.
  const uint64_t enough = roomy.total_bytes - kCudaContextBytes;
  EXPECT_EQ(plan_memory(**checkpoint, {}, enough, kGpuKernels).max_model_len, roomy.max_model_len);
  const MemoryPlan tight = plan_memory(**checkpoint, {}, enough - 1, kGpuKernels);
  EXPECT_TRUE(tight.fits);
  EXPECT_LT(tight.max_model_len, roomy.max_model_len);
  const MemoryPlan fixed =
      plan_memory(**checkpoint, {.max_model_len = roomy.max_model_len}, enough - 1, kGpuKernels);
  EXPECT_FALSE(fixed.fits);
  EXPECT_NE(fixed.advice.find("--max-model-len"), std::string::npos) << fixed.advice;
}

TEST(GpuPlan, AutoCacheIsBf16) {
  auto checkpoint = open_checkpoint("embedded");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  const auto kv_dtype = choose_kv_dtype("auto", (*checkpoint)->config(), kGpuKernels, 1024, 1);
  ASSERT_TRUE(kv_dtype.has_value());
  EXPECT_EQ(*kv_dtype, DType::kBF16);
}

}  // namespace
}  // namespace moxie
