// Writes a safetensors file: an 8-byte header length, a JSON header, the tensors' bytes.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/base.h"
#include "core/tensor.h"

namespace moxie {

struct TensorToWrite {
  std::string name;
  std::string dtype;  ///< as safetensors names it: "F32", "BF16", "U8", ...
  Shape shape;
  const std::byte* data = nullptr;
};

/// Fails if the file cannot be written whole; then one that was there stays as it was.
Status write_safetensors(const std::string& path, const std::vector<TensorToWrite>& tensors);

}  // namespace moxie
