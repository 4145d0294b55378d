// Plans for a GPU: the device's layout and what it holds besides, what fits and what is said of
// what does not.
#include "engine/plan.h"

#include <gtest/gtest.h>

#include "kernels/rates.h"
#include "model/gpt_oss.h"
#include "model/pass_plan.h"

namespace moxie {
namespace {

const KernelChooser kGpuKernels(DeviceKind::kCuda, kCudaAny | kClusters | kSm90a, {});

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
  PlanRequest request{.max_batch_tokens = 512};
  const MemoryPlan roomy = plan_memory(**checkpoint, request, uint64_t{100} << 30, kGpuKernels);
  // The context shrinks to the memory there is, down to the byte.
  const uint64_t enough = roomy.total_bytes - kCudaContextBytes;
  EXPECT_EQ(plan_memory(**checkpoint, request, enough, kGpuKernels).max_model_len,
            roomy.max_model_len);
  const MemoryPlan tight = plan_memory(**checkpoint, request, enough - 1, kGpuKernels);
  EXPECT_TRUE(tight.fits);
  EXPECT_LT(tight.max_model_len, roomy.max_model_len);
  request.max_model_len = roomy.max_model_len;
  const MemoryPlan fixed = plan_memory(**checkpoint, request, enough - 1, kGpuKernels);
  EXPECT_FALSE(fixed.fits);
  EXPECT_NE(fixed.advice.find("--max-model-len"), std::string::npos) << fixed.advice;
  EXPECT_EQ(fixed.advice.find("launches"), std::string::npos) << fixed.advice;
  // Where it is the scratch of launches that the caller asks for, the advice says so.
  request.max_batch_tokens = 16384;
  const MemoryPlan large =
      plan_memory(**checkpoint, request, enough + (uint64_t{1} << 30), kGpuKernels);
  EXPECT_FALSE(large.fits);
  EXPECT_NE(large.advice.find("launches of fewer than 16384 tokens"), std::string::npos)
      << large.advice;
}

TEST(GpuPlan, TheBatchShrinksBeforeTheContext) {
  auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  ASSERT_TRUE(checkpoint.has_value());
  const MemoryPlan roomy = plan_memory(**checkpoint, {}, uint64_t{100} << 30, kGpuKernels);
  EXPECT_EQ(roomy.max_batch_tokens, kDefaultGemmBatchTokens);
  const MemoryPlan tight =
      plan_memory(**checkpoint, {}, roomy.total_bytes - kCudaContextBytes - 1, kGpuKernels);
  EXPECT_TRUE(tight.fits);
  EXPECT_EQ(tight.max_batch_tokens, kDefaultGemmBatchTokens / 2);
  EXPECT_EQ(tight.max_model_len, roomy.max_model_len);
  // Portable rows take as many tokens.
  const KernelChooser others(DeviceKind::kCuda, kCudaAny, {});
  const MemoryPlan other = plan_memory(**checkpoint, {}, uint64_t{100} << 30, others);
  EXPECT_EQ(other.max_batch_tokens, kDefaultGemmBatchTokens);
}

uint64_t part_bytes(const MemoryPlan& plan, const char* name) {
  for (const PlanPart& part : plan.parts)
    if (part.name == name) return part.bytes;
  return 0;
}

// The head has as many pages as the target, and its cache is not divided.
TEST(GpuPlan, OfTheFirstRankCountsTheDraftHeadAndAllRowsThatItTakes) {
  auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  ASSERT_TRUE(checkpoint.has_value());
  const GptOssConfig& config = (*checkpoint)->config();
  auto head = DraftCheckpoint::open("synthetic:gpt-oss-120b-dflash", config);
  ASSERT_TRUE(head.has_value()) << head.error().message();
  EXPECT_TRUE(takes_target_unembed(*head));
  const auto plan_of = [&](const Ranks& ranks, const DraftCheckpoint* draft) {
    PlanRequest request{.load = {.ranks = ranks}, .draft = draft};
    if (draft != nullptr) request.num_taps = draft->config().boundaries.size();
    request.speculation.method = SpecMethod::kDflash;
    return plan_memory(**checkpoint, request, uint64_t{139} << 30, kGpuKernels);
  };
  const Ranks plain{.size = 2, .link = LinkKind::kPeers};
  Ranks with_rows = plain;
  with_rows.first_holds_unembed = true;
  const MemoryPlan without = plan_of(plain, nullptr), with = plan_of(with_rows, &*head);
  EXPECT_EQ(part_bytes(with, kDraftHeadPart), part_bytes(plan_of({}, &*head), kDraftHeadPart));
  EXPECT_GT(part_bytes(with, kDraftHeadPart), uint64_t{500} << 20);
  const uint64_t other_half = uint64_t{2} * 201088 / 2 * 2880;
  EXPECT_EQ(part_bytes(with, "weights") - part_bytes(without, "weights"), other_half);
  EXPECT_GT(part_bytes(with, "activations and scratch"),
            part_bytes(without, "activations and scratch"));
}

uint64_t cache_bytes(const MemoryPlan& plan) {
  uint64_t bytes = 0;
  for (const PlanPart& part : plan.parts)
    bytes += part.name.starts_with("kv cache") ? part.bytes : 0;
  return bytes;
}

TEST(ServerPlan, TakesMostOfWhatIsLeftOnAGpuAndLittleOnACpu) {
  auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  ASSERT_TRUE(checkpoint.has_value());
  PlanRequest request{
      .load = {.mxfp4_layers = {true, true, true}}, .max_num_seqs = 256, .max_logit_rows = 256};
  request.kv_cache_bytes = kAutoKvBytes;
  const MemoryPlan gpu = plan_memory(**checkpoint, request, uint64_t{139} << 30, kGpuKernels);
  EXPECT_TRUE(gpu.fits);
  EXPECT_GT(cache_bytes(gpu), uint64_t{50} << 30);
  EXPECT_GT(gpu.total_bytes, gpu.available_bytes / 10 * 9);
  uint64_t sum = 0;
  for (const PlanPart& part : gpu.parts) sum += part.bytes;
  EXPECT_EQ(sum, gpu.total_bytes);

  auto tiny = open_checkpoint("embedded");
  ASSERT_TRUE(tiny.has_value());
  const KernelChooser cpu_kernels(DeviceKind::kCpu, cpu_features(), {});
  request.load = {};
  const MemoryPlan cpu = plan_memory(**tiny, request, uint64_t{16} << 30, cpu_kernels);
  EXPECT_TRUE(cpu.fits);
  const KvShape shape = kv_shape((*tiny)->config(), request.kv_dtype);
  const uint64_t page_bytes = shape.full_page_bytes() + shape.window_page_bytes();
  const uint64_t expected = kSmallServerCacheWeights * (*tiny)->packed_bytes(request.load);
  EXPECT_LT(expected, kSmallServerCacheBytes);
  EXPECT_LE(cache_bytes(cpu), expected);
  EXPECT_GT(cache_bytes(cpu) + page_bytes, expected);
  EXPECT_EQ(cache_bytes(cpu),
            static_cast<uint64_t>(cpu.pages.full) * shape.full_page_bytes() +
                static_cast<uint64_t>(cpu.pages.window) * shape.window_page_bytes());
  EXPECT_EQ(cpu.max_model_len, kDefaultContext);
}

TEST(ServerPlan, PoolsHoldTheRunningAndAWholeContextAtLeast) {
  const KvShape shape{.num_full_layers = 12, .num_window_layers = 12, .num_kv_heads = 8};
  constexpr int32_t kContext = 16384, kSeqs = 64, kChunk = 512;
  const auto bytes_of = [&](const KvPages& pages) {
    return static_cast<uint64_t>(pages.full) * shape.full_page_bytes() +
           static_cast<uint64_t>(pages.window) * shape.window_page_bytes();
  };
  const auto pages_in = [&](uint64_t bytes) {
    return kv_pages(shape, bytes, kContext, kSeqs, kChunk);
  };
  const KvPages all = pages_in(0);
  EXPECT_EQ(all.full, kSeqs * shape.full_pages(kContext));
  const KvPages least = pages_in(1);
  EXPECT_EQ(least.full, shape.full_pages(kContext));
  EXPECT_EQ(least.window, shape.window_pages(kContext, kChunk));
  const KvPages roomy = pages_in(uint64_t{4} << 30);
  EXPECT_LE(bytes_of(roomy), uint64_t{4} << 30);
  EXPECT_GT(bytes_of(roomy), (uint64_t{4} << 30) - 2 * shape.full_page_bytes());
  EXPECT_GE(roomy.window, kSeqs * shape.window_pages(kContext, 1) + kChunk / 16);
  EXPECT_GT(roomy.full, 2 * roomy.window);
  const KvPages most = pages_in(uint64_t{1} << 50);
  EXPECT_EQ(most.full, all.full);
  EXPECT_EQ(most.window, all.window);
}

TEST(GpuPlan, AutoCacheIsBf16) {
  auto checkpoint = open_checkpoint("embedded");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  const auto kv_dtype = choose_kv_dtype("auto", (*checkpoint)->config(), kGpuKernels, 1024, 1);
  ASSERT_TRUE(kv_dtype.has_value());
  EXPECT_EQ(*kv_dtype, DType::kBF16);
}

// On the CPU a small cache is exact where the model is narrow; where it is wide, rows that an F32
// cache keeps out are the faster ones.
TEST(CpuPlan, AutoCacheIsF32WhereSmallAndNarrow) {
  const KernelChooser kernels(DeviceKind::kCpu, kFeatureNone, {});
  const struct {
    const char* model;
    int32_t context;
    DType expected;
  } kCases[] = {{"embedded", 1024, DType::kF32},
                {"embedded", 1 << 17, DType::kBF16},
                {"synthetic:gpt-oss-20b", 1024, DType::kBF16}};
  for (const auto& c : kCases) {
    auto checkpoint = open_checkpoint(c.model);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    GptOssConfig config = (*checkpoint)->config();
    config.max_positions = 1 << 17;
    const auto kv_dtype = choose_kv_dtype("auto", config, kernels, c.context, 8);
    ASSERT_TRUE(kv_dtype.has_value());
    EXPECT_EQ(*kv_dtype, c.expected) << c.model << " " << c.context;
  }
}

// The limit of the row that does the experts of a prompt of 8,192 tokens, and its name.
std::pair<double, std::string> experts_limit(const std::string& activation, DeviceKind device,
                                             const DeviceRates& rates) {
  auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  CHECK(checkpoint.has_value());
  KernelChoice choice;
  CHECK(choice.set_activation(activation).has_value());
  const bool on_gpu = device == DeviceKind::kCuda;
  KernelChooser kernels(device, on_gpu ? kCudaAny | kClusters | kSm90a : cpu_features(), choice,
                        rates);
  const ModelWeights layout = (*checkpoint)->layout({.device = device});
  const GptOss model((*checkpoint)->config(), layout, {}, kernels);
  const auto plan = model.plan_for(bracket_of(8192, 1, 1), DType::kBF16);
  CHECK(plan.has_value(), plan ? "" : plan.error().message());
  const PlannedRow& row = (*plan)->chains.front().back();
  return {row.limit_us, row.row.name};
}

TEST(PlannedRow, IsHeldAgainstTheRateOfItsOwnProducts) {
  if (!MOXIE_HAS_CUDA) GTEST_SKIP() << "no rows of GPUs";
  const DeviceRates rates;
  const auto [of_bf16, wide] = experts_limit("bf16", DeviceKind::kCuda, rates);
  const auto [of_8_bits, narrow] = experts_limit("mxfp8", DeviceKind::kCuda, rates);
  EXPECT_EQ(wide.find("_e4m3_"), std::string::npos) << wide;
  EXPECT_NE(narrow.find("_e4m3_"), std::string::npos) << narrow;
  EXPECT_NEAR(of_8_bits / of_bf16, rates.bf16_gflops / rates.fp8_gflops, 0.01);
}

TEST(PlannedRow, OnACpuIsHeldAgainstItsMemoryAlone) {
  DeviceRates slow, fast;
  slow.bf16_gflops = 1, fast.bf16_gflops = 1e9;
  EXPECT_EQ(experts_limit("bf16", DeviceKind::kCpu, slow).first,
            experts_limit("bf16", DeviceKind::kCpu, fast).first);
}

}  // namespace
}  // namespace moxie
