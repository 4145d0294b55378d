// The known name nearest to a mistyped one, for "did you mean".
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moxie {

/// Levenshtein distance: insertions, deletions and replacements of one character.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1] ? 1u : 0u)});
      diagonal = above;
    }
  }
  return row[b.size()];
}

/// The nearest known name, the first of equals; empty if `known` is.
inline std::string nearest_name(std::string_view word, std::span<const std::string> known) {
  const auto best =
      std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
        return edit_distance(word, a) < edit_distance(word, b);
      });
  return best == known.end() ? std::string() : *best;
}

/// The same if it is near enough to be what was meant: a third of the word's characters may be
/// wrong; otherwise empty.
inline std::string near_name(std::string_view word, std::span<const std::string> known) {
  std::string nearest = nearest_name(word, known);
  return 3 * edit_distance(word, nearest) <= word.size() ? nearest : std::string();
}

}  // namespace moxie
