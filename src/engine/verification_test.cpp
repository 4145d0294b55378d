// What a draw asks for: bias, penalties and masks, in its own step and behind drafts.
#include "engine/verification.h"

#include <gtest/gtest.h>

#include <map>

#include "engine/testing/scheduler_drive.h"

namespace moxie {
namespace {

TEST(SamplerTest, StopTokensAreForbiddenBeforeTheLeastNumberOfTokens) {
  SamplingOptions options{.logit_bias = {{3, 1.5f}}, .min_tokens = 2};
  Sampler sampler(options, {}, std::vector<int32_t>{kStop}, kVocab);
  const SampleRequest first = sampler.next(0, nullptr, {});
  ASSERT_EQ(first.num_bias, 2);
  EXPECT_EQ(first.bias_ids[1], kStop);
  EXPECT_EQ(first.bias_values[1], -std::numeric_limits<float>::infinity());
  const SampleRequest third = sampler.next(2, nullptr, {});
  ASSERT_EQ(third.num_bias, 1);
  EXPECT_EQ(third.bias_ids[0], 3);
  EXPECT_EQ(third.step, 2u);
}

TEST(SamplerTest, PenaltiesCountPromptAndOutput) {
  SamplingOptions options{.repetition_penalty = 1.2f};
  Sampler sampler(options, std::vector<int32_t>{4, 5, 4}, {}, kVocab);
  sampler.take(5);
  sampler.take(6);
  sampler.take(6);
  const SampleRequest request = sampler.next(3, nullptr, {});
  ASSERT_EQ(request.num_history, 3);
  const std::map<int32_t, int32_t> counts = {{request.history_ids[0], request.history_counts[0]},
                                             {request.history_ids[1], request.history_counts[1]},
                                             {request.history_ids[2], request.history_counts[2]}};
  EXPECT_EQ(counts, (std::map<int32_t, int32_t>{{4, 0}, {5, 1}, {6, 2}}));
}

// Penalties, seeds, masks and forbidden ends behind drafts are those of the drafts' own steps.
TEST(VerificationTest, ADrawBehindDraftsWantsWhatItWantsInItsOwnStep) {
  const SamplingOptions options{
      .repetition_penalty = 1.2f, .seed = 5, .stop_ids = {30}, .min_tokens = 3};
  const std::vector<int32_t> prompt = {4, 5, 4}, drafts = {6, 10, 5, 6};
  Sampler ahead(options, prompt, {}, kVocab), alone(options, prompt, {}, kVocab);
  Thirds state, walked;
  Verification verification;
  verification.begin(4, drafts, 4, kVocab, ahead);
  ASSERT_EQ(verification.num_drafts(), 4);
  std::vector<uint32_t> masks(10), mask(2);
  std::vector<SampleRequest> requests(5);
  verification.arm(ahead, 0, &state, masks, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const SampleRequest wanted = alone.next(static_cast<int32_t>(i), &walked, mask);
    const SampleRequest& found = requests[i];
    EXPECT_EQ(found.step, i);
    EXPECT_EQ(found.seed, 5u);
    EXPECT_EQ(found.num_bias, wanted.num_bias);
    EXPECT_EQ(found.num_bias, i < 3 ? 1 : 0);
    const auto counts = [](const SampleRequest& request) {
      std::map<int32_t, int32_t> list;
      for (int32_t n = 0; n < request.num_history; ++n) {
        list[request.history_ids[n]] = request.history_counts[n];
      }
      return list;
    };
    EXPECT_EQ(counts(found), counts(wanted)) << i;
    ASSERT_EQ(found.allowed_mask == nullptr, wanted.allowed_mask == nullptr) << i;
    if (wanted.allowed_mask != nullptr) {
      EXPECT_TRUE(std::equal(mask.begin(), mask.end(), found.allowed_mask)) << i;
    }
    if (i == drafts.size()) break;
    alone.take(drafts[i]);
    ASSERT_TRUE(walked.accept(drafts[i]));
  }
  EXPECT_EQ(verification.num_accepted(std::vector<SampleAnswer>{{6}, {10}, {8}, {6}, {1}}), 2);
  EXPECT_EQ(verification.num_accepted(std::vector<SampleAnswer>{{6}, {10}, {5}, {6}, {1}}), 4);
  EXPECT_EQ(verification.num_accepted(std::vector<SampleAnswer>{{-1}, {10}, {5}, {6}, {1}}), 0);
}

TEST(VerificationTest, OfAProposalOnlyWhatMayBeVerifiedIsTaken) {
  Sampler sampler({.stop_ids = {30}}, {}, std::vector<int32_t>{kStop}, kVocab);
  Verification verification;
  const auto taken = [&](std::vector<int32_t> proposal) {
    verification.begin(1, proposal, 3, kVocab, sampler);
    return std::vector<int32_t>(verification.drafts().begin(), verification.drafts().end());
  };
  EXPECT_EQ(taken({2, 3, 4, 5}), (std::vector<int32_t>{2, 3, 4}));
  EXPECT_EQ(taken({2, -1, 4}), (std::vector<int32_t>{2}));
  EXPECT_EQ(taken({2, 3, kVocab}), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(taken({kStop, 3}), (std::vector<int32_t>{}));
  EXPECT_EQ(taken({2, 30, 3}), (std::vector<int32_t>{2}));
  EXPECT_EQ(taken({}), (std::vector<int32_t>{}));
}

TEST(SimulatedAcceptanceTest, EachPlaceIsReachedAtItsRateAndNoneBehindTheLast) {
  const std::vector<float> rates = {0.8f, 0.8f, 0.3f};
  SimulatedAcceptance simulated(rates, 5);
  ASSERT_TRUE(simulated.is_on());
  constexpr int kLaunches = 40000;
  std::vector<int> reached(5);
  for (int i = 0; i < kLaunches; ++i) {
    const int32_t count = simulated.num_accepted(5);
    ASSERT_LE(count, 3);
    for (int32_t place = 0; place < count; ++place) ++reached[static_cast<size_t>(place)];
  }
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(reached[i]) / kLaunches, rates[i], 0.01) << i;
  }
  EXPECT_EQ(reached[0], reached[1]);
  for (int i = 0; i < 100; ++i) EXPECT_LE(simulated.num_accepted(2), 2);
  std::vector<int32_t> drafts = {99};
  simulated.fill(6, kVocab, &drafts);
  ASSERT_EQ(drafts.size(), 6u);
  for (const int32_t id : drafts) EXPECT_TRUE(id >= 0 && id < kVocab) << id;
  EXPECT_FALSE(SimulatedAcceptance({}, 5).is_on());
}

TEST(SamplerTest, AllowedIdsAndAConstraintBothBind) {
  SamplingOptions options{.allowed_ids = {3, 4, 40}};
  Sampler sampler(options, {}, {}, kVocab);
  Thirds thirds;  // ids divisible by three
  std::vector<uint32_t> mask(2);
  const SampleRequest request = sampler.next(0, &thirds, mask);
  EXPECT_EQ(request.allowed_mask[0], 1u << 3);
  EXPECT_EQ(request.allowed_mask[1], 0u);
  EXPECT_EQ(sampler.next(0, nullptr, {}).allowed_mask[1], 1u << 8);
}

}  // namespace
}  // namespace moxie
