// How many experts neighbouring tokens of a text have in common. A launch that verifies drafts runs
// neighbouring tokens and reads each expert that any of them chose, so its cost depends on it.
//
// And how many experts of a layer could be guessed before its attention, by its router from x as it
// is then: what a row could load early.
//
// The text runs through the model as a prompt does. After each layer's experts the choices are read
// back from the device, which waits there for the host.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace moxie {

/// A text of which the tokens from `first` on are looked at: those of the answer.
struct RoutedText {
  std::string name;  ///< of what it is an example
  std::vector<int32_t> ids;
  size_t first = 0;
};

/// Experts that each token of a text chose: [layers][tokens * top_k].
using Routes = std::vector<std::vector<int32_t>>;
/// `guessed`: likewise what each layer's router chooses from x before the layer; or null. Only one
/// rank has all of x.
Result<Routes> read_routes(Engine& engine, std::span<const int32_t> ids, Routes* guessed = nullptr);

struct SharedExperts {
  static constexpr int32_t kLeastTokens = 2, kMostTokens = 8;
  /// Distinct experts that 2, 3, ... 8 neighbouring tokens read in a layer: the mean over places.
  using ByTokens = std::array<double, kMostTokens - kLeastTokens + 1>;
  struct Part {
    std::string name;
    int64_t num_tokens = 0;
    std::vector<ByTokens> layers;
    ByTokens mean{};  ///< over layers
    /// The share of a token's experts that is guessed before attention; empty for several ranks.
    std::vector<double> guessed;
    double mean_guessed = 0;  ///< over layers
  };
  int32_t num_experts = 0, top_k = 0;
  ByTokens independent{};   ///< if tokens chose evenly, each for itself
  Part all;                 ///< of all texts together
  std::vector<Part> parts;  ///< by name, in the order of the first text
};

/// Fails if no text has kMostTokens tokens to look at, or one is longer than the context.
Result<SharedExperts> measure_shared_experts(Engine& engine, std::span<const RoutedText> texts);

nlohmann::ordered_json to_json(const SharedExperts& shared);

/// Reads {"name": [text, ...], ...}. A text is a list of ids, a string, or {"prompt": ids or
/// string, "answer": ids or string}, whose answer is looked at. Control tokens in a string are read
/// as such. `tokenizer` may be null.
Result<std::vector<RoutedText>> parse_routed_texts(const std::string& json,
                                                   const std::string& where,
                                                   const Tokenizer* tokenizer, int32_t vocab);

}  // namespace moxie
