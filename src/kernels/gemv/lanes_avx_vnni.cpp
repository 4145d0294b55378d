// LaneKernels for AVX-VNNI (AVX2 with products of bytes): MXFP4 weights times activations in fixed
// point of 16 or 8 bits.
#include "kernels/gemv/lanes_fixed_avx2_body.h"

namespace moxie {

const LaneKernels kLanesAvxVnniI16 = fixed_lanes<2, 12>("avxvnni_i16", 2, 0.012, 0.018);
const LaneKernels kLanesAvxVnniI8 = fixed_lanes<1, 12>("avxvnni_i8", 2, 0.008, 0.009);

}  // namespace moxie
