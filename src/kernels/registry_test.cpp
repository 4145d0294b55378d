// The tables as a whole: names, reference rows, choice by cost, forced rows, reasons and counts.
#include "kernels/registry.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "kernels/testing/row_tester.h"

namespace moxie::testing {
namespace {

constexpr Features kEverything = ~Features{0};

TEST(AllRows, NamesAreUniqueAndStartWithTheOperationsThatTheyDo) {
  std::set<std::string> names;
  for (const RowInfo& row : all_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name << " appears twice";
    std::string prefix;
    for (const OpInfo* op : row.ops) prefix += std::string(op->name) + "_";
    EXPECT_EQ(row.name.substr(0, prefix.size()), prefix);
    EXPECT_FALSE(row.supports.empty()) << row.name;
    EXPECT_FALSE(row.limits.empty()) << row.name;
    EXPECT_FALSE(row.ran_on.empty()) << row.name;
  }
}

TEST(AllOps, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const OpTable& table : all_ops()) {
    EXPECT_TRUE(names.insert(table.op->name).second) << table.op->name << " appears twice";
    EXPECT_EQ(op_named(table.op->name), table.op);
  }
  EXPECT_EQ(op_named("expert"), nullptr);
}

TEST(AllRows, EveryOperationHasAReferenceRowThatNeedsNothing) {
  std::set<std::string> found;
  for (const RowInfo& row : all_rows()) {
    if (row.name != std::string(row.op().name) + "_reference") continue;
    found.insert(row.name);
    EXPECT_EQ(row.needs, kFeatureNone) << row.name;
    EXPECT_EQ(row.device, DeviceKind::kCpu) << row.name;
  }
  EXPECT_EQ(found.size(), all_ops().size());
}

TEST(KernelChooser, TakesTheCheapestRowThatTheFeaturesAllow) {
  const Built<OutParams> built = build(OutCase{.weights = DType::kMXFP4});
  const struct {
    Features features;
    const char* name;
  } kExpected[] = {
    {kFeatureNone, "out_any_f32_gemv_portable"},
#if defined(__x86_64__)
    {kAvx2, "out_mxfp4_i16_gemv_avx2"},
    {kAvx2 | kAvxVnni, "out_mxfp4_i16_gemv_avxvnni"},
    {kAvx2 | kAvx512, "out_any_f32_gemv_avx512"},
    {kAvx2 | kAvxVnni | kAvx512 | kAvx512Vnni, "out_mxfp4_i16_gemv_avx512vnni"}
#endif
  };
  for (const auto& expected : kExpected) {
    const KernelChooser chooser(DeviceKind::kCpu, expected.features, {});
    const auto row = chooser.select(built.params);
    ASSERT_TRUE(row.has_value());
    EXPECT_STREQ((*row)->name, expected.name);
    for (const Row<OutParams>& other : Op<OutParams>::rows()) {
      if (other.device != DeviceKind::kCpu) continue;
      if ((other.needs & ~expected.features) != 0) continue;
      if (other.gains_by_int8 != nullptr || other.refuses(built.params) != nullptr) continue;
      EXPECT_LE((*row)->predict_us(built.params, {}), other.predict_us(built.params, {}))
          << other.name;
    }
  }
}

#if defined(__x86_64__)
TEST(KernelChooser, RowsThatRoundTo8BitsRunIfAskedOrForcedByName) {
  const Built<OutParams> built = build(OutCase{.weights = DType::kMXFP4});
  const std::string name = "out_mxfp4_i8_gemv_avx2";
  const auto chosen = [&](const KernelChoice& choice) -> std::string {
    const KernelChooser chooser(DeviceKind::kCpu, kAvx2, choice);
    for (const Verdict& verdict : chooser.explain(built.params)) {
      if (verdict.row.name == name && !choice.int8() &&
          choice.forced(Op<OutParams>::info) == nullptr) {
        EXPECT_NE(verdict.reason.find("--activation int8"), std::string::npos) << verdict.reason;
      }
    }
    return (*chooser.select(built.params))->name;
  };
  KernelChoice choice;
  EXPECT_NE(chosen(choice), name);
  KernelChoice asked;
  ASSERT_TRUE(asked.set_activation("int8").has_value());
  EXPECT_EQ(chosen(asked), name);
  EXPECT_EQ(asked.activation(), DType::kBF16) << "the experts' 8-bit floats are another switch";
  ASSERT_TRUE(choice.add("out=" + name).has_value());
  EXPECT_EQ(chosen(choice), name);
}

TEST(KernelChooser, RowsThatRoundTo8BitsRunByThemselvesForManyTokensOfAWideModel) {
  const auto chosen = [](const OutCase& sizes, const char* activation) -> std::string {
    KernelChoice choice;
    EXPECT_TRUE(choice.set_activation(activation).has_value());
    return (*KernelChooser(DeviceKind::kCpu, kAvx2, choice).select(build(sizes).params))->name;
  };
  const OutCase many{.tokens = 8, .rows = 2048, .weights = DType::kMXFP4};
  OutCase few = many, narrow = many;
  few.tokens = 7;
  narrow.rows = 2032;
  EXPECT_EQ(chosen(many, "auto"), "out_mxfp4_i8_gemv_avx2");
  EXPECT_EQ(chosen(many, "bf16"), "out_mxfp4_i16_gemv_avx2");
  EXPECT_EQ(chosen(few, "auto"), "out_mxfp4_i16_gemv_avx2");
  EXPECT_EQ(chosen(narrow, "auto"), "out_mxfp4_i16_gemv_avx2");
  EXPECT_EQ(chosen(few, "int8"), "out_mxfp4_i8_gemv_avx2");
}

// A kind that rows of 16 and of 8 bits share does not ask for 8.
TEST(KernelChooser, ForcedKindDoesNotRoundTo8Bits) {
  KernelChoice choice;
  ASSERT_TRUE(choice.add("experts=gemv").has_value());
  const Built<ExpertsParams> built = build(ExpertsCase{.weights = DType::kMXFP4});
  const auto row = KernelChooser(DeviceKind::kCpu, kAvx2, choice).select(built.params);
  ASSERT_TRUE(row.has_value());
  EXPECT_STREQ((*row)->name, "experts_mxfp4_i16_gemv_avx2");
}
#endif

TEST(KernelChooser, ForcedRowIsTaken) {
  KernelChoice choice;
  ASSERT_TRUE(choice.add("out=reference").has_value());
  const KernelChooser chooser(DeviceKind::kCpu, kEverything, choice);
  const Built<OutParams> built = build(OutCase{});
  const auto row = chooser.select(built.params);
  ASSERT_TRUE(row.has_value());
  EXPECT_STREQ((*row)->name, "out_reference");
  for (const Verdict& verdict : chooser.explain(built.params)) {
    if (verdict.chosen) {
      EXPECT_EQ(verdict.reason, "forced");
    }
  }
}

#if defined(__x86_64__)
TEST(KernelChooser, ForcedRowThatLacksFeaturesFailsWithTheReason) {
  KernelChoice choice;
  ASSERT_TRUE(choice.add("out=out_any_f32_gemv_avx512").has_value());
  const KernelChooser chooser(DeviceKind::kCpu, kAvx2, choice);
  const auto row = chooser.select(build(OutCase{}).params);
  ASSERT_FALSE(row.has_value());
  EXPECT_NE(row.error().message().find("avx512"), std::string::npos) << row.error().message();
  EXPECT_NE(row.error().message().find("lacks"), std::string::npos) << row.error().message();
}
#endif

// Of another architecture: in the table, so that there is one for all, and refused here.
TEST(KernelChooser, ForcedRowOfAnotherArchitectureFailsWithTheReason) {
  KernelChoice choice;
  ASSERT_TRUE(choice.add("out=out_mxfp4_i16_gemv_neondot").has_value());
  const auto row = KernelChooser(DeviceKind::kCpu, kEverything, choice)
                       .select(build(OutCase{.weights = DType::kMXFP4}).params);
#if defined(__aarch64__)
  ASSERT_TRUE(row.has_value());
  EXPECT_STREQ((*row)->name, "out_mxfp4_i16_gemv_neondot");
#else
  ASSERT_FALSE(row.has_value());
  EXPECT_NE(row.error().message().find("not compiled for this"), std::string::npos)
      << row.error().message();
#endif
}

TEST(KernelChooser, ForcedRowThatRefusesFailsWithTheReason) {
  KernelChoice choice;
  ASSERT_TRUE(choice.add("qkv=qkv_any_f32_gemv_portable").has_value());
  const KernelChooser chooser(DeviceKind::kCpu, kFeatureNone, choice);
  Built<QkvParams> built = build(QkvCase{});
  built.params.head_dim = 48;
  const auto row = chooser.select(built.params);
  ASSERT_FALSE(row.has_value());
  EXPECT_NE(row.error().message().find("head_dim"), std::string::npos) << row.error().message();
}

TEST(KernelChooser, LayoutOfAnotherDeviceIsRefusedByEveryRow) {
  Built<OutParams> built = build(OutCase{});
  built.params.weight.layout = PackedLayout::kFragment16x32;
  const KernelChooser chooser(DeviceKind::kCpu, kEverything, {});
  EXPECT_FALSE(chooser.select(built.params).has_value());
}

TEST(KernelChooser, ExplainGivesEveryRowAReasonAndChoosesOne) {
  const KernelChooser chooser(DeviceKind::kCpu, cpu_features(), {});
  const Built<ExpertsParams> built = build(ExpertsCase{});
  const std::vector<Verdict> verdicts = chooser.explain(built.params);
  EXPECT_EQ(verdicts.size(), Op<ExpertsParams>::rows().size());
  int num_chosen = 0;
  for (const Verdict& verdict : verdicts) {
    EXPECT_FALSE(verdict.reason.empty()) << verdict.row.name;
    num_chosen += verdict.chosen ? 1 : 0;
  }
  EXPECT_EQ(num_chosen, 1);
}

TEST(KernelChooser, CountsLaunchesByName) {
  KernelChooser chooser(DeviceKind::kCpu, kFeatureNone, {});
  TestMachine machine;
  Built<OutParams> built = build(OutCase{});
  built.reset();
  built.params.launch.stream = machine.stream.get();
  for (int i = 0; i < 3; ++i) chooser.run(built.params);
  const auto counts = chooser.counts();
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(counts[0].name, "out_any_f32_gemv_portable");
  EXPECT_EQ(counts[0].op, &Op<OutParams>::info);
  EXPECT_EQ(counts[0].launches, 3u);
  chooser.reset_counts();
  EXPECT_TRUE(chooser.counts().empty());
}

TEST(KernelChooser, AddsTimesOfRunsUpWhileAsked) {
  KernelChooser chooser(DeviceKind::kCpu, kFeatureNone, {});
  TestMachine machine;
  Built<OutParams> built = build(OutCase{});
  built.reset();
  built.params.launch.stream = machine.stream.get();
  chooser.run(built.params);
  EXPECT_TRUE(chooser.times().empty()) << "nobody asked";
  chooser.add_times(true);
  chooser.run(built.params);
  ASSERT_EQ(chooser.times().size(), 1u);
  EXPECT_EQ(chooser.times()[0].op, &Op<OutParams>::info);
  const double once = chooser.times()[0].seconds;
  EXPECT_GT(once, 0);
  chooser.run(built.params);
  const double twice = chooser.times()[0].seconds;
  EXPECT_GT(twice, once);
  chooser.add_times(false);
  chooser.run(built.params);
  EXPECT_EQ(chooser.times()[0].seconds, twice);
}

TEST(KernelChooser, RecordedLaunchesCountEachTimeTheyRun) {
  KernelChooser chooser(DeviceKind::kCpu, kFeatureNone, {});
  TestMachine machine;
  Built<OutParams> built = build(OutCase{});
  built.reset();
  built.params.launch.stream = machine.stream.get();
  chooser.begin_recording();
  for (int i = 0; i < 2; ++i) chooser.run(built.params);
  const KernelChooser::Launches recorded = chooser.end_recording();
  EXPECT_TRUE(chooser.counts().empty()) << "recorded, not run";
  for (int i = 0; i < 3; ++i) chooser.count(recorded);
  chooser.run(built.params);
  ASSERT_EQ(chooser.counts().size(), 1u);
  EXPECT_EQ(chooser.counts()[0].launches, 7u);
}

TEST(KernelChoice, BadAssignmentsSayWhatIsNearest) {
  KernelChoice choice;
  const struct {
    const char* assignment;
    const char* hint;
  } kCases[] = {{"expert=reference", "experts"},
                {"out=out_referense", "out_reference"},
                {"out", "STEP=NAME"},
                {"=x", "STEP=NAME"},
                {"all=out_reference", "reference"}};
  for (const auto& c : kCases) {
    const Status status = choice.add(c.assignment);
    ASSERT_FALSE(status.has_value()) << c.assignment;
    EXPECT_NE(status.error().message().find(c.hint), std::string::npos) << status.error().message();
  }
}

TEST(KernelChoice, AllReferenceForcesEveryStepAndAutoFreesThem) {
  KernelChoice choice;
  EXPECT_FALSE(choice.all_reference());
  ASSERT_TRUE(choice.add("all=reference").has_value());
  EXPECT_TRUE(choice.all_reference());
  ASSERT_TRUE(choice.add("experts=auto").has_value());
  EXPECT_FALSE(choice.all_reference());
  EXPECT_EQ(choice.forced(Op<ExpertsParams>::info), nullptr);
}

#if defined(__x86_64__)
TEST(Features, AmdsCoresReadInOrder) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpuinfo{std::istreambuf_iterator<char>(file), {}};
  if (cpuinfo.empty()) GTEST_SKIP() << "no /proc/cpuinfo";
  EXPECT_EQ(reads_in_order(), cpuinfo.find("AuthenticAMD") != std::string::npos);
}
#endif

TEST(Features, NamesArePrinted) {
  EXPECT_EQ(feature_names(kFeatureNone), "none");
  EXPECT_EQ(feature_names(kAvx2 | kAvx512), "avx2 avx512");
}

TEST(KernelChoice, KindsAllowTheRowsThatSayThem) {
  const Built<ExpertsParams> built = build(ExpertsCase{});
  KernelChoice choice;
  ASSERT_TRUE(choice.add("experts=gemv").has_value());
  EXPECT_TRUE(choice.allows(row_named<ExpertsParams>("experts_any_f32_gemv_portable")));
  EXPECT_FALSE(choice.allows(row_named<ExpertsParams>("experts_reference")));
  EXPECT_TRUE(choice.allows(row_named<QkvParams>("qkv_reference"))) << "another operation's";
  const KernelChooser chooser(DeviceKind::kCpu, kFeatureNone, choice);
  const auto row = chooser.select(built.params);
  ASSERT_TRUE(row.has_value());
  EXPECT_STREQ((*row)->name, "experts_any_f32_gemv_portable");

  ASSERT_TRUE(choice.add("experts=w4a8").has_value());
  const KernelChooser other(DeviceKind::kCpu, kFeatureNone, choice);
  EXPECT_FALSE(other.select(built.params).has_value()) << "no CPU row is of this kind";
  EXPECT_FALSE(choice.add("qkv=w4a8").has_value()) << "of experts alone";
}

TEST(KernelChoice, ActivationsAreIn8BitsWhereAskedForAndWhereAForcedRowWantsThem) {
  KernelChoice choice;
  EXPECT_EQ(choice.activation(), DType::kBF16);
  ASSERT_TRUE(choice.set_activation("mxfp8").has_value());
  EXPECT_EQ(choice.activation(), DType::kMXFP8);
  ASSERT_TRUE(choice.set_activation("bf16").has_value());
  ASSERT_TRUE(choice.add("experts=w4a8").has_value());
  EXPECT_EQ(choice.activation(), DType::kBF16) << "said, so that the row refuses";
  ASSERT_TRUE(choice.set_activation("auto").has_value());
  EXPECT_EQ(choice.activation(), DType::kMXFP8);
  for (const DType format : {DType::kMXFP6, DType::kMXFP6E3M2, DType::kMXFP4}) {
    ASSERT_TRUE(choice.set_activation(std::string(dtype_name(format))).has_value());
    EXPECT_EQ(choice.activation(), format) << "whatever the forced row wants";
  }
  for (const char* value : {"mxfp5", "int4", ""})
    EXPECT_FALSE(choice.set_activation(value).has_value()) << value;
}

}  // namespace
}  // namespace moxie::testing
