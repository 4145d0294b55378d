// For builds without CUDA: nothing gives out a stream to call these with.
#include "model/synthetic_cuda.h"

namespace moxie {

void fill_random_matrix_cuda(const PackedMatrix&, PackedRowOrder, int32_t, double, uint64_t,
                             Stream&) {
  CHECK(false, "no CUDA in this build");
}
void fill_random_table_cuda(const RowTable&, double, uint64_t, Stream&) {
  CHECK(false, "no CUDA in this build");
}
Status fill_vector_cuda(float*, int64_t, float, Stream&) {
  return fail("no CUDA in this build", "synthetic weights");
}

}  // namespace moxie
