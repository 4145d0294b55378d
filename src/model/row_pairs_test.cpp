// Every pair of CPU rows that can meet at a border of a pass.
#include "model/testing/row_pairs.h"

#include <gtest/gtest.h>

namespace moxie {
namespace {

TEST(RowPairs, EveryPairThatCanMeetAgreesWithTheReferenceChain) {
  testing::test_row_pairs(*make_cpu_device(2), cpu_features());
}

}  // namespace
}  // namespace moxie
