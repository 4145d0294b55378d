// The distribution of tokens drawn with speculation against the target's own, by chi-square: with
// top-p, penalties and a grammar, alone and together, and for wrong rules, which must fail.
//
// The model is a table of logits by the token before. Scheduler, Verification, Sampler and the
// machine's row of sample are real. The test computes the target's distribution of each draw on its
// own, from the draw's context: the token before and how often each token is in the answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "engine/step_loop.h"
#include "engine/testing/fake_runner.h"

namespace moxie {
namespace {

constexpr int32_t kIds = 6, kPrompt = 2, kAnswerTokens = 6, kAnswers = 8000, kMaxDrafts = 3;
constexpr int64_t kLeastDraws = 20000, kLeastOfContext = 60;

using ByToken = std::array<double, kIds>;

// From 0 to count - 1 (splitmix64).
int32_t next(uint64_t* state, int32_t count) {
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return static_cast<int32_t>((z ^ z >> 31) % static_cast<uint64_t>(count));
}

// Logits by the token before, from -1.25 to 1.25.
const std::array<std::array<float, kIds>, kIds>& logits() {
  static const auto kTable = [] {
    std::array<std::array<float, kIds>, kIds> table{};
    uint64_t state = 3;
    for (auto& row : table) {
      for (float& logit : row) logit = static_cast<float>(next(&state, 251) - 125) / 100;
    }
    return table;
  }();
  return kTable;
}

// What a grammar forbids depends on the token before; behind every third token anything goes.
bool allows(int32_t last, int32_t num_drawn, int32_t id) {
  return num_drawn % 3 == 2 || (id != last && (id + 2 * last) % 5 != 1);
}

class Grammar : public TokenConstraint {
 public:
  explicit Grammar(int32_t last) : last_(last) {}
  bool fill_mask(std::span<uint32_t> mask) override {
    mask[0] = 0;
    for (int32_t id = 0; id < kIds; ++id) mask[0] |= allows(last_, num_drawn_, id) ? 1u << id : 0u;
    return num_drawn_ % 3 != 2;
  }
  // A wrong rule may draw a forbidden token: the counts show it.
  Status accept(int32_t token) override {
    last_ = token;
    ++num_drawn_;
    return {};
  }
  std::unique_ptr<TokenConstraint> fork() const override {
    return std::make_unique<Grammar>(*this);
  }

 private:
  int32_t last_, num_drawn_ = 0;
};

// How a token is drawn behind each place of a block of drafts.
enum class Rule : uint8_t {
  kAsServed,
  kAcceptsDrafts,     ///< whatever the target says
  kAcceptsThenDraws,  ///< accepts a draft by its probability, but then draws from all tokens
  kOneCountABlock,    ///< penalties of the block's first place at all its places
  kOneMaskABlock,     ///< the mask likewise
};

class TableRunner : public FakeRunner {
 public:
  TableRunner(const Limits& limits, Rule rule)
      : FakeRunner({}, limits),
        rule_(rule),
        device_(make_cpu_device(1)),
        stream_(std::move(*device_->make_stream())) {
    for (const Row<SampleParams>& row : Op<SampleParams>::rows()) {
      if (row.device == DeviceKind::kCpu && (row.needs & cpu_features()) == row.needs) row_ = &row;
    }
  }
  Status run(const HostArrays& arrays) override {
    places_.clear();
    logits_.clear();
    for (const int32_t at : arrays.logit_rows) {
      const auto i = static_cast<size_t>(at), behind = i + 1;
      const bool is_first = places_.empty() || places_.back().seq != arrays.seq_idx[i];
      const bool has_draft =
          behind < arrays.seq_idx.size() && arrays.seq_idx[behind] == arrays.seq_idx[i];
      places_.push_back({.seq = arrays.seq_idx[i],
                         .first = is_first ? places_.size() : places_.back().first,
                         .draft = has_draft ? arrays.token_ids[behind] : -1});
      const auto& row = logits()[static_cast<size_t>(arrays.token_ids[i])];
      logits_.insert(logits_.end(), row.begin(), row.end());
    }
    return FakeRunner::run(arrays);
  }
  Status sample(std::span<const SampleRequest> asked, std::span<SampleAnswer> answers) override {
    std::vector<SampleRequest> requests(asked.begin(), asked.end());
    for (size_t i = 0; i < requests.size(); ++i) {
      const SampleRequest& first = asked[places_[i].first];
      if (rule_ == Rule::kOneMaskABlock) requests[i].allowed_mask = first.allowed_mask;
      if (rule_ != Rule::kOneCountABlock) continue;
      requests[i].history_ids = first.history_ids;
      requests[i].history_counts = first.history_counts;
      requests[i].num_history = first.num_history;
    }
    draw(requests, answers);
    if (rule_ != Rule::kAcceptsDrafts && rule_ != Rule::kAcceptsThenDraws) return {};
    for (SampleRequest& request : requests) request.seed += kAnswers;
    std::vector<SampleAnswer> coins(answers.size());
    draw(requests, coins);
    for (size_t i = 0; i < answers.size(); ++i) {
      const int32_t draft = places_[i].draft;
      const bool accepts = rule_ == Rule::kAcceptsDrafts || coins[i].token == draft;
      if (draft >= 0 && accepts) answers[i].token = draft;
    }
    return {};
  }

 private:
  struct Place {
    int32_t seq = 0;
    size_t first = 0;  // place of the block
    int32_t draft = -1;
  };
  void draw(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) {
    SampleParams params{.num_rows = static_cast<int32_t>(requests.size()),
                        .vocab = kIds,
                        .logits = logits_.data(),
                        .requests = requests.data(),
                        .answers = answers.data()};
    params.launch.workspace_bytes = row_->workspace(params);
    workspace_.resize(params.launch.workspace_bytes + 64);
    const auto at = reinterpret_cast<uintptr_t>(workspace_.data());
    params.launch.stream = stream_.get();
    params.launch.workspace = workspace_.data() + (64 - at % 64) % 64;
    row_->run(params);
  }

  const Rule rule_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  const Row<SampleParams>* row_ = nullptr;  // the last of the table that this machine can run
  std::vector<Place> places_;               // of the rows of logits
  std::vector<float> logits_;
  std::vector<std::byte> workspace_;
};

// The likeliest token behind the one before, and now and then any.
class TableDrafter : public Drafter {
 public:
  void propose(const Ask& ask) override {
    int32_t last = ask.tokens.back();
    for (int32_t i = 0; i < ask.limit; ++i) {
      const auto& row = logits()[static_cast<size_t>(last)];
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      last = next(&state_, 4) == 0 ? next(&state_, kIds) : static_cast<int32_t>(best);
      ask.drafts->push_back(last);
    }
  }
  void observe(RequestId, std::span<const int32_t>, int32_t) override {}
  void forget(RequestId) override {}

 private:
  uint64_t state_ = 1;
};

struct Settings {
  SamplingOptions sampling;
  bool has_grammar = false;
};

struct Context {
  int32_t last = 0;
  std::array<int32_t, kIds> counts{};  // of each token in the answer
  auto operator<=>(const Context&) const = default;
};

// The definition: penalties, mask, temperature, then the fewest likeliest tokens that make top_p.
ByToken target(const Settings& settings, const Context& context) {
  const SamplingOptions& s = settings.sampling;
  const int32_t drawn = std::accumulate(context.counts.begin(), context.counts.end(), 0);
  ByToken weights{};
  for (size_t id = 0; id < kIds; ++id) {
    if (settings.has_grammar && !allows(context.last, drawn, static_cast<int32_t>(id))) continue;
    const double penalty = context.counts[id] * static_cast<double>(s.frequency_penalty) +
                           (context.counts[id] > 0 ? static_cast<double>(s.presence_penalty) : 0);
    const double logit = logits()[static_cast<size_t>(context.last)][id];
    weights[id] = std::exp((logit - penalty) / static_cast<double>(s.temperature));
  }
  std::array<size_t, kIds> order{};
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  for (const size_t id : order) {
    if (kept >= static_cast<double>(s.top_p) * total) weights[id] = 0;
    kept += weights[id];
  }
  const double rest = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= rest;
  return weights;
}

struct Draws {
  std::map<Context, std::array<int64_t, kIds>> counts;
  DraftCounts drafts;
};

// Draws kAnswers answers with the seeds from 0 on, many at a time.
Draws draw_answers(const Settings& settings, Rule rule) {
  TableRunner runner({.max_num_seqs = 8,
                      .max_batch_tokens = 64,
                      .max_logit_rows = 64,
                      .max_model_len = 16,
                      .vocab = kIds},
                     rule);
  TableDrafter drafter;
  StepLoop loop(runner,
                {.max_num_seqs = 8,
                 .max_batch_tokens = 64,
                 .prefix_cache = false,
                 .drafting = {.drafter = &drafter, .max_drafts = kMaxDrafts}},
                {});
  std::vector<std::vector<int32_t>> answers(kAnswers);
  for (uint64_t seed = 0; seed < kAnswers; ++seed) {
    ServiceRequest request{.prompt = std::vector<int32_t>(kPrompt, 1),
                           .sampling = settings.sampling};
    request.sampling.seed = seed;
    request.sampling.max_tokens = kAnswerTokens;
    if (settings.has_grammar) request.constraint = std::make_shared<Grammar>(1);
    request.sink = [&answer = answers[seed]](const RequestUpdate& update) {
      for (const SampleAnswer& token : update.tokens) answer.push_back(token.token);
    };
    auto made = make_request(std::move(request), runner);
    made->id = seed + 1;
    loop.scheduler().add(std::move(made));
  }
  while (loop.scheduler().num_requests() > 0) {
    const Status status = loop.turn();
    CHECK(status.has_value(), status ? "" : status.error().message());
  }
  Draws draws{.drafts = loop.scheduler().stats().drafts};
  for (const auto& answer : answers) {
    CHECK(answer.size() == kAnswerTokens);
    Context context{.last = 1};
    for (const int32_t id : answer) {
      ++draws.counts[context][static_cast<size_t>(id)];
      ++context.counts[static_cast<size_t>(id)];
      context.last = id;
    }
  }
  return draws;
}

struct ChiSquare {
  double value = 0;  // infinite if a token was drawn that cannot be
  int degrees = 0;
  int64_t num_draws = 0;

  // Exceeded by chance once in a million (Wilson and Hilferty 1931: the cube root is nearly
  // normal).
  double critical() const {
    constexpr double kDeviations = 4.753424;
    const double v = 2.0 / (9.0 * degrees);
    return degrees * std::pow(1 - v + kDeviations * std::sqrt(v), 3);
  }
  bool passes() const { return value < critical(); }
};

// Over the contexts that are frequent enough for the approximation. Tokens of a context that are
// expected fewer than five times are counted as one.
ChiSquare compare(const Settings& settings, const Draws& draws) {
  ChiSquare result;
  const auto add = [&result](double expected, double found) {
    if (expected == 0 && found == 0) return 0;
    result.value += (found - expected) * (found - expected) / expected;
    return 1;
  };
  for (const auto& [context, counts] : draws.counts) {
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const ByToken wanted = target(settings, context);
    double rare = 0, found_rare = 0;
    int num_cells = 0;
    for (size_t id = 0; id < kIds; ++id) {
      const double expected = wanted[id] * static_cast<double>(total);
      if (wanted[id] == 0 && counts[id] > 0) result.value = INFINITY;
      if (wanted[id] == 0 || total < kLeastOfContext) continue;
      if (expected >= 5) {
        num_cells += add(expected, static_cast<double>(counts[id]));
      } else {
        rare += expected;
        found_rare += static_cast<double>(counts[id]);
      }
    }
    if (total < kLeastOfContext) continue;
    num_cells += add(rare, found_rare);
    result.degrees += num_cells - 1;
    result.num_draws += total;
  }
  return result;
}

const SamplingOptions kTopP{.temperature = 0.9f, .top_p = 0.8f};
const SamplingOptions kPenalties{
    .temperature = 1, .frequency_penalty = 0.4f, .presence_penalty = 0.5f};
const Settings kAll{.sampling = {.temperature = 0.9f,
                                 .top_p = 0.8f,
                                 .frequency_penalty = 0.4f,
                                 .presence_penalty = 0.5f},
                    .has_grammar = true};

TEST(SpeculativeDrawsTest, HaveTheTargetsDistribution) {
  const Settings cases[] = {{}, {kTopP}, {kPenalties}, {{}, true}, kAll};
  for (const Settings& settings : cases) {
    const Draws draws = draw_answers(settings, Rule::kAsServed);
    const ChiSquare found = compare(settings, draws);
    const std::string name = "case" + std::to_string(&settings - cases);
    SCOPED_TRACE(name);
    RecordProperty(name, std::to_string(found.value) + " below " +
                             std::to_string(found.critical()) + ", " +
                             std::to_string(found.num_draws) + " draws");
    EXPECT_LT(found.value, found.critical()) << found.degrees << " degrees of freedom";
    EXPECT_GE(found.num_draws, kLeastDraws);
    // Both ends of a draft are drawn often.
    EXPECT_GT(draws.drafts.num_accepted, 2000);
    EXPECT_GT(draws.drafts.num_tokens - draws.drafts.num_accepted, 2000);
  }
}

TEST(SpeculativeDrawsTest, OfWrongRulesHaveAnother) {
  EXPECT_FALSE(compare({}, draw_answers({}, Rule::kAcceptsDrafts)).passes());
  EXPECT_FALSE(compare({}, draw_answers({}, Rule::kAcceptsThenDraws)).passes());
  EXPECT_FALSE(compare({kPenalties}, draw_answers({kPenalties}, Rule::kOneCountABlock)).passes());
  for (const Rule rule : {Rule::kAcceptsDrafts, Rule::kAcceptsThenDraws, Rule::kOneCountABlock,
                          Rule::kOneMaskABlock}) {
    EXPECT_FALSE(compare(kAll, draw_answers(kAll, rule)).passes()) << static_cast<int>(rule);
  }
}

}  // namespace
}  // namespace moxie
