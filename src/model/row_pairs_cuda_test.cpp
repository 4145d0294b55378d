// Every pair of CUDA rows that can meet at a border of a pass, against the CPU's reference rows.
#include "kernels/testing/cuda_test.h"
#include "model/testing/row_pairs.h"

namespace moxie {
namespace {

class RowPairsCuda : public CudaTest {};

TEST_F(RowPairsCuda, EveryPairThatCanMeetAgreesWithTheReferenceChain) {
  testing::test_row_pairs(device(), features());
}

}  // namespace
}  // namespace moxie
