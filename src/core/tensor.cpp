// Names and sizes of data types.
#include "core/tensor.h"

namespace moxie {

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF8E4M3:
      return "fp8_e4m3";
    case DType::kI8:
      return "i8";
    case DType::kU8:
      return "u8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kF64:
      return "f64";
    case DType::kMXFP4:
      return "mxfp4";
    case DType::kMXFP8:
      return "mxfp8";
    case DType::kQ8_0:
      return "q8_0";
    case DType::kMXFP6:
      return "mxfp6";
    case DType::kMXFP6E3M2:
      return "mxfp6_e3m2";
  }
  return "unknown";
}

double dtype_bits(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 32;
    case DType::kF16:
    case DType::kBF16:
      return 16;
    case DType::kF8E4M3:
    case DType::kI8:
    case DType::kU8:
      return 8;
    case DType::kI64:
    case DType::kF64:
      return 64;
    case DType::kMXFP4:
      return 4.25;
    case DType::kMXFP8:
      return 8.25;
    case DType::kQ8_0:
      return 8.5;
    case DType::kMXFP6:
    case DType::kMXFP6E3M2:
      return 6.25;
  }
  return 0;
}

uint64_t dtype_bytes(DType dtype, uint64_t num_elements) {
  switch (dtype) {
    case DType::kMXFP4:
      return num_elements / 32 * 17;
    case DType::kMXFP8:
      return num_elements / 32 * 33;
    case DType::kQ8_0:
      return num_elements / 32 * 34;
    case DType::kMXFP6:
    case DType::kMXFP6E3M2:
      return num_elements / 32 * 25;
    default:
      return num_elements * static_cast<uint64_t>(dtype_bits(dtype)) / 8;
  }
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (int i = 0; i < rank; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

}  // namespace moxie
