// Texts of faults, and the checks that all formats share.
#include "weights/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace moxie {

std::string Fault::message() const {
  std::string text = file;
  if (!tensor.empty()) text += (text.empty() ? "" : ": ") + tensor;
  if (!text.empty()) text += ": ";
  text += "found " + found;
  if (!expected.empty()) text += ", expected " + expected;
  return text;
}

void FaultList::add(Fault fault) {
  if (faults_.size() < kMaxFaults) {
    faults_.push_back(std::move(fault));
  } else if (faults_.size() == kMaxFaults) {
    faults_.push_back(
        {fault.file, "", "further faults, not listed", fmt::format("at most {}", kMaxFaults)});
  }
}

void check_ranges(const std::string& path, std::vector<ClaimedRange> ranges, uint64_t begin,
                  uint64_t end, uint64_t max_gap, FaultList* faults) {
  std::sort(ranges.begin(), ranges.end(), [](const ClaimedRange& a, const ClaimedRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = begin;
  const std::string* owner = nullptr;
  for (const ClaimedRange& range : ranges) {
    if (range.begin == range.end) continue;
    if (range.begin < covered && owner != nullptr) {
      faults->add(
          {path, *range.tensor,
           fmt::format("bytes {}..{} overlapping those of {}", range.begin, range.end, *owner),
           fmt::format("a start at {} or later", covered)});
    } else if (range.begin >= covered && range.begin - covered >= max_gap) {
      faults->add(
          {path, *range.tensor,
           fmt::format("{} bytes before it that belong to no tensor", range.begin - covered),
           fmt::format("a start at {}", covered)});
    }
    if (range.end > covered) {
      covered = range.end;
      owner = range.tensor;
    }
  }
  if (covered < end && end - covered >= max_gap) {
    faults->add({path, "",
                 fmt::format("{} bytes at the end that belong to no tensor", end - covered),
                 fmt::format("an end at {}", covered)});
  }
}

}  // namespace moxie
