// Every CPU row of every operation against its reference row, and that no operation is without.
#include "kernels/testing/op_testers.h"

#include <set>

#include "kernels/testing/row_tester.h"

namespace moxie::testing {
namespace {

template <typename Tester>
class OpRows : public ::testing::Test {};

template <typename... Testers>
::testing::Types<Testers...> types_of(const std::tuple<Testers...>&);

struct OpNames {
  template <typename Tester>
  static std::string GetName(int) {
    return Op<typename Tester::Params>::info.name;
  }
};
TYPED_TEST_SUITE(OpRows, decltype(types_of(all_op_testers())), OpNames);

TYPED_TEST(OpRows, AgreeWithTheReference) {
  TestMachine machine;
  RowRuns runs;
  for (const auto& c : TypeParam::plain_cases()) expect_rows_agree(c, machine, runs);
}

// The bench has an entry for each row that this machine can run, the reference row apart.
TYPED_TEST(OpRows, AreTimed) {
  std::set<std::string> names, timed;
  for (const auto& c : TypeParam::timed_cases())
    EXPECT_TRUE(names.insert(c.name()).second) << c.name() << " appears twice";
  for_each_timed_row<TypeParam>([&](const auto& row, const auto&) { timed.insert(row.name); });
  for (const auto& row : Op<typename TypeParam::Params>::rows()) {
    if (row.device != DeviceKind::kCpu || (row.needs & ~cpu_features()) != 0) continue;
    const bool is_reference = std::string(row.name).ends_with("_reference");
    EXPECT_EQ(timed.contains(row.name), !is_reference) << row.name;
  }
}

TEST(OpTesters, EveryOperationHasOne) {
  std::multiset<const OpInfo*> tested;
  const auto add = [&]<typename... Testers>(const std::tuple<Testers...>&) {
    (tested.insert(&Op<typename Testers::Params>::info), ...);
  };
  add(all_op_testers());
  for (const OpTable& table : all_ops())
    EXPECT_EQ(tested.count(table.op), 1u) << "testers of " << table.op->name;
  EXPECT_EQ(tested.size(), all_ops().size()) << "a tester of an operation that is not listed";
}

}  // namespace
}  // namespace moxie::testing
