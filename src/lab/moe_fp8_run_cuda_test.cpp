// MoeFp8Runner on a CUDA device: the outputs that come back are those of the host's reference row,
// a timed run leaves them too, and rows are chosen among the device's.
#include <gtest/gtest.h>

#include "lab/low_bit.h"
#include "lab/moe_fp8_inputs.h"
#include "lab/moe_fp8_run.h"

namespace moxie {
namespace {

class MoeFp8RunnerCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = make_cuda_device(0);
    ASSERT_TRUE(device) << device.error().message();
    auto made = MoeFp8Runner::make(std::move(*device), 0);
    ASSERT_TRUE(made) << made.error().message();
    runner_.emplace(std::move(*made));
  }
  // 64 experts in 8 groups, the second 16 of them local.
  MoeFp8Inputs inputs_of(int32_t tokens) {
    random_ = random_moe_fp8({.num_tokens = tokens,
                              .num_experts = 64,
                              .num_local_experts = 16,
                              .hidden = 512,
                              .intermediate = 256,
                              .local_expert_offset = 16,
                              .routed_scaling_factor = 2.5f},
                             1, runner_->pool());
    auto inputs = MoeFp8Inputs::from(random_.tensors, "test");
    CHECK(inputs.has_value(), inputs ? "" : inputs.error().message());
    return std::move(*inputs);
  }
  static void expect_matched(const MoeFp8Inputs& inputs, const std::vector<uint16_t>& reference) {
    const LowBitTolerance tolerance{.required_matched_ratio = 0.98};
    const LowBitVerdict verdict = judge_low_bit(inputs.output_values(), reference, tolerance);
    EXPECT_TRUE(verdict.passes) << verdict.matched_ratio;
  }

  std::optional<MoeFp8Runner> runner_;
  RandomMoeFp8 random_;
};

TEST_F(MoeFp8RunnerCuda, EachRowGivesTheReferencesOutputAndIsTimed) {
  // Fewer tokens after more: the buffers on the device are larger than the tensors.
  for (const int32_t tokens : {200, 1, 20}) {
    SCOPED_TRACE(tokens);
    MoeFp8Inputs inputs = inputs_of(tokens);
    const auto reference_ran = runner_->run_reference(inputs.params());
    ASSERT_TRUE(reference_ran) << reference_ran.error().message();
    const std::vector<uint16_t> reference = inputs.output_values();
    const auto rows = runner_->rows_for(inputs.params());
    ASSERT_FALSE(rows.empty());
    for (const auto* row : rows) {
      SCOPED_TRACE(row->name);
      EXPECT_EQ(row->device, DeviceKind::kCuda);
      const auto ran = runner_->run(*row, inputs.params());
      ASSERT_TRUE(ran) << ran.error().message();
      expect_matched(inputs, reference);
      for (const L2Before l2 : {L2Before::kWritten, L2Before::kRead}) {
        std::fill_n(inputs.output(), reference.size(), uint16_t{0xFFFF});
        const auto seconds = runner_->time(*row, inputs.params(), 3, l2);
        ASSERT_TRUE(seconds) << seconds.error().message();
        ASSERT_EQ(seconds->size(), 3u);
        for (const double s : *seconds) EXPECT_GT(s, 0);
        expect_matched(inputs, reference);
      }
    }
  }
}

TEST_F(MoeFp8RunnerCuda, ASampleOfTokensHasTheirOutputs) {
  MoeFp8Inputs inputs = inputs_of(40);
  const auto row = runner_->row_for(inputs.params(), "auto");
  ASSERT_TRUE(row) << row.error().message();
  ASSERT_TRUE(runner_->run(**row, inputs.params()));
  const std::vector<int32_t> tokens = sample_tokens(40, 7, 1);
  const MoeFp8Inputs some = inputs.only(tokens);
  ASSERT_TRUE(runner_->run_reference(some.params()));
  std::vector<uint16_t> of_all;
  for (const int32_t token : tokens)
    of_all.insert(of_all.end(), inputs.output() + token * 512, inputs.output() + token * 512 + 512);
  const LowBitVerdict verdict =
      judge_low_bit(of_all, some.output_values(), {.required_matched_ratio = 0.98});
  EXPECT_TRUE(verdict.passes) << verdict.matched_ratio;
}

TEST_F(MoeFp8RunnerCuda, NoReferenceRowIsForCuda) {
  const MoeFp8Inputs inputs = inputs_of(3);
  const auto row = runner_->row_for(inputs.params(), "reference");
  ASSERT_FALSE(row);
  EXPECT_NE(row.error().message().find("it is for another device"), std::string::npos)
      << row.error().message();
}

}  // namespace
}  // namespace moxie
