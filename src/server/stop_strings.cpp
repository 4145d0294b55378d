// Stop strings.
#include "server/stop_strings.h"

#include <algorithm>

namespace moxie {

StopStrings::StopStrings(std::vector<std::string> stops, bool keep)
    : stops_(std::move(stops)), keep_(keep) {}

bool StopStrings::push(std::string_view piece, std::string* out, bool may_end) {
  if (stops_.empty()) {
    *out += piece;
    return false;
  }
  const size_t num_held = held_.size();
  held_ += piece;
  // The stop string that ends first wins, as if text came byte by byte; of several, the longest.
  size_t end = std::string::npos;
  const std::string* first = nullptr;
  for (const std::string& stop : stops_) {
    const size_t at = may_end ? held_.find(stop, num_held - std::min(num_held, stop.size() - 1))
                              : std::string::npos;
    if (at == std::string::npos) continue;
    const bool better = first == nullptr || at + stop.size() < end ||
                        (at + stop.size() == end && stop.size() > first->size());
    if (!better) continue;
    end = at + stop.size();
    first = &stop;
  }
  if (first != nullptr) {
    found_ = *first;
    out->append(held_, 0, keep_ ? end : end - first->size());
    held_.clear();
    return true;
  }
  size_t keep_back = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > keep_back; --size) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, size))) {
        keep_back = size;
        break;
      }
    }
  }
  out->append(held_, 0, held_.size() - keep_back);
  held_.erase(0, held_.size() - keep_back);
  return false;
}

void StopStrings::flush(std::string* out) {
  *out += held_;
  held_.clear();
}

}  // namespace moxie
