// MoeFp8Kernels for AVX2 with FMA and F16C: products in F32.
#include "kernels/moe_fp8/moe_fp8_f32_body.h"

namespace moxie {

const MoeFp8Kernels kMoeFp8Avx2 = {.name = "avx2",
                                   .multiply = multiply_f32,
                                   .multiply_few = multiply_few_f32,
                                   .swiglu = swiglu_f32,
                                   .add_outputs = add_outputs,
                                   .decode_ns = 0.15,
                                   .apply_ns = 0.025};

}  // namespace moxie
