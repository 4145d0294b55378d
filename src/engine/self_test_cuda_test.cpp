// The self-test on a GPU: every chain of gpt-oss's plans is proven, and faults in the parameters of
// rows are found. The tables are those of planted_rows.h.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/cuda.h"
#include "engine/self_test_rows.h"
#include "engine/self_test_use.h"
#include "kernels/rates.h"
#include "kernels/testing/cuda_test.h"
#include "kernels/testing/planted_rows.h"
#include "model/checkpoint.h"

namespace moxie {
namespace {

using testing::clear_planted;
using testing::Planted;

class SelfTestCuda : public CudaTest {
 protected:
  ~SelfTestCuda() override { clear_planted(); }

  // Calls test(request) for gpt-oss-120b and the rows of these features.
  template <typename Test>
  auto with_request(Features features, const std::string& mxfp4_layers, Test test) {
    const auto checkpoint = std::move(open_checkpoint("synthetic:gpt-oss-120b").value());
    const ModelWeights layout = checkpoint->layout(
        {.mxfp4_layers = DenseLayers::parse(mxfp4_layers).value(), .device = DeviceKind::kCuda});
    const KernelChooser kernels(DeviceKind::kCuda, features, {},
                                rates_of(DeviceKind::kCuda, device().properties()));
    const std::string file = std::filesystem::temp_directory_path() /
                             ("moxie_self_test_cuda_" + std::to_string(::getpid()) + ".json");
    std::filesystem::remove(file);
    auto result = test(SelfTestRequest{.options = {.mode = "auto", .file = file, .commit = "abc"},
                                       .device = &device(),
                                       .properties = device().properties(),
                                       .kernels = kernels,
                                       .config = checkpoint->config(),
                                       .formats = layout,
                                       .kv_dtype = DType::kBF16,
                                       .max_tokens = 8192});
    std::filesystem::remove(file);
    CHECK(result.has_value(), result ? "" : result.error().message());
    return std::move(*result);
  }

  SelfTestUse run(const std::string& mxfp4_layers = "all") {
    SelfTestUse use = with_request(features(), mxfp4_layers, run_self_test).use;
    std::printf("  %s\n", use.text().c_str());
    return use;
  }

  // All rows of a step are at fault, so that every chain is found, until none is left.
  template <typename P>
  void expect_found(std::function<void(P&)> change) {
    Planted<P>::fault = [change](auto run, P params) {
      change(params);
      run(params);
    };
    const SelfTestUse found = run();
    ASSERT_FALSE(found.faults.empty());
    const auto names_step = [](const std::string& row) {  // or a row that covers others as well
      return row.find(Op<P>::info.name) != row.npos;
    };
    for (const auto& fault : found.faults)
      EXPECT_TRUE(names_step(fault.row) || std::ranges::any_of(fault.beside, names_step))
          << fault.row << ": " << fault.what;
  }
};

TEST_F(SelfTestCuda, ProvesASoundDevice) {
  for (const char* layers : {"moe", "all"}) {
    const SelfTestUse use = run(layers);
    EXPECT_TRUE(use.faults.empty()) << use.text();
    EXPECT_TRUE(use.all_proven()) << use.text();
    for (const std::string& what : use.untested) ADD_FAILURE() << what;
  }
}

// On a device that has no more of it for a block: sm_86, 89 and 120. Rows that any GPU can run, and
// those with clusters.
TEST_F(SelfTestCuda, RowsOfOtherGpusFitIntoTheLeastSharedMemory) {
  const Features any = kCudaAny | kNoMxProducts;
  bound_shared_bytes(kPortableSharedBytes);
  for (const Features of : {any, any | (features() & kClusters)}) {
    for (const char* layers : {"moe", "all"}) {
      int num_run = 0;
      for (const RowTested& tested : with_request(of, layers, test_all_rows)) {
        EXPECT_TRUE(tested.fault.empty()) << tested.row.name << ": " << tested.fault;
        num_run += tested.launches.empty() ? 0 : 1;
      }
      EXPECT_GT(num_run, 8);
    }
  }
  bound_shared_bytes(0);
}

TEST_F(SelfTestCuda, FindsAWindowThatIsOneTooLong) {
  expect_found<AttendParams>([](AttendParams& p) { p.window += p.window > 0 ? 1 : 0; });
}
TEST_F(SelfTestCuda, FindsAWindowThatIsOneTooShort) {
  expect_found<AttendParams>([](AttendParams& p) { p.window -= p.window > 0 ? 1 : 0; });
}
TEST_F(SelfTestCuda, FindsALostSink) {
  expect_found<AttendParams>([](AttendParams& p) { p.sinks = nullptr; });
}
TEST_F(SelfTestCuda, FindsALostScale) {
  expect_found<AttendParams>([](AttendParams& p) { p.scale *= 1.1f; });
}
TEST_F(SelfTestCuda, FindsARotationThatIsOnePositionAhead) {
  expect_found<QkvParams>([](QkvParams& p) {
    p.rotary.table += p.head_dim;
    --p.rotary.max_positions;
  });
}
TEST_F(SelfTestCuda, FindsALostLastToken) {
  expect_found<QkvParams>([](QkvParams& p) {
    if (p.batch.num_tokens > 1) --p.batch.num_tokens;
  });
}
TEST_F(SelfTestCuda, FindsAShiftedBias) {
  expect_found<OutParams>([](OutParams& p) { p.bias = p.bias + 4; });
}
TEST_F(SelfTestCuda, FindsASwigluWithoutItsClamp) {
  expect_found<ExpertsParams>([](ExpertsParams& p) { p.swiglu_limit = 1e30f; });
}
TEST_F(SelfTestCuda, FindsTheBiasOfAnotherExpert) {
  expect_found<ExpertsParams>([](ExpertsParams& p) { p.down_bias += 8; });
}
TEST_F(SelfTestCuda, FindsANormOfAnotherPlace) {
  expect_found<UnembedParams>([](UnembedParams& p) { p.norm_weight += 16; });
}
TEST_F(SelfTestCuda, FindsLogitsThatAreNotWritten) {
  expect_found<UnembedParams>([](UnembedParams& p) { p.weight.rows -= 16; });
}
TEST_F(SelfTestCuda, FindsAnotherTokensEmbedding) {
  expect_found<EmbedParams>([](EmbedParams& p) {
    if (p.num_tokens > 1) ++p.token_ids, --p.num_tokens;
  });
}

}  // namespace
}  // namespace moxie
