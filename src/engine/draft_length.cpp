// Averages of acceptance and of launch times, and the greedy choice over them.
#include "engine/draft_length.h"

#include <algorithm>
#include <cmath>

namespace moxie {
namespace {

constexpr double kLeastWeight = 0.1;          // of a new time
constexpr double kLeastOutcomeWeight = 0.04;  // of a new acceptance
constexpr double kReturn = 0.01;              // a launch, of the way to the place before

// The first time of a size may include what is made once.
bool is_known(int32_t count) { return count >= 2; }

}  // namespace

void AcceptanceEstimate::add(int32_t num_drafts, int32_t num_accepted) {
  // Drafts behind the first rejected one say nothing.
  const int32_t num_seen = std::min(num_drafts, num_accepted + 1);
  for (int32_t i = 0; i < num_seen; ++i) {
    const auto place = static_cast<size_t>(i);
    const double weight = std::max(kLeastOutcomeWeight, 1.0 / (counts_[place] + 2));
    rates_[place] += weight * ((i < num_accepted ? 1.0 : 0.0) - rates_[place]);
    ++counts_[place];
  }
  // Places that are not verified would stay as bad as chance has made them: they go slowly towards
  // the place before, until they are worth a try.
  for (auto place = static_cast<size_t>(std::max(num_drafts, 1)); place < rates_.size(); ++place) {
    rates_[place] += kReturn * std::max(0.0, rates_[place - 1] - rates_[place]);
  }
}

bool AcceptanceEstimate::may_learn_from_probe() const {
  double all = 1;
  for (size_t i = 0; i < kProbeDrafts; ++i) all *= rates_[i];
  return all < 0.9;
}

void AcceptanceEstimate::survival(int32_t count, std::vector<double>* out) const {
  out->clear();
  double all = 1;
  for (int32_t i = 0; i < count; ++i) out->push_back(all *= rates_[static_cast<size_t>(i)]);
}

size_t StepCosts::cell_of(int32_t num_tokens) {
  if (num_tokens <= kExact) return static_cast<size_t>(std::max(num_tokens, 0));
  const double octaves = std::log2(static_cast<double>(num_tokens) / kExact);
  return static_cast<size_t>(std::min(kCells - 1, kExact + static_cast<int32_t>(8 * octaves) + 1));
}

double StepCosts::tokens_of(size_t cell) {
  if (cell <= kExact) return static_cast<double>(cell);
  return kExact * std::exp2((static_cast<double>(cell - kExact) - 0.5) / 8);
}

// The first time of a cell may include what is made once, and a hiccup is no cost: the second
// replaces the first, and later ones count at most double.
void StepCosts::add(bool is_drafted, int32_t num_tokens, double seconds) {
  Cell& cell = (is_drafted ? drafted_ : plain_)[cell_of(num_tokens)];
  if (cell.count < 2) {
    cell.seconds = cell.count == 0 ? seconds : std::min(cell.seconds, seconds);
  } else {
    const double weight = std::max(kLeastWeight, 1.0 / cell.count);
    cell.seconds += weight * (std::min(seconds, 2 * cell.seconds) - cell.seconds);
  }
  ++cell.count;
}

bool StepCosts::knows_plain(int32_t num_tokens) const {
  const size_t cell = cell_of(num_tokens);
  if (is_known(plain_[cell].count)) return true;
  const auto known = [](const Cell& one) { return is_known(one.count); };
  const auto middle = plain_.begin() + static_cast<int64_t>(cell);
  return std::any_of(plain_.begin(), middle, known) && std::any_of(middle, plain_.end(), known);
}

double StepCosts::at(const Cells& cells, int32_t num_tokens) {
  const size_t cell = cell_of(num_tokens);
  if (is_known(cells[cell].count)) return cells[cell].seconds;
  size_t below = cell, above = cell;
  while (below > 0 && !is_known(cells[below].count)) --below;
  while (above < kCells && !is_known(cells[above].count)) ++above;
  const bool has_below = is_known(cells[below].count), has_above = above < kCells;
  if (!has_below && !has_above) return 0;
  if (!has_above) return cells[below].seconds;
  if (!has_below) return cells[above].seconds;
  const double from = tokens_of(below), to = tokens_of(above);
  const double share = (static_cast<double>(num_tokens) - from) / (to - from);
  return cells[below].seconds + share * (cells[above].seconds - cells[below].seconds);
}

double StepCosts::drafted_s(int32_t num_requests, int32_t num_tokens) const {
  const double least = plain_s(num_requests);
  const size_t cell = cell_of(num_tokens), first = cell_of(num_requests);
  const auto known = [](const Cell& one) { return is_known(one.count); };
  const auto begin = drafted_.begin() + static_cast<int64_t>(first);
  const auto here = drafted_.begin() + static_cast<int64_t>(cell);
  // Nothing smaller is known: from the launch without drafts on, in a straight line.
  if (!known(*here) && std::none_of(begin, here, known)) {
    const auto above = std::find_if(here, drafted_.end(), known);
    if (above == drafted_.end()) return least;
    const double to = tokens_of(static_cast<size_t>(above - drafted_.begin()));
    const double share = (num_tokens - num_requests) / std::max(1.0, to - num_requests);
    return std::max(least, least + share * (above->seconds - least));
  }
  return std::max(least, at(drafted_, num_tokens));
}

void DraftChooser::choose(const StepCosts& costs, int32_t num_tokens, int32_t left,
                          std::span<const DraftAsk> asks, std::vector<int32_t>* lengths) {
  lengths->assign(asks.size(), 0);
  places_.clear();
  for (size_t a = 0; a < asks.size(); ++a) {
    asks[a].estimate->survival(asks[a].limit, &survival_);
    for (const double chance : survival_) places_.push_back({chance, static_cast<int32_t>(a)});
  }
  // A request's places stay in order, since its chances do not rise.
  std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) {
    return a.survival != b.survival ? a.survival > b.survival : a.ask < b.ask;
  });
  const auto most = std::min(places_.size(), static_cast<size_t>(std::max(left, 0)));
  double tokens = num_tokens, best = tokens / costs.plain_s(num_tokens);
  size_t num_best = 0;
  for (size_t i = 0; i < most; ++i) {
    tokens += places_[i].survival;
    const double rate =
        tokens / costs.drafted_s(num_tokens, num_tokens + static_cast<int32_t>(i) + 1);
    if (!(rate > best)) continue;
    best = rate;
    num_best = i + 1;
  }
  for (size_t i = 0; i < num_best; ++i) ++(*lengths)[static_cast<size_t>(places_[i].ask)];
}

void ProbeBudget::add(double seconds, double plain_s, int32_t num_tries) {
  constexpr double kShare = 0.005, kMostTries = 4;
  // A try also ends a session of the decode loop, which begins anew behind it: about as much again,
  // and something where a token more costs nothing.
  constexpr double kOfLoop = 2, kLeast = 0.05;
  if (num_tries > 0) {
    const double cost = kOfLoop * std::max(seconds - plain_s, kLeast * plain_s);
    last_cost_s_ = cost / num_tries;
    const int32_t num_free = std::min(num_free_, num_tries);
    num_free_ -= num_free;
    credit_s_ -= last_cost_s_ * (num_tries - num_free);
  }
  credit_s_ = std::min(kMostTries * last_cost_s_, credit_s_ + kShare * seconds);
}

int32_t launches_until_probe(const StepCosts& costs, int32_t num_tokens) {
  constexpr double kLeast = 16, kMost = 4096, kShare = 0.01;
  const double plain = costs.plain_s(num_tokens);
  if (!(plain > 0)) return static_cast<int32_t>(kLeast);
  const double excess = costs.drafted_s(num_tokens, num_tokens + kProbeDrafts) / plain - 1;
  // Each of the requests is tried in a launch of its own.
  return static_cast<int32_t>(std::clamp(excess / kShare * num_tokens, kLeast, kMost));
}

}  // namespace moxie
