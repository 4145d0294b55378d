// The cases of every operation. Plain ones: shapes that do not fill tiles, all weight formats, all
// cache formats and token counts around the tile product's groups. Timed ones: a layer of
// gpt-oss-20b.
#include "kernels/testing/op_testers.h"

namespace moxie::testing {
namespace {

constexpr DType kWeightFormats[] = {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kMXFP4};
constexpr DType kCacheFormats[] = {DType::kF32, DType::kBF16, DType::kF8E4M3};
constexpr int32_t kTokenCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 33};
constexpr int32_t kHidden = 2880, kHeads = 64, kKvHeads = 8, kHeadDim = 64, kExperts = 32;
constexpr int32_t kVocab = 201088;

// The case with each of the timed numbers of tokens.
template <typename Case>
std::vector<Case> timed(Case c, int32_t Case::*tokens) {
  std::vector<Case> cases;
  for (int32_t count : {1, 8, 64}) {
    c.*tokens = count;
    cases.push_back(c);
  }
  return cases;
}

// With weights as the checkpoint has them, and for the rows that take MXFP4 alone.
template <typename Case>
std::vector<Case> timed_in_both(Case c, int32_t Case::*tokens) {
  std::vector<Case> cases = timed(c, tokens);
  c.weights = DType::kMXFP4;
  for (const Case& other : timed(c, tokens)) cases.push_back(other);
  return cases;
}

}  // namespace

template <>
std::vector<EmbedCase> OpTester<EmbedCase>::plain_cases() {
  std::vector<EmbedCase> cases;
  for (DType table : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    for (int32_t tokens : kTokenCounts) cases.push_back({.tokens = tokens, .table = table});
  }
  return cases;
}

template <>
std::vector<EmbedCase> OpTester<EmbedCase>::timed_cases() {
  return timed(EmbedCase{.hidden = kHidden, .vocab = 16384}, &EmbedCase::tokens);
}

template <>
std::vector<QkvCase> OpTester<QkvCase>::plain_cases() {
  std::vector<QkvCase> cases;
  for (DType weights : kWeightFormats) {
    for (DType cache : kCacheFormats) {
      for (int32_t tokens : kTokenCounts)
        cases.push_back({.tokens = tokens, .hidden = 96, .weights = weights, .cache = cache});
    }
    cases.push_back(
        {.tokens = 9, .hidden = 32, .heads = 4, .kv_heads = 2, .head_dim = 64, .weights = weights});
    cases.push_back({.tokens = 3, .hidden = 2880, .heads = 3, .head_dim = 64, .weights = weights});
    // Groups of 16 tokens, pairs and calls of them, all with a rest.
    for (int32_t tokens : {16, 17, 49, 130})
      cases.push_back({.tokens = tokens, .hidden = 160, .head_dim = 96, .weights = weights});
  }
  return cases;
}

template <>
std::vector<QkvCase> OpTester<QkvCase>::timed_cases() {
  return timed_in_both(
      QkvCase{.hidden = kHidden, .heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim},
      &QkvCase::tokens);
}

template <>
std::vector<AttendCase> OpTester<AttendCase>::plain_cases() {
  std::vector<AttendCase> cases;
  for (DType cache : kCacheFormats) {
    for (int32_t window : {0, 33}) {
      for (int32_t tokens : {1, 3, 18})
        cases.push_back({.tokens = tokens, .depth = 150, .window = window, .cache = cache});
      cases.push_back({.depth = 0, .heads = 5, .kv_heads = 1, .head_dim = 96, .window = window});
    }
  }
  return cases;
}

template <>
std::vector<AttendCase> OpTester<AttendCase>::timed_cases() {
  // A token of each sequence, then a prompt.
  AttendCase c{.seqs = 1, .depth = 1024, .heads = kHeads, .kv_heads = kKvHeads};
  std::vector<AttendCase> cases = timed(c, &AttendCase::seqs);
  c.tokens = 64;
  for (int32_t window : {0, 128}) {
    c.window = window;
    cases.push_back(c);
  }
  return cases;
}

template <>
std::vector<OutCase> OpTester<OutCase>::plain_cases() {
  std::vector<OutCase> cases;
  for (DType weights : kWeightFormats) {
    for (int32_t tokens : kTokenCounts)
      cases.push_back({.tokens = tokens, .rows = 100, .cols = 160, .weights = weights});
    for (int32_t cols : {32, 64, 288, 2880})
      cases.push_back({.tokens = 3, .rows = 23, .cols = cols, .weights = weights});
    for (int32_t tokens : {16, 17, 32, 150, 300}) {
      cases.push_back({.tokens = tokens, .rows = 33, .cols = 64, .weights = weights});
      cases.push_back({.tokens = tokens, .rows = 70, .cols = 1056, .weights = weights});
    }
  }
  for (int32_t tokens : {3, 40}) {
    for (DType weights : {DType::kBF16, DType::kMXFP4})
      cases.push_back(
          {.tokens = tokens, .rows = 70, .cols = 1056, .weights = weights, .overwrites = true});
  }
  // Formats without blocks take any (BF16: even) number of columns.
  cases.push_back({.rows = 17, .cols = 37, .weights = DType::kF32});
  for (int32_t tokens : {1, 19}) {
    for (int32_t cols : {38, 50})
      cases.push_back({.tokens = tokens, .rows = 17, .cols = cols, .weights = DType::kBF16});
  }
  return cases;
}

template <>
std::vector<OutCase> OpTester<OutCase>::timed_cases() {
  return timed_in_both(OutCase{.rows = kHidden, .cols = kHeads * kHeadDim}, &OutCase::tokens);
}

template <>
std::vector<RouteCase> OpTester<RouteCase>::plain_cases() {
  std::vector<RouteCase> cases;
  for (DType weights : kWeightFormats) {
    for (int32_t tokens : kTokenCounts)
      cases.push_back({.tokens = tokens, .hidden = 96, .weights = weights});
    cases.push_back({.tokens = 70, .hidden = 288, .experts = 21, .top_k = 3, .weights = weights});
    cases.push_back({.hidden = 2880, .experts = 128, .weights = weights});
  }
  return cases;
}

template <>
std::vector<RouteCase> OpTester<RouteCase>::timed_cases() {
  return timed(RouteCase{.hidden = kHidden, .experts = kExperts}, &RouteCase::tokens);
}

template <>
std::vector<ExpertsCase> OpTester<ExpertsCase>::plain_cases() {
  std::vector<ExpertsCase> cases;
  for (DType weights : kWeightFormats) {
    for (int32_t tokens : kTokenCounts)
      cases.push_back({.tokens = tokens, .hidden = 96, .weights = weights});
    ExpertsCase loud{.tokens = 6, .hidden = 160, .intermediate = 96, .experts = 5, .top_k = 2};
    loud.weights = weights, loud.input_scale = 10;
    cases.push_back(loud);
    for (ExpertsCase c :
         {ExpertsCase{.tokens = 2, .hidden = 2880, .intermediate = 288, .experts = 4},
          ExpertsCase{.tokens = 200, .hidden = 64, .intermediate = 32, .experts = 6},
          ExpertsCase{.tokens = 290, .hidden = 608, .intermediate = 160, .experts = 9}}) {
      c.weights = weights;
      cases.push_back(c);
    }
  }
  // Experts of other ranks; tokens may have no pair here.
  for (int32_t tokens : {1, 2, 30})
    cases.push_back({.tokens = tokens, .experts = 3, .before = 4, .behind = 2});
  for (const DType activation : {DType::kMXFP8, DType::kMXFP6, DType::kMXFP6E3M2, DType::kMXFP4})
    cases.push_back({.tokens = 9, .hidden = 96, .intermediate = 160, .activation = activation});
  // Outputs that do not fill the last gate/up pair of tiles.
  for (int32_t tokens : {5, 77})
    cases.push_back({.tokens = tokens, .intermediate = 40, .weights = DType::kBF16});
  return cases;
}

template <>
std::vector<ExpertsCase> OpTester<ExpertsCase>::timed_cases() {
  const ExpertsCase even{
      .hidden = kHidden, .intermediate = kHidden, .experts = kExperts, .is_uneven = false};
  std::vector<ExpertsCase> cases = timed(even, &ExpertsCase::tokens);
  cases.push_back(even);
  cases.back().tokens = 64, cases.back().activation = DType::kMXFP8;
  return cases;
}

template <>
std::vector<UnembedCase> OpTester<UnembedCase>::plain_cases() {
  std::vector<UnembedCase> cases;
  for (DType weights : kWeightFormats) {
    for (int32_t rows : kTokenCounts)
      cases.push_back({.rows = rows, .hidden = 96, .vocab = 121, .weights = weights});
    for (int32_t rows : {2, 70})
      cases.push_back({.rows = rows, .hidden = 2880, .vocab = 201, .weights = weights});
  }
  return cases;
}

template <>
std::vector<UnembedCase> OpTester<UnembedCase>::timed_cases() {
  return timed_in_both(UnembedCase{.hidden = kHidden, .vocab = kVocab}, &UnembedCase::rows);
}

template <>
std::vector<SampleCase> OpTester<SampleCase>::plain_cases() {
  std::vector<SampleCase> cases;
  for (int32_t rows : kTokenCounts) cases.push_back({.rows = rows});
  return cases;
}

template <>
std::vector<SampleCase> OpTester<SampleCase>::timed_cases() {
  return timed(SampleCase{.vocab = kVocab, .num_logprobs = -1}, &SampleCase::rows);
}

template <>
std::vector<TapCase> OpTester<TapCase>::plain_cases() {
  std::vector<TapCase> cases;
  for (int32_t tokens : kTokenCounts) cases.push_back({.tokens = tokens});
  return cases;
}

template <>
std::vector<TapCase> OpTester<TapCase>::timed_cases() {
  return timed(TapCase{.hidden = kHidden}, &TapCase::tokens);
}

template <>
std::vector<ReduceCase> OpTester<ReduceCase>::plain_cases() {
  std::vector<ReduceCase> cases;
  for (int32_t tokens : kTokenCounts) {
    cases.push_back({.tokens = tokens});
    cases.push_back({.tokens = tokens, .hidden = 2880, .ranks = 4, .rank = 2});
  }
  return cases;
}

template <>
std::vector<ReduceCase> OpTester<ReduceCase>::timed_cases() {
  return timed(ReduceCase{.hidden = kHidden}, &ReduceCase::tokens);
}

template <>
std::vector<GatherCase> OpTester<GatherCase>::plain_cases() {
  std::vector<GatherCase> cases;
  for (int32_t rows : kTokenCounts) {
    cases.push_back({.rows = rows});
    cases.push_back({.rows = rows, .width = 100, .ranks = 3, .missing = 7});
  }
  return cases;
}

template <>
std::vector<GatherCase> OpTester<GatherCase>::timed_cases() {
  return timed(GatherCase{.width = kVocab / 2, .missing = 0}, &GatherCase::rows);
}

template <>
std::vector<RmsNormCase> OpTester<RmsNormCase>::plain_cases() {
  std::vector<RmsNormCase> cases{{.tokens = 0}};
  for (int32_t tokens : kTokenCounts) {
    cases.push_back({.tokens = tokens});
    cases.push_back({.tokens = tokens, .width = 100, .gap = 28});
    cases.push_back({.tokens = tokens, .gap = 32, .is_copy = true});
  }
  return cases;
}

template <>
std::vector<RmsNormCase> OpTester<RmsNormCase>::timed_cases() {
  return timed(RmsNormCase{.width = kHidden}, &RmsNormCase::tokens);
}

template <>
std::vector<GateCase> OpTester<GateCase>::plain_cases() {
  std::vector<GateCase> cases{{.tokens = 0}};
  for (int32_t tokens : kTokenCounts) cases.push_back({.tokens = tokens, .width = 80});
  return cases;
}

template <>
std::vector<GateCase> OpTester<GateCase>::timed_cases() {
  return timed(GateCase{.width = 7680}, &GateCase::tokens);
}

template <>
std::vector<RotateCase> OpTester<RotateCase>::plain_cases() {
  std::vector<RotateCase> cases;
  for (DType cache : kCacheFormats) {
    for (int32_t tokens : kTokenCounts) {
      cases.push_back({.tokens = tokens, .cache = cache});
      cases.push_back({.tokens = tokens, .heads = 3, .kv_heads = 3, .cache = cache, .norms = true});
    }
    cases.push_back({.tokens = 7, .kv_heads = 2, .cache = cache, .norms = true, .keys_only = true});
    cases.push_back({.tokens = 5, .cache = cache, .norms = true, .keys_only = true, .gap = 96});
  }
  return cases;
}

template <>
std::vector<RotateCase> OpTester<RotateCase>::timed_cases() {
  return timed(RotateCase{.heads = kHeads, .kv_heads = kKvHeads, .head_dim = kHeadDim},
               &RotateCase::tokens);
}

template <>
std::vector<MoeFp8Case> OpTester<MoeFp8Case>::plain_cases() {
  std::vector<MoeFp8Case> cases{{.tokens = 0}};
  for (int32_t tokens : kTokenCounts) cases.push_back({.tokens = tokens});
  // Groups that are full, that are not, and more than one call of a product takes.
  cases.push_back({.tokens = 64, .hidden = 384, .intermediate = 256, .experts = 16});
  cases.push_back({.tokens = 300, .hidden = 128, .intermediate = 128, .experts = 8, .top_k = 4});
  return cases;
}

template <>
std::vector<MoeFp8Case> OpTester<MoeFp8Case>::timed_cases() {
  return timed(MoeFp8Case{.hidden = 7168, .intermediate = 2048, .experts = 64},
               &MoeFp8Case::tokens);
}

}  // namespace moxie::testing
