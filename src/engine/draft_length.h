// How many drafts pay: what is known of a request's acceptance, what launches cost, and the choice
// that follows from both. A draft costs a token of the launch whether it is accepted or not.
//
// With S(i) the share of launches whose drafts are accepted up to place i, R requests and D drafts,
// a launch yields R + sum of S tokens in the time t(R + D). The drafts are taken in order of S, as
// many as make tokens a second greatest; none is one of the choices. Times are those that launches
// have taken here, from one to the next, with what the host and the drafter do between.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/draft_counts.h"

namespace moxie {

inline constexpr int32_t kProbeDrafts = 2;

/// Of one request, or of all: how likely the draft at each place is accepted if all before it are.
/// Exponential averages, quick at first.
class AcceptanceEstimate {
 public:
  AcceptanceEstimate() { rates_.fill(kPrior); }

  /// A launch verified `num_drafts` and accepted `num_accepted` of them.
  void add(int32_t num_drafts, int32_t num_accepted);
  /// The chance that the drafts up to place `i` are all accepted, for i below `count`.
  void survival(int32_t count, std::vector<double>* out) const;
  /// Whether another accepted probe would still tell something.
  bool may_learn_from_probe() const;
  /// Forgets how much it knows, not what: a request begins with the estimate of those before it.
  void begin() { counts_.fill(0); }

 private:
  static constexpr double kPrior = 0.7;
  std::array<double, kMostDrafts> rates_{};
  std::array<int32_t, kMostDrafts> counts_{};
};

/// The time of launches by their number of tokens: of those without drafts, which need not wait for
/// the host, and of those whose requests are drafted.
class StepCosts {
 public:
  void add(bool is_drafted, int32_t num_tokens, double seconds);
  /// Whether the time of launches without drafts is known near this number of tokens.
  bool knows_plain(int32_t num_tokens) const;
  double plain_s(int32_t num_tokens) const { return at(plain_, num_tokens); }
  /// Between measured numbers of tokens interpolated; beyond the greatest it costs nothing more,
  /// so that it is tried. At least plain_s(num_requests), where launches of this kind begin.
  double drafted_s(int32_t num_requests, int32_t num_tokens) const;

 private:
  struct Cell {
    double seconds = 0;
    int32_t count = 0;
  };
  // Numbers of tokens up to kExact have a cell each, greater ones share eight an octave.
  static constexpr int32_t kExact = 64, kCells = 256;
  using Cells = std::array<Cell, kCells>;
  static size_t cell_of(int32_t num_tokens);
  static double tokens_of(size_t cell);
  static double at(const Cells& cells, int32_t num_tokens);

  Cells plain_{}, drafted_{};
};

/// What tries may cost: a share of the time of all launches, however many requests there are. A try
/// is a request's kProbeDrafts in a launch, though drafts do not pay for it.
class ProbeBudget {
 public:
  bool may_try() const { return num_free_ > 0 || credit_s_ >= 0; }
  /// A launch has taken `seconds`; without its tries it would have taken `plain_s`.
  void add(double seconds, double plain_s, int32_t num_tries);
  /// All drafts of one of the last launch's tries were accepted: it has paid for itself.
  void give_back() { credit_s_ += last_cost_s_; }

 private:
  int32_t num_free_ = 8;  // before anything is known
  double credit_s_ = 0, last_cost_s_ = 0;
};

/// What is learned of all requests: of the costs of launches and of how drafts fare.
struct DraftMemory {
  StepCosts costs;
  ProbeBudget probes;
  AcceptanceEstimate usual;
  int32_t num_rests = 0;  ///< of the request that rested or was drafted last
};

/// One request of a launch that is being planned.
struct DraftAsk {
  const AcceptanceEstimate* estimate = nullptr;
  int32_t limit = 0;
};

class DraftChooser {
 public:
  /// Writes, for each request that may be drafted, how many drafts pay. `num_tokens`: of the
  /// launch without drafts, one a decoding request. `left`: drafts that the launch has room for.
  void choose(const StepCosts& costs, int32_t num_tokens, int32_t left,
              std::span<const DraftAsk> asks, std::vector<int32_t>* lengths);

 private:
  struct Place {
    double survival;
    int32_t ask;
  };
  std::vector<Place> places_;  // scratch
  std::vector<double> survival_;
};

/// Launches until a request for which drafts do not pay is tried again with kProbeDrafts: so many
/// that trying costs about a hundredth of all launches' time.
int32_t launches_until_probe(const StepCosts& costs, int32_t num_tokens);

}  // namespace moxie
