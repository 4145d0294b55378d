// LaneKernels for AVX2: MXFP4 weights times activations in fixed point of 16 or 8 bits.
#include "kernels/gemv/lanes_fixed_avx2_body.h"

namespace moxie {

const LaneKernels kLanesAvx2I16 = fixed_lanes<2, 12>("avx2_i16", 2, 0.015, 0.024);
const LaneKernels kLanesAvx2I8 = fixed_lanes<1, 12>("avx2_i8", 2, 0.01, 0.0125);

}  // namespace moxie
