// rms_norm on CUDA: the kernel that the steps of the model share.
#include "kernels/norm/norm_cuda.h"
#include "kernels/rms_norm/rms_norm_rows.h"

namespace moxie {

const char* rms_norm_any_f32_cuda_refuses(const RmsNormParams& p) {
  if (p.width % 4 != 0 || p.x_stride % 4 != 0 || p.y_stride % 4 != 0)
    return "columns are not a multiple of 4";
  return p.width <= kMaxWideNorm ? nullptr : "more than 16384 columns";
}

void rms_norm_any_f32_cuda(const RmsNormParams& p) {
  rms_norm_f32_cuda({.num_tokens = p.num_tokens,
                     .width = p.width,
                     .eps = p.rms_eps,
                     .x = p.x,
                     .weight = p.weight,
                     .y = p.y,
                     .x_stride = p.x_stride,
                     .y_stride = p.y_stride,
                     .x_form = p.forms.x,
                     .y_form = p.y_form},
                    p.launch);
}

}  // namespace moxie
