// What must hold of every CPU row of qkv, out, route, experts and unembed beside what is compared
// with the reference rows in op_testers_test.cpp: known values, ties, threads, neighbours, work.
#include "kernels/testing/row_tester.h"

namespace moxie::testing {
namespace {

constexpr DType kWeightFormats[] = {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kMXFP4};

// The activation's check values of the gpt-oss description, through the whole step: the bias alone
// makes g and u, and a down matrix of one 1 a row passes act through.
TEST(Experts, ActivationHasTheKnownValues) {
  struct Value {
    float gate, up;
    double act;
  };
  constexpr Value kValues[] = {
      {1, 0, 0.845795766},    {1, 2, 2.537387298},    {-1, 0.5f, -0.231306351},
      {10, 10, 55.999625026}, {7, -7, -41.999718770}, {-0.5f, 3, -0.598446254},
      {0.5f, -1, 0}};
  TestMachine machine;
  for (const Row<ExpertsParams>& row : Op<ExpertsParams>::rows()) {
    if (row.device != DeviceKind::kCpu || (row.needs & ~cpu_features()) != 0) continue;
    Built<ExpertsParams> built = build(ExpertsCase{
        .hidden = 32, .intermediate = 32, .experts = 1, .top_k = 1, .weights = DType::kF32});
    if (const char* why = row.refuses(built.params)) {
      EXPECT_NE(activation_rounding(row), 0) << row.name << ": " << why;
      continue;
    }
    std::vector<float> bias(64), identity(32 * 32), zeros(32);
    for (int32_t i = 0; i < 32; ++i) identity[32 * i + i] = 1;
    for (int32_t i = 0; i < 7; ++i) {
      bias[gate_up_packed_row(i, 0)] = kValues[i].gate;
      bias[gate_up_packed_row(i, 1)] = kValues[i].up;
    }
    const StoredRows stored{.kind = StoredRows::Kind::kF32,
                            .data = reinterpret_cast<const std::byte*>(identity.data()),
                            .row_stride_bytes = 32 * 4,
                            .cols = 32};
    for (int32_t tile = 0; tile < 2; ++tile) {
      int64_t lanes[16];
      for (int32_t lane = 0; lane < 16; ++lane) lanes[lane] = 16 * tile + lane;
      pack_tile_rows16(stored, lanes, DType::kF32, built.weights[1].memory.data() + 64 * 32 * tile);
    }
    built.initial_x = zeros;
    float weight = 1;
    built.params.t = zeros.data();
    built.params.gate_up_bias = bias.data();
    built.params.down_bias = zeros.data();
    built.params.expert_weights = &weight;
    const std::vector<Output> outputs = run_row(built, row, machine);
    for (int32_t i = 0; i < 7; ++i) {
      EXPECT_NEAR(outputs[0].values[i], kValues[i].act, 2e-6 * (1 + std::fabs(kValues[i].act)))
          << row.name << ", gate " << kValues[i].gate << ", up " << kValues[i].up;
    }
  }
}

TEST(Route, TiesGoToTheLowerIndex) {
  TestMachine machine;
  for (const Row<RouteParams>& row : Op<RouteParams>::rows()) {
    if (row.device != DeviceKind::kCpu || (row.needs & ~cpu_features()) != 0) continue;
    Built<RouteParams> built = build(RouteCase{.experts = 20, .top_k = 4});
    std::fill(built.weights[0].memory.begin(), built.weights[0].memory.end(), std::byte{0});
    std::vector<float> bias(20, 1.0f);
    bias[3] = 0, bias[11] = 2, bias[17] = 2;
    built.params.bias = bias.data();
    const std::vector<Output> outputs = run_row(built, row, machine);
    EXPECT_EQ(outputs[1].values, (std::vector<double>{11, 17, 0, 1})) << row.name;
    EXPECT_NEAR(outputs[2].values[0], 0.5 / (1 + std::exp(-1.0)), 1e-6) << row.name;
  }
}

template <typename Case>
void expect_same_for_any_threads(const Case& c, RowRuns& runs) {
  using P = typename Case::Params;
  for (const Row<P>& row : Op<P>::rows()) {
    if (row.device != DeviceKind::kCpu || (row.needs & ~cpu_features()) != 0) continue;
    Built<P> built = build(c);
    if (const char* why = row.refuses(built.params)) {
      runs.refused(row.name, why);
      continue;
    }
    runs.ran(row.name);
    std::vector<Output> first;
    for (int num_threads : {1, 2, 3, 7}) {
      TestMachine machine(num_threads);
      const std::vector<Output> found = run_row(built, row, machine);
      if (num_threads == 1) first = found;
      for (size_t i = 0; i < first.size(); ++i) {
        EXPECT_EQ(first[i].values, found[i].values)
            << row.name << ": " << first[i].name << " with " << num_threads << " threads";
      }
    }
  }
}

// Wide enough that the work is split.
TEST(LinearSteps, ResultsDoNotDependOnTheNumberOfThreads) {
  RowRuns runs;
  for (DType weights : {DType::kBF16, DType::kMXFP4}) {
    expect_same_for_any_threads(
        QkvCase{.tokens = 9, .hidden = 576, .heads = 6, .head_dim = 64, .weights = weights}, runs);
    expect_same_for_any_threads(OutCase{.tokens = 70, .rows = 500, .cols = 288, .weights = weights},
                                runs);
    for (int32_t tokens : {20, 150}) {
      for (const DType activation : {DType::kBF16, DType::kMXFP8}) {
        expect_same_for_any_threads(ExpertsCase{.tokens = tokens,
                                                .hidden = 576,
                                                .intermediate = 288,
                                                .experts = 12,
                                                .weights = weights,
                                                .activation = activation},
                                    runs);
      }
    }
    expect_same_for_any_threads(
        UnembedCase{.rows = 5, .hidden = 576, .vocab = 3000, .weights = weights}, runs);
  }
  expect_same_for_any_threads(RouteCase{.tokens = 80, .hidden = 576, .experts = 100}, runs);
}

// Rows that round to an MX format differ from the reference row, which rounds as well, by F32's
// sums alone, and by the few values that these bring to the other side of a middle.
TEST(Experts, MxRowsRoundNothingButActivations) {
  TestMachine machine;
  for (const DType format : {DType::kMXFP8, DType::kMXFP6, DType::kMXFP6E3M2, DType::kMXFP4}) {
    for (const int32_t intermediate : {96, 80}) {  // 80: the last block is cut
      const ExpertsCase c{.tokens = 23,
                          .hidden = 160,
                          .intermediate = intermediate,
                          .experts = 6,
                          .top_k = 3,
                          .weights = intermediate == 96 ? DType::kMXFP4 : DType::kBF16,
                          .activation = format};
      Built<ExpertsParams> built = build(c), plain = build(c);
      const Row<ExpertsParams>& reference = row_named<ExpertsParams>("experts_reference");
      const std::vector<double> expected = run_row(built, reference, machine)[0].values;
      plain.params.activation = DType::kBF16;
      const std::vector<double> unrounded = run_row(plain, reference, machine)[0].values;
      const auto difference = [&](const std::vector<double>& a, const std::vector<double>& b) {
        double squares = 0, added = 0;
        for (size_t i = 0; i < a.size(); ++i) {
          squares += (a[i] - b[i]) * (a[i] - b[i]);
          added += (a[i] - built.initial_x[i]) * (a[i] - built.initial_x[i]);
        }
        return std::sqrt(squares / added);
      };
      const double rounding = difference(unrounded, expected);
      EXPECT_GT(rounding, 0.005) << dtype_name(format);
      EXPECT_LT(rounding, format == DType::kMXFP4 ? 0.3 : 0.12) << dtype_name(format);
      int num_rows = 0;
      for (const Row<ExpertsParams>& row : Op<ExpertsParams>::rows()) {
        if (row.device != DeviceKind::kCpu || (row.needs & ~cpu_features()) != 0) continue;
        if (&row == &reference || row.refuses(built.params) != nullptr) continue;
        EXPECT_EQ(row.activation, DType::kMXFP8) << row.name;
        ++num_rows;
        built.reset();
        EXPECT_LT(difference(expected, run_row(built, row, machine)[0].values), 0.1 * rounding)
            << row.name << ", " << dtype_name(format);
      }
      EXPECT_GT(num_rows, 0);
    }
  }
}

template <typename P>
void expect_roundings_fit_the_rows() {
  for (const Row<P>& row : Op<P>::rows()) {
    const double rounding = activation_rounding(row);
    EXPECT_EQ(rounding == kI8Rounding, row.gains_by_int8 != nullptr) << row.name;
    EXPECT_EQ(rounding == kE4m3Rounding || rounding == kI8RowRounding || rounding == kMxRounding,
              row.activation == DType::kMXFP8)
        << row.name;
  }
}

// The wide tolerances are for rows that say they round to 8 bits, and for no others.
TEST(LinearSteps, OnlyRowsInEightBitsHaveTheirTolerance) {
  expect_roundings_fit_the_rows<QkvParams>();
  expect_roundings_fit_the_rows<OutParams>();
  expect_roundings_fit_the_rows<RouteParams>();
  expect_roundings_fit_the_rows<ExpertsParams>();
  expect_roundings_fit_the_rows<UnembedParams>();
}

// A token's result does not depend on the tokens beside it: decode and prefill agree to the bit.
TEST(LinearSteps, ATokensResultDoesNotDependOnItsNeighbours) {
  TestMachine machine;
  RowRuns runs;
  for (DType weights : kWeightFormats) {
    for (const Row<ExpertsParams>& row : Op<ExpertsParams>::rows()) {
      if (row.device != DeviceKind::kCpu || (row.needs & ~cpu_features()) != 0) continue;
      Built<ExpertsParams> built =
          build(ExpertsCase{.tokens = 37, .hidden = 160, .intermediate = 96, .weights = weights});
      built.params.activation = row.activation;
      if (const char* why = row.refuses(built.params)) {
        runs.refused(row.name, why);
        continue;
      }
      runs.ran(row.name);
      const std::vector<Output> together = run_row(built, row, machine);
      const ExpertsParams all = built.params;
      for (int32_t token : {0, 5, 36}) {
        ExpertsParams& p = built.params;
        built.reset();
        p = all;
        p.num_tokens = 1;
        p.t += token * all.hidden, p.x += token * all.hidden;
        p.expert_ids += token * all.top_k, p.expert_weights += token * all.top_k;
        std::vector<std::byte> workspace(row.workspace(p));
        p.launch = {.stream = machine.stream.get(),
                    .workspace = workspace.data(),
                    .workspace_bytes = workspace.size()};
        row.run(p);
        for (int32_t i = 0; i < all.hidden; ++i) {
          EXPECT_EQ(p.x[i], static_cast<float>(together[0].values[token * all.hidden + i]))
              << row.name << ", token " << token << ", column " << i;
        }
        p = all;
      }
    }
  }
}

TEST(LinearSteps, WorkCountsWeightsOnceAndTwoOperationsAProduct) {
  const Built<OutParams> out = build(OutCase{.tokens = 3, .rows = 64, .cols = 64});
  EXPECT_EQ(Op<OutParams>::work(out.params).flops, 2.0 * 3 * 64 * 64);
  EXPECT_EQ(Op<OutParams>::work(out.params).bytes, 2.0 * 64 * 64 + 4 * 64 + 4 * 3 * (64 + 128));
  const Built<ExpertsParams> experts = build(ExpertsCase{.tokens = 2, .top_k = 4});
  const Built<RouteParams> route = build(RouteCase{.tokens = 3, .hidden = 64});
  RouteParams leaving = route.params;
  leaving.forms.t = TForm::kAbsent;
  EXPECT_EQ(Op<RouteParams>::work(route.params).bytes - Op<RouteParams>::work(leaving).bytes,
            4.0 * 3 * 64);
  EXPECT_EQ(experts_work(experts.params, 5).flops, 2.0 * 3 * 64 * 64 * 2 * 4);
  EXPECT_NEAR(experts_work(experts.params, 6).bytes - experts_work(experts.params, 5).bytes,
              3 * 64 * 64 * 4.25 / 8 + 4 * (128 + 64), 1e-6);
}

// Also where a rank holds fewer experts than a token chooses.
TEST(Experts, ARankHasItsShareOfTheWork) {
  const ExpertsParams whole = ExpertsCase{.tokens = 3, .experts = 12, .top_k = 4}.sizes();
  const ExpertsParams part =
      ExpertsCase{.tokens = 3, .experts = 3, .top_k = 4, .before = 3, .behind = 6}.sizes();
  EXPECT_TRUE(holds_all_experts(whole));
  EXPECT_FALSE(holds_all_experts(part));
  EXPECT_EQ(expected_pairs(part), 3);
  const Work of_whole = Op<ExpertsParams>::work(whole), of_part = Op<ExpertsParams>::work(part);
  const double of_tokens = 3 * (12.0 * 64 + 8 * 4);
  EXPECT_EQ(of_part.flops, of_whole.flops / 4);
  EXPECT_NEAR(of_part.bytes - of_tokens, (of_whole.bytes - of_tokens) / 4, 1e-6);
}

}  // namespace
}  // namespace moxie::testing
