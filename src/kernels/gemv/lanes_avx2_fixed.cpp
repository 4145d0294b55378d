// LaneKernels for AVX2: MXFP4 weights times activations in fixed point of 16 or 8 bits.
#include "kernels/gemv/lanes_fixed_avx2_body.h"

namespace moxie {

const LaneKernels kLanesAvx2I16 = {.name = "avx2_i16",
                                   .prepare = prepare<2, 12>,
                                   .prepared_floats = kPreparedFloats<2>,
                                   .f32 = {},
                                   .bf16 = {},
                                   .q8_0 = {},
                                   .mxfp4 = {fixed_product<2>, fixed_streams<2>, 2},
                                   .rms_norm = rms_norm,
                                   .swiglu = swiglu,
                                   .add_scaled = add_scaled,
                                   .decode_ns = 0.015,
                                   .apply_ns = 0.024};
const LaneKernels kLanesAvx2I8 = {.name = "avx2_i8",
                                  .prepare = prepare<1, 12>,
                                  .prepared_floats = kPreparedFloats<1>,
                                  .f32 = {},
                                  .bf16 = {},
                                  .q8_0 = {},
                                  .mxfp4 = {fixed_product<1>, fixed_streams<1>, 2},
                                  .rms_norm = rms_norm,
                                  .swiglu = swiglu,
                                  .add_scaled = add_scaled,
                                  .decode_ns = 0.01,
                                  .apply_ns = 0.0125};

}  // namespace moxie
