// Makes small safetensors files in memory for tests; nothing is checked, so that faulty files can
// be made too.
#pragma once

#include <span>
#include <string>

#include "core/tensor.h"

namespace moxie {

/// One tensor of such a file. `dtype` is the format's own name ("F32", "BF16", "U8").
struct TensorBytes {
  std::string name, dtype;
  Shape shape;
  std::span<const std::byte> bytes;
};

/// A whole file with these tensors, in this order, with an 8-byte aligned header.
std::string safetensors_bytes(std::span<const TensorBytes> tensors);

}  // namespace moxie
