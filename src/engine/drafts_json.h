// What came of drafts, as documents and people read it.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/draft_counts.h"

namespace moxie {

/// {"drafts", "draft_tokens", "accepted_tokens", "accepted_per_position": [...]}.
inline nlohmann::ordered_json drafts_json(const DraftCounts& counts) {
  auto accepted = nlohmann::ordered_json::array();
  for (int32_t i = 0; i < counts.num_positions; ++i) {
    accepted.push_back(counts.accepted_at[static_cast<size_t>(i)]);
  }
  return {{"drafts", counts.num_drafts},
          {"draft_tokens", counts.num_tokens},
          {"accepted_tokens", counts.num_accepted},
          {"accepted_per_position", std::move(accepted)}};
}

/// "2.41 tokens a draft, accepted 80%, 53%, 8% by position of 120 drafts".
inline std::string drafts_text(const DraftCounts& counts) {
  if (counts.num_drafts == 0) return "no drafts";
  std::string rates;
  for (int32_t i = 0; i < counts.num_positions; ++i) {
    rates += fmt::format("{}{:.0f}%", i == 0 ? "" : ", ", 100 * counts.rate_at(i));
  }
  return fmt::format("{:.2f} tokens a draft, accepted {} by position of {} drafts",
                     counts.tokens_per_launch(), rates, counts.num_drafts);
}

}  // namespace moxie
