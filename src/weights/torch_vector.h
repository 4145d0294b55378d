// Reads a vector that torch.save wrote: a zip archive of stored entries, in which data.pkl
// describes the tensor and data/0 holds its values.
//
// The pickle is never executed: its opcodes are compared with those of a tensor, and anything else
// is refused. Sources: what PyTorch 2.11 writes, Python's pickletools, PKWARE's APPNOTE.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weights/mapped_file.h"

namespace moxie {

struct TorchVector {
  std::vector<float> values;
  std::map<std::string, int64_t> numbers;  ///< of the dict that holds the tensor, by name
};

/// The one tensor of the file, alone or in a dict with whole numbers, of BF16, F16 or F32, of at
/// most two dimensions, one of them above 1, and at most `max_values` values. Refuses anything else
/// with the reason and what to do.
Result<TorchVector> read_torch_vector(const MappedFile& file, int64_t max_values);

}  // namespace moxie
