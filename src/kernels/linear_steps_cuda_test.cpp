// The CUDA rows of qkv, out, route, experts and unembed against the reference row on the CPU: over
// formats, shapes that do not fill tiles, and token counts around the groups of a launch.
#include <array>
#include <cmath>
#include <limits>

#include "kernels/linear_steps_cuda_case.h"

namespace moxie::testing {
namespace {

constexpr DType kFormats[] = {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kMXFP4,
                              DType::kMXFP8};
constexpr int32_t kTokenCounts[] = {1, 2, 3, 4, 5, 7, 8, 9, 19};

TEST_F(LinearStepsCuda, QkvAgreesWithTheReference) {
  for (const DType weights : kFormats) {
    for (const int32_t tokens : kTokenCounts) {
      expect_rows_agree(QkvCase{.tokens = tokens, .hidden = 96, .weights = weights});
    }
    for (const DType cache : {DType::kF32, DType::kF8E4M3}) {
      expect_rows_agree(QkvCase{.tokens = 3,
                                .hidden = 160,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .weights = weights,
                                .cache = cache});
    }
    expect_rows_agree(
        QkvCase{.tokens = 2, .hidden = 2880, .heads = 3, .head_dim = 64, .weights = weights});
  }
}

TEST_F(LinearStepsCuda, OutAgreesWithTheReference) {
  for (const DType weights : kFormats) {
    for (const int32_t tokens : kTokenCounts) {
      expect_rows_agree(OutCase{.tokens = tokens, .rows = 100, .cols = 160, .weights = weights});
    }
    for (const int32_t cols : {32, 64, 288, 4096}) {
      expect_rows_agree(OutCase{.tokens = 6, .rows = 23, .cols = cols, .weights = weights});
    }
  }
}

// Shapes that take each of the cuts of gemm/cluster_product_sm90.cuh on 132 SMs.
TEST_F(LinearStepsCuda, DenseLayersOfSomeTokensAgreeWithTheReference) {
  for (const DType weights : {DType::kBF16, DType::kMXFP4, DType::kMXFP8}) {
    for (const auto& [tokens, rows, cols] :
         {std::array{64, 2880, 1024}, {133, 1280, 1504}, {250, 1280, 1504}, {321, 2880, 640}}) {
      expect_rows_agree(OutCase{.tokens = tokens, .rows = rows, .cols = cols, .weights = weights});
    }
    expect_rows_agree(QkvCase{.tokens = 250,
                              .hidden = 1056,
                              .heads = 24,
                              .kv_heads = 8,
                              .head_dim = 64,
                              .weights = weights});
  }
  for (const auto& [tokens, rows, cols] :
       {std::array{160, 2880, 4096}, {500, 1280, 2880}, {449, 5120, 2880}, {505, 2880, 2048}}) {
    expect_rows_agree(
        OutCase{.tokens = tokens, .rows = rows, .cols = cols, .weights = DType::kBF16});
  }
}

TEST_F(LinearStepsCuda, RouteAgreesWithTheReference) {
  for (const DType weights : kFormats) {
    for (const int32_t tokens : kTokenCounts) {
      expect_rows_agree(RouteCase{.tokens = tokens, .hidden = 96, .weights = weights});
    }
    expect_rows_agree(
        RouteCase{.tokens = 5, .hidden = 288, .experts = 21, .top_k = 3, .weights = weights});
    expect_rows_agree(RouteCase{.hidden = 2880, .experts = 128, .weights = weights});
    expect_rows_agree(RouteCase{.tokens = 8, .hidden = 2880, .experts = 200, .weights = weights});
  }
  // The row for many tokens, in all its shapes of blocks.
  for (const int32_t tokens : {16, 33, 64, 200}) {
    constexpr DType kWeights = DType::kBF16;
    expect_rows_agree(
        RouteCase{.tokens = tokens, .hidden = 2880, .experts = 128, .weights = kWeights});
    expect_rows_agree(
        RouteCase{.tokens = tokens, .hidden = 288, .experts = 21, .top_k = 3, .weights = kWeights});
    // Rows sum up in orders of their own: a seed whose logits are further apart than that shows.
    expect_rows_agree(RouteCase{.tokens = tokens,
                                .hidden = 40,
                                .experts = 256,
                                .top_k = 16,
                                .weights = kWeights,
                                .seed = 7});
  }
  // Clusters of one wider tile.
  for (const int32_t tokens : {250, 355}) {
    expect_rows_agree(RouteCase{
        .tokens = tokens, .hidden = 2880, .experts = 128, .weights = DType::kBF16, .seed = 10});
  }
  // Blocks that take several groups of tokens; again a seed whose logits are far apart.
  expect_rows_agree(RouteCase{
      .tokens = 600, .hidden = 2880, .experts = 128, .weights = DType::kBF16, .seed = 10});
  expect_rows_agree(
      RouteCase{.tokens = 1100, .hidden = 2880, .experts = 8, .top_k = 2, .weights = DType::kBF16});
  for (const int32_t experts : {100, 150}) {
    expect_rows_agree(
        RouteCase{.tokens = 4300, .hidden = 96, .experts = experts, .weights = DType::kBF16});
  }
}

TEST_F(LinearStepsCuda, ExpertsAgreeWithTheReference) {
  for (const DType weights : kFormats) {
    for (const int32_t tokens : kTokenCounts) {
      expect_rows_agree(ExpertsCase{.tokens = tokens, .hidden = 96, .weights = weights});
    }
    expect_rows_agree(ExpertsCase{.tokens = 6,
                                  .hidden = 160,
                                  .intermediate = 96,
                                  .experts = 5,
                                  .top_k = 2,
                                  .weights = weights,
                                  .input_scale = 10});
    expect_rows_agree(ExpertsCase{.tokens = 3,
                                  .hidden = 64,
                                  .intermediate = 64,
                                  .experts = 40,
                                  .top_k = 16,
                                  .weights = weights});
    for (const int32_t tokens : {1, 8}) {
      expect_rows_agree(ExpertsCase{
          .tokens = tokens, .hidden = 576, .intermediate = 1312, .experts = 9, .weights = weights});
    }
    // Slices of the intermediate size: a part of the clusters busy, all of them, several pieces
    // each; experts that one, several or all tokens chose.
    for (const int32_t intermediate : {64, 256, 1344, 3200}) {
      for (const int32_t tokens : {1, 2, 5, 8, 11}) {
        expect_rows_agree(ExpertsCase{.tokens = tokens,
                                      .hidden = intermediate == 3200 ? 384 : 576,
                                      .intermediate = intermediate,
                                      .experts = intermediate == 256 ? 4 : 9,
                                      .top_k = intermediate == 3200 ? 6 : 4,
                                      .weights = weights});
      }
    }
  }
}

// MXFP4 has kernels for so many tokens. Experts that some, eight or all of the tokens chose, each
// kind of share of the columns that a warp has, and as many choices as a launch takes.
TEST_F(LinearStepsCuda, NineToSixteenTokensAgreeWithTheReference) {
  constexpr DType kWeights = DType::kMXFP4;
  for (int32_t tokens = 9; tokens <= 17; ++tokens) {
    for (const int32_t experts : {4, 9, 100}) {
      for (const int32_t hidden : {64, 576}) {
        expect_rows_agree(ExpertsCase{.tokens = tokens,
                                      .hidden = hidden,
                                      .intermediate = 640 - hidden,
                                      .experts = experts,
                                      .weights = kWeights});
      }
    }
    expect_rows_agree(ExpertsCase{.tokens = tokens,
                                  .hidden = 64,
                                  .intermediate = 64,
                                  .experts = 30,
                                  .top_k = tokens % 7 + 1,
                                  .weights = kWeights});
    expect_rows_agree(QkvCase{.tokens = tokens, .hidden = 96, .weights = kWeights});
    expect_rows_agree(OutCase{.tokens = tokens, .rows = 100, .cols = 160, .weights = kWeights});
    expect_rows_agree(UnembedCase{.rows = tokens, .hidden = 96, .weights = kWeights});
  }
  // Few tokens with many choices are such a launch too.
  for (const int32_t tokens : {3, 4, 5}) {
    expect_rows_agree(ExpertsCase{.tokens = tokens,
                                  .hidden = 64,
                                  .intermediate = 64,
                                  .experts = 40,
                                  .top_k = 16,
                                  .weights = kWeights});
  }
}

// Widths of tiles that the rows for many tokens have, blocks of rows that are not full, tokens that
// do not fill a tile, experts that none or all chose.
TEST_F(LinearStepsCuda, ManyTokensAgreeWithTheReference) {
  for (const DType weights : {DType::kBF16, DType::kMXFP4, DType::kMXFP8}) {
    for (const int32_t tokens : {12, 31, 60, 90, 121, 300}) {
      expect_rows_agree(QkvCase{.tokens = tokens, .hidden = 192, .weights = weights});
      expect_rows_agree(OutCase{.tokens = tokens, .rows = 300, .cols = 160, .weights = weights});
      expect_rows_agree(
          UnembedCase{.rows = tokens, .hidden = 96, .vocab = 1003, .weights = weights});
      expect_rows_agree(ExpertsCase{.tokens = tokens,
                                    .hidden = 160,
                                    .intermediate = 224,
                                    .experts = tokens == 300 ? 4 : 9,
                                    .weights = weights});
    }
    expect_rows_agree(ExpertsCase{
        .tokens = 300, .hidden = 64, .intermediate = 64, .experts = 100, .weights = weights});
    // Weights that are staged too.
    for (const int32_t tokens : {1024, 1105, 1411}) {
      expect_rows_agree(QkvCase{.tokens = tokens, .hidden = 96, .weights = weights});
      expect_rows_agree(OutCase{.tokens = tokens, .rows = 300, .cols = 160, .weights = weights});
    }
    // So many blocks that those with many rows and columns fill the device.
    expect_rows_agree(OutCase{.tokens = 1411, .rows = 2880, .cols = 160, .weights = weights});
    for (const auto& [rows, hidden, vocab] :
         {std::array{300, 96, 12003}, {60, 672, 25003}, {121, 672, 12003}})
      expect_rows_agree(
          UnembedCase{.rows = rows, .hidden = hidden, .vocab = vocab, .weights = weights});
    expect_rows_agree(QkvCase{.tokens = 2003,
                              .hidden = 96,
                              .heads = 64,
                              .kv_heads = 8,
                              .head_dim = 64,
                              .weights = weights,
                              .cache = DType::kBF16});
  }
}

// So many columns that every stage of a ring is used again.
TEST_F(LinearStepsCuda, ManyTokensOfWideMatricesAgreeWithTheReference) {
  for (const DType weights : {DType::kBF16, DType::kMXFP4, DType::kMXFP8}) {
    expect_rows_agree(ExpertsCase{.tokens = 12,
                                  .hidden = 2880,
                                  .intermediate = 2880,
                                  .experts = 3,
                                  .top_k = 2,
                                  .weights = weights,
                                  .input_scale = 10});
    for (const auto& [tokens, cols] : {std::array{33, 4096}, {700, 1024}})
      expect_rows_agree(OutCase{.tokens = tokens, .rows = 2880, .cols = cols, .weights = weights});
    for (const auto& [tokens, hidden, heads] : {std::array{140, 2880, 16}, {300, 1056, 64}})
      expect_rows_agree(QkvCase{.tokens = tokens,
                                .hidden = hidden,
                                .heads = heads,
                                .kv_heads = heads / 8,
                                .head_dim = 64,
                                .weights = weights,
                                .cache = DType::kF8E4M3});
  }
}

// Weights that hold a part of the experts among which tokens choose: tokens with all, some or none
// of their experts there, and launches with none. The last test says which rows take them.
class HeldExpertsCuda : public LinearStepsCuda {
 protected:
  static void SetUpTestSuite() {
    runs_.begin();
    runs_->do_not_judge();
  }
  void expect_parts_agree(ExpertsCase c) {
    struct Part {
      int32_t experts, before, behind;
      bool avoids_held = false;
    };
    for (const Part& part : {Part{3, 4, 2}, {6, 0, 1}, {1, 8, 7}, {4, 7, 0, true}}) {
      c.experts = part.experts, c.before = part.before, c.behind = part.behind;
      c.avoids_held = part.avoids_held;
      expect_rows_agree(c);
    }
  }
};

TEST_F(HeldExpertsCuda, OfFewTokensAgreeWithTheReference) {
  for (const DType weights : kFormats) {
    for (const int32_t tokens : {1, 2, 3, 5, 8, 11}) {
      expect_parts_agree({.tokens = tokens, .hidden = 96, .weights = weights});
      expect_parts_agree(
          {.tokens = tokens, .hidden = 576, .intermediate = 256, .weights = weights});
    }
    // Several pieces for each cluster.
    expect_parts_agree({.hidden = 384, .intermediate = 3200, .top_k = 6, .weights = weights});
  }
  for (int32_t tokens = 9; tokens <= 17; ++tokens) {
    for (const int32_t hidden : {64, 576})
      expect_parts_agree({.tokens = tokens, .hidden = hidden, .intermediate = 640 - hidden});
  }
}

TEST_F(HeldExpertsCuda, OfManyTokensAgreeWithTheReference) {
  for (const int32_t tokens : {31, 60, 121, 300}) {
    expect_parts_agree({.tokens = tokens, .hidden = 160, .intermediate = 224});
    expect_parts_agree({.tokens = tokens, .hidden = 192, .intermediate = 256});
  }
  // Slots that a kernel of its own fills.
  expect_parts_agree({.tokens = 2100, .hidden = 64, .intermediate = 64});
  expect_parts_agree({.tokens = 40, .hidden = 2880, .intermediate = 576, .top_k = 2});
}

TEST_F(HeldExpertsCuda, AreRefusedByRowsThatChooseThem) {
  int num_rows = 0;
  const uint8_t some_scales = 0;
  for (const Row<ExpertsParams>& row : Op<ExpertsParams>::rows()) {
    if (row.device != DeviceKind::kCuda || (row.needs & ~features()) != 0) continue;
    if (!row.forms.reduce.has(ReduceForm::kStep)) continue;  // of several ranks only
    int32_t tokens = 1;
    const auto refuses = [&](int32_t before, int32_t behind) {
      ExpertsParams params = ExpertsCase{.tokens = tokens,
                                         .hidden = 576,
                                         .intermediate = 576,
                                         .before = before,
                                         .behind = behind,
                                         .activation = row.activation}
                                 .sizes();
      for (PackedMatrix* matrix : {&params.gate_up, &params.down}) {
        matrix->layout = PackedLayout::kFragment16x32;
        matrix->greatest_scales = &some_scales;  // only whether there are any counts
      }
      params.launch = launch();
      params.forms = forms_with(row, XForm::kF32Pair);
      return row.refuses(params) != nullptr;
    };
    if (refuses(0, 0)) tokens = 40;
    ++num_rows;
    const bool takes_a_part =
        row.covers.empty() && std::string_view(row.name) != "experts_mxfp4_mxfp8_cutlass_sm100";
    EXPECT_FALSE(refuses(0, 0)) << row.name;
    EXPECT_EQ(refuses(0, 1), !takes_a_part) << row.name;
    EXPECT_EQ(refuses(8, 0), !takes_a_part) << row.name;
  }
  EXPECT_GT(num_rows, 0);
}

TEST_F(LinearStepsCuda, ExpertsThatNormAgreeWithTheReference) {
  std::set<std::string> ran;
  for (const int32_t tokens : {5, 33, 121, 300}) {
    const int32_t experts = tokens == 300 ? 4 : 9;
    expect_normed_experts_agree(
        {.tokens = tokens, .hidden = 160, .intermediate = 224, .experts = experts}, &ran);
    // Rows that take no such sizes.
    expect_normed_experts_agree(
        {.tokens = tokens, .hidden = 192, .intermediate = 256, .experts = experts}, &ran);
  }
  expect_normed_experts_agree(
      {.tokens = 40, .hidden = 2880, .intermediate = 96, .experts = 3, .top_k = 2}, &ran);
  for (const Row<ExpertsParams>& row : Op<ExpertsParams>::rows()) {
    if (row.device != DeviceKind::kCuda || !row.forms.t.has(TForm::kAbsent)) continue;
    if ((row.needs & ~features()) != 0) continue;
    EXPECT_TRUE(ran.contains(row.name)) << row.name;
  }
}

// Columns that a cluster shares.
TEST_F(LinearStepsCuda, SplitColumnsAgreeWithTheReference) {
  for (const int32_t tokens : {1, 2, 3, 4, 5, 8, 9, 11, 12, 13, 16, 18}) {
    for (const int32_t width : {2880, 4096}) {
      expect_rows_agree(QkvCase{.tokens = tokens,
                                .hidden = width,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .weights = DType::kMXFP4,
                                .cache = DType::kBF16});
      expect_rows_agree(
          OutCase{.tokens = tokens, .rows = 300, .cols = width, .weights = DType::kMXFP4});
    }
    // A draft head's MLP.
    expect_rows_agree(
        OutCase{.tokens = tokens, .rows = 300, .cols = 7680, .weights = DType::kMXFP4});
  }
}

// out and experts with the route step folded in, against the three steps of the reference.
TEST_F(LinearStepsCuda, FoldedRouteAgreesWithTheReference) {
  for (const int32_t tokens : {1, 2, 5, 8, 11}) {
    expect_folded_route_agrees({.tokens = tokens, .hidden = 576, .experts = 40, .top_k = 4});
  }
  expect_folded_route_agrees(
      {.tokens = 1, .hidden = 2880, .experts = 128, .top_k = 4, .splits_columns = true});
  // So many pieces that a cluster's buffers serve several.
  expect_folded_route_agrees({.tokens = 8, .hidden = 1152, .experts = 40, .top_k = 4});
  expect_folded_route_agrees({.tokens = 3, .hidden = 192, .experts = 200, .top_k = 3});
  // One, two, some and more than four tokens an expert.
  for (const int32_t experts : {6, 16})
    expect_folded_route_agrees(
        {.tokens = 8, .hidden = 2880, .experts = experts, .top_k = 4, .splits_columns = true});
  // The same and more than eight tokens of an expert, and as many choices as a launch takes.
  for (const int32_t tokens : {9, 12, 13, 16})
    expect_folded_route_agrees(
        {.tokens = tokens, .hidden = 192, .experts = 6, .top_k = 4, .splits_columns = true});
  expect_folded_route_agrees({.tokens = 16, .hidden = 192, .experts = 200, .top_k = 4});
}

TEST_F(LinearStepsCuda, EightBitExpertsRoundNothingButActivations) {
  if ((features() & kSm90a) == 0) GTEST_SKIP() << "needs sm_90a";
  for (const int32_t tokens : {1, 20, 150, 300}) {
    expect_e4m3_is_exact({.tokens = tokens,
                          .hidden = 160,
                          .intermediate = 224,
                          .experts = tokens == 300 ? 4 : 3,
                          .top_k = tokens == 300 ? 4 : 2});
  }
  // So many tokens an expert that other widths serve.
  expect_e4m3_is_exact(
      {.tokens = 1100, .hidden = 64, .intermediate = 64, .experts = 2, .top_k = 1});
  expect_e4m3_is_exact(
      {.tokens = 33, .hidden = 1024, .intermediate = 96, .experts = 2, .top_k = 1});
}

// Tokens and rows that do not fill a block, several items of a cluster, rings that are used again.
TEST_F(LinearStepsCuda, EightBitDenseLayersRoundNothingButOperands) {
  if ((features() & kSm90a) == 0) GTEST_SKIP() << "needs sm_90a";
  for (const DType weights : {DType::kBF16, DType::kMXFP4}) {
    for (const int32_t tokens : {1, 130, 300}) {
      expect_i8_is_exact(OutCase{.tokens = tokens, .rows = 300, .cols = 160, .weights = weights});
      expect_i8_is_exact(QkvCase{.tokens = tokens, .hidden = 192, .weights = weights});
    }
    expect_i8_is_exact(OutCase{.tokens = 40, .rows = 712, .cols = 4096, .weights = weights});
    expect_i8_is_exact(QkvCase{.tokens = 33,
                               .hidden = 2880,
                               .heads = 8,
                               .kv_heads = 2,
                               .head_dim = 64,
                               .weights = weights});
    expect_i8_is_exact(OutCase{.tokens = 2100, .rows = 2880, .cols = 96, .weights = weights});
  }
}

TEST_F(LinearStepsCuda, EightBitDenseLayersKeepFaultsVisible) {
  if ((features() & kSm90a) == 0) GTEST_SKIP() << "needs sm_90a";
  const OutCase c{.tokens = 40, .rows = 300, .cols = 160, .weights = DType::kBF16};
  for (const float fault : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    Built<OutParams> built = build(c);
    const_cast<float*>(built.params.a)[5 * c.cols + 3] = fault;
    OutParams params = to_device(built.params, c.weights);
    take_mxfp8(params);
    const Row<OutParams>& row = row_named<OutParams>("out_any_i8_gemm_sm90");
    params.forms = forms_with(row, XForm::kF32Pair);
    run_on_device(row, params);
    for (int32_t i = 0; i < c.tokens * c.rows; ++i)
      ASSERT_EQ(std::isnan(built.params.x[i]), i / c.rows == 5) << i;
    free_case();
  }
}

TEST_F(LinearStepsCuda, OnlyActivationsInEightBitsTakeDenseRowsInEightBits) {
  if ((features() & kSm90a) == 0) GTEST_SKIP() << "needs sm_90a";
  const KernelChooser chooser(DeviceKind::kCuda, features(), {});
  for (const DType weights : {DType::kBF16, DType::kMXFP4}) {
    const auto is_in_8_bits = [&](auto params, DType activation) {
      params.weight.layout = PackedLayout::kFragment16x32;
      params.activation = activation;
      params.launch = launch();
      const auto row = chooser.select(params);
      EXPECT_TRUE(row.has_value());
      return row && std::string((*row)->name).find("_i8_") != std::string::npos;
    };
    for (const int32_t tokens : {64, 8192}) {
      const OutCase out{.tokens = tokens, .rows = 2880, .cols = 4096, .weights = weights};
      const QkvCase qkv{.tokens = tokens,
                        .hidden = 2880,
                        .heads = 64,
                        .kv_heads = 8,
                        .head_dim = 64,
                        .weights = weights};
      for (const DType activation : {DType::kBF16, DType::kMXFP8, DType::kMXFP4}) {
        const bool expected = activation == DType::kMXFP8 && tokens == 8192;
        EXPECT_EQ(is_in_8_bits(out.sizes(), activation), expected) << tokens;
        EXPECT_EQ(is_in_8_bits(qkv.sizes(), activation), expected) << tokens;
      }
    }
  }
}

TEST_F(LinearStepsCuda, ExpertsInMxFormatsRoundNothingButActivations) {
  for (const DType format : {DType::kMXFP8, DType::kMXFP6, DType::kMXFP6E3M2, DType::kMXFP4}) {
    for (const int32_t tokens : {1, 20, 150, 300}) {
      expect_mx_is_exact({.tokens = tokens,
                          .hidden = 160,
                          .intermediate = 224,
                          .experts = tokens == 300 ? 4 : 3,
                          .top_k = tokens == 300 ? 4 : 2},
                         format);
    }
    // Units cut by the end of a row, and many experts.
    expect_mx_is_exact({.tokens = 33, .hidden = 992, .intermediate = 96, .experts = 32, .top_k = 4},
                       format);
    expect_mx_is_exact({.tokens = 21, .hidden = 96, .intermediate = 32, .experts = 128, .top_k = 4},
                       format);
  }
}

// As wide as gpt-oss, and wider: the reference takes seconds.
TEST_F(LinearStepsCuda, LargeExpertsInMxFormatsRoundNothingButActivations) {
  for (const DType format : {DType::kMXFP8, DType::kMXFP4}) {
    expect_mx_is_exact(
        {.tokens = 40, .hidden = 2880, .intermediate = 2880, .experts = 2, .top_k = 1}, format);
    expect_mx_is_exact(
        {.tokens = 5, .hidden = 4096, .intermediate = 4096, .experts = 1, .top_k = 1}, format);
  }
}

TEST_F(LinearStepsCuda, UnembedAgreesWithTheReference) {
  for (const DType weights : kFormats) {
    for (const int32_t rows : kTokenCounts) {
      expect_rows_agree(UnembedCase{.rows = rows, .hidden = 96, .weights = weights});
    }
    for (const int32_t rows : {2, 11, 16})
      expect_rows_agree(
          UnembedCase{.rows = rows, .hidden = 2880, .vocab = 5003, .weights = weights});
  }
}

// Fewer batches of tiles than blocks, and several a block; a last tile and a last batch that are
// not full.
TEST_F(LinearStepsCuda, TilesOfTheHeadAreTakenOnce) {
  for (const DType weights : kFormats) {
    for (const int32_t vocab : {3, 5003, 20011, 40000})
      expect_rows_agree(UnembedCase{.hidden = 192, .vocab = vocab, .weights = weights});
    expect_rows_agree(UnembedCase{.rows = 3, .hidden = 1344, .vocab = 9001, .weights = weights});
    expect_rows_agree(UnembedCase{.hidden = 2880, .vocab = 9001, .weights = weights});
  }
}

}  // namespace
}  // namespace moxie::testing
