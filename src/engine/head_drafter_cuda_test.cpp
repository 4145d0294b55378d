// Draft heads on a CUDA device: other people's logits, texts that a head does not change, and the
// embedded heads' acceptance.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/testing/paths.h"
#include "engine/testing/golden_heads.h"
#include "engine/testing/tokens.h"

namespace moxie {
namespace {

// Where the tests were built, or the tree that they run in.
std::string goldens() {
  const std::string built = test_data() + "/goldens/";
  return std::filesystem::exists(built) ? built : "tests/data/goldens/";
}

std::unique_ptr<Engine> open(EngineOptions options) {
  options.device = "cuda";
  options.show_progress = false;
  auto engine = Engine::load(options);
  CHECK(engine.has_value(), engine ? "" : engine.error().message());
  return std::move(*engine);
}

class HeadDrafterCuda : public testing::TestWithParam<GoldenHead> {};

// The target's cache is BF16 here: on the CPU, too, that moves logits by up to 0.43. A wrong form
// moves them by units.
TEST_P(HeadDrafterCuda, ComputesTheGoldens) {
  const GoldenHead& head = GetParam();
  auto golden = SafetensorsFile::open(goldens() + head.folder + "/goldens.safetensors");
  ASSERT_TRUE(golden.has_value());
  const auto engine = open(golden_head_options(goldens(), head));
  const auto drafter = HeadDrafter::create(*engine);
  ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
  const bool is_dflash = head.method == SpecMethod::kDflash;
  const int32_t vocab = (*drafter)->config().draft_vocab;
  int num_ids = 0, num_equal = 0;
  double worst_of_all = 0;
  for (const size_t chunk : {64, 5}) {
    for (int i = 0; i < 4; ++i) {
      const std::string name = "case" + std::to_string(i) + ".";
      const auto ids = golden_values<int32_t>(*golden, name + "input_ids");
      const int32_t next = golden_values<int32_t>(*golden, name + "next_id")[0];
      const Drafted got = draft_behind(*engine, **drafter, ids, next, chunk, head.num_drafts);
      const auto wanted = golden_values<int32_t>(*golden, name + "draft_ids");
      ASSERT_EQ(got.ids.size(), wanted.size());
      for (size_t k = 0; k < wanted.size(); ++k) num_equal += got.ids[k] == wanted[k];
      num_ids += static_cast<int>(wanted.size());
      int32_t num_missing = 0;
      worst_of_all = std::max(
          worst_of_all, worst_draft_logit(*golden, name, is_dflash, vocab, got, &num_missing));
      EXPECT_EQ(num_missing, 0);
    }
  }
  std::printf("  %s: logits within %.3g, %d of %d ids equal\n", head.folder, worst_of_all,
              num_equal, num_ids);
  EXPECT_LE(worst_of_all, 0.6);
  EXPECT_GE(10 * num_equal, 9 * num_ids);
}

// Verification has other kernels for several tokens than for one: a text may leave the other where
// two tokens are nearly equally likely, and the count says how often.
TEST_P(HeadDrafterCuda, ChangesHardlyAnyText) {
  const GoldenHead& head = GetParam();
  EngineOptions plain_options = golden_head_options(goldens(), head);
  plain_options.speculation = {};
  const auto plain = open(plain_options);
  for (const char* dtype : {"bf16", "mxfp4"}) {
    EngineOptions options = golden_head_options(goldens(), head);
    options.speculation.dtype = dtype;
    const auto engine = open(options);
    int32_t max_drafts = 0;
    auto drafter = make_drafter(*engine, &max_drafts);
    ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
    int num_equal = 0, num_texts = 0;
    for (const float temperature : {0.0f, 1.0f}) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        const SamplingOptions sampling{
            .temperature = temperature, .seed = seed, .max_tokens = 40, .ignore_eos = true};
        const auto prompt = tokens(70, static_cast<uint32_t>(seed));
        const auto wanted = plain->generate(prompt, sampling);
        const auto got = engine->generate(prompt, sampling, {},
                                          {.drafter = drafter->get(), .max_drafts = max_drafts});
        ASSERT_TRUE(wanted.has_value() && got.has_value());
        ASSERT_EQ(got->ids.size(), wanted->ids.size());
        num_equal += got->ids == wanted->ids;
        ++num_texts;
      }
    }
    std::printf("  %s, %s: %d of %d texts equal\n", head.folder, dtype, num_equal, num_texts);
    EXPECT_GE(num_equal, num_texts - 2);
  }
}

// Both embeddings are exact, and the passes are the same.
TEST(HeadDrafterCudaMask, EmbeddingInAFileDraftsAsAMaskThatHasIt) {
  const GoldenHead& dflash = kGoldenHeads[3];
  const auto folder = std::filesystem::temp_directory_path() /
                      ("moxie_head_drafter_cuda_mask_" + std::to_string(::getpid()));
  write_heads_with_other_masks(goldens(), (folder / "by_id").string(),
                               (folder / "by_file").string());
  std::vector<Drafted> drafted;
  for (const std::string& head :
       {(folder / "by_id").string(), (folder / "by_file").string(), goldens() + dflash.folder}) {
    EngineOptions options = golden_head_options(goldens(), dflash);
    options.speculation.head = head;
    const auto engine = open(options);
    const auto drafter = HeadDrafter::create(*engine);
    ASSERT_TRUE(drafter.has_value()) << drafter.error().message();
    drafted.push_back(draft_behind(*engine, **drafter, tokens(40, 5), 77, 64, dflash.num_drafts));
  }
  EXPECT_FALSE(drafted[0].logits.empty());
  EXPECT_EQ(drafted[1].logits, drafted[0].logits);
  EXPECT_EQ(drafted[1].ids, drafted[0].ids);
  EXPECT_NE(drafted[2].logits, drafted[0].logits);
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(All, HeadDrafterCuda, testing::ValuesIn(kGoldenHeads),
                         [](const auto& info) {
                           std::string name = info.param.folder;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace moxie
