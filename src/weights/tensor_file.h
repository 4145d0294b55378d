// The contents of a file of tensors in any format: names, types, shapes, places of the bytes, and
// all faults.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "weights/fault.h"
#include "weights/mapped_file.h"

namespace moxie {

/// One tensor of a file. Shapes are outermost first (GGUF's dimensions are reversed).
struct FileTensor {
  std::string name;
  std::string dtype_text;      ///< as the file names it: "BF16", "U8", "MXFP4", "Q8_0"
  std::optional<DType> dtype;  ///< empty for a type that no weight can have
  Shape shape;
  uint64_t offset = 0;  ///< from the start of the file
  uint64_t bytes = 0;
  /// Whether the bytes are inside the file and match dtype and shape; only then may they be read.
  bool is_readable = false;
};

struct TensorFile {
  std::shared_ptr<const MappedFile> file;
  std::vector<FileTensor> tensors;  ///< in file order of their names
  FaultList faults;
  /// The bytes of one of these tensors, if it is readable.
  const std::byte* data(const FileTensor& tensor) const {
    return file->bytes().data() + tensor.offset;
  }
};

/// A range of bytes that a tensor claims, for check_ranges.
struct ClaimedRange {
  uint64_t begin = 0, end = 0;
  const std::string* tensor = nullptr;
};

/// Adds a fault for each pair of overlapping neighbours and for each hole of `max_gap` bytes or
/// more between `begin` and `end` that no tensor claims.
void check_ranges(const std::string& path, std::vector<ClaimedRange> ranges, uint64_t begin,
                  uint64_t end, uint64_t max_gap, FaultList* faults);

}  // namespace moxie
