// For builds without CUDA: there is no stream to call these with.
#include "model/draft_ids_cuda.h"
#include "model/draft_masks_cuda.h"
#include "model/eight_bits_cuda.h"
#include "model/repack_cuda.h"
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
void repack_on_device(const MatrixRepack&, Stream&) { CHECK(false, "no CUDA in this build"); }
void draft_ids_cuda(const SampleAnswer*, int32_t, const int32_t*, int32_t*, Stream&) {
  CHECK(false, "no CUDA in this build");
}
void draft_masks_cuda(const int32_t*, int32_t, int32_t, const float*, int32_t, float*, Stream&) {
  CHECK(false, "no CUDA in this build");
}
uint64_t eight_bits_bytes(const ModelWeights&) { return 0; }
Status add_eight_bits_cuda(Device&, Stream&, ModelWeights&) {
  return fail("no CUDA in this build", "--activation");
}

}  // namespace moxie
