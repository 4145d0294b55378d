// What came of drafts, for statistics: of one request, or of all requests of a service.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace moxie {

/// The most drafts of a request in a launch.
inline constexpr int32_t kMostDrafts = 32;

struct DraftCounts {
  /// Drafts that a request may have in a launch; 0: nothing is drafted.
  int32_t num_positions = 0;
  int64_t num_drafts = 0;    ///< launches with drafts of a request, each request for itself
  int64_t num_tokens = 0;    ///< drafts in them
  int64_t num_accepted = 0;  ///< of these, those that became part of the answer
  /// num_accepted by the draft's place behind the last known token, [num_positions].
  std::array<int64_t, kMostDrafts> accepted_at{};

  void add_launch(int32_t num_drafted) {
    ++num_drafts;
    num_tokens += num_drafted;
  }
  /// The draft at this place, from 0 on, became part of the answer.
  void add_accepted(int32_t place) {
    ++num_accepted;
    ++accepted_at[static_cast<size_t>(place)];
  }
  void add(const DraftCounts& more) {
    num_positions = more.num_positions;
    num_drafts += more.num_drafts;
    num_tokens += more.num_tokens;
    num_accepted += more.num_accepted;
    for (size_t i = 0; i < accepted_at.size(); ++i) accepted_at[i] += more.accepted_at[i];
  }
  /// The share of launches whose drafts were accepted up to this place; 0 without launches.
  double rate_at(int32_t place) const {
    return num_drafts > 0 ? static_cast<double>(accepted_at[static_cast<size_t>(place)]) /
                                static_cast<double>(num_drafts)
                          : 0;
  }
  /// Tokens that a launch with drafts has yielded; 1 without launches.
  double tokens_per_launch() const {
    return num_drafts > 0 ? 1 + static_cast<double>(num_accepted) / static_cast<double>(num_drafts)
                          : 1;
  }
  /// What was counted since `before`.
  DraftCounts since(const DraftCounts& before) const {
    DraftCounts counts = *this;
    counts.num_drafts -= before.num_drafts;
    counts.num_tokens -= before.num_tokens;
    counts.num_accepted -= before.num_accepted;
    for (size_t i = 0; i < accepted_at.size(); ++i) counts.accepted_at[i] -= before.accepted_at[i];
    return counts;
  }
};

}  // namespace moxie
