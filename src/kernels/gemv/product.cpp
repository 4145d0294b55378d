// What the tile products accept, and what they cost.
#include "kernels/gemv/product.h"

#include "kernels/features.h"

namespace moxie {

#if !defined(__aarch64__)
const LaneKernels kLanesNeonDotI16 = {.name = "neondot_i16"};
const LaneKernels kLanesNeonDotI8 = {.name = "neondot_i8"};
#endif

const char* product_refuses(const LaneKernels& lanes, const PackedMatrix& matrix) {
  if (lanes.rms_norm == nullptr) return "not compiled for this architecture";
  if (matrix.layout != PackedLayout::kRows16) return "weights are not in the CPU's packed layout";
  switch (matrix.format) {
    case DType::kF32:
      break;
    case DType::kBF16:
      if (matrix.cols % 2 != 0) return "columns are not even";
      break;
    case DType::kQ8_0:
    case DType::kMXFP4:
      if (matrix.cols % 32 != 0) return "columns are not a multiple of 32";
      break;
    default:
      return "weights are not f32, bf16, q8_0 or mxfp4";
  }
  return products_of_format(lanes, matrix.format).tile == nullptr ? "weights are not mxfp4"
                                                                  : nullptr;
}

LaneProducts products_of_format(const LaneKernels& lanes, DType format) {
  switch (format) {
    case DType::kF32:
      return lanes.f32;
    case DType::kBF16: {
      // On these CPUs a few tokens' sums are faster side by side, although the reads are not; more
      // tokens than one call of `streams` takes would read the tiles again.
      static const bool in_order = reads_in_order();
      LaneProducts products = lanes.bf16;
      if (in_order)
        products.least_stream_tokens = 2, products.most_stream_tokens = kMaxStreamTokens;
      return products;
    }
    case DType::kQ8_0:
      return lanes.q8_0;
    default:
      CHECK(format == DType::kMXFP4, "not a packed format");
      return lanes.mxfp4;
  }
}

double product_ns(const LaneKernels& lanes, double num_weights, double num_tokens) {
  const double decodings = std::max(1.0, num_tokens / kMaxTileTokens);
  return num_weights * (decodings * lanes.decode_ns + num_tokens * lanes.apply_ns);
}

}  // namespace moxie
