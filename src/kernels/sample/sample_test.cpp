// sample: the generator's published vectors, the distribution of draws, each filter against a
// naive one, the edges, and every CPU row against the reference, token for token.
#include "kernels/sample/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "kernels/sample/philox.h"

namespace moxie {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const Row<SampleParams>*> rows_here() {
  std::vector<const Row<SampleParams>*> rows;
  for (const auto& row : Op<SampleParams>::rows()) {
    if (row.device != DeviceKind::kCpu) continue;
    if ((row.needs & cpu_features()) == row.needs) rows.push_back(&row);
  }
  return rows;
}
const Row<SampleParams>& reference() { return Op<SampleParams>::rows()[0]; }

// Runs rows of the table; keeps the device and its threads.
class Sampler {
 public:
  explicit Sampler(int num_threads = 2)
      : device_(make_cpu_device(num_threads)), stream_(std::move(*device_->make_stream())) {}

  std::vector<SampleAnswer> run(const Row<SampleParams>& row, const std::vector<float>& logits,
                                const std::vector<SampleRequest>& requests) {
    const auto num_rows = static_cast<int32_t>(requests.size());
    SampleParams params{.num_rows = num_rows,
                        .vocab = static_cast<int32_t>(logits.size()) / num_rows,
                        .logits = logits.data(),
                        .requests = requests.data()};
    const uint64_t bytes = row.workspace(params);
    workspace_.assign(bytes + 128, std::byte{0xFF});
    const auto at = reinterpret_cast<uintptr_t>(workspace_.data());
    params.launch.stream = stream_.get();
    params.launch.workspace = workspace_.data() + (64 - at % 64) % 64;
    params.launch.workspace_bytes = bytes;
    std::vector<SampleAnswer> answers(requests.size());
    params.answers = answers.data();
    row.run(params);
    for (size_t i = 0; i < 64; ++i)
      EXPECT_EQ(params.launch.workspace[bytes + i], std::byte{0xFF}) << row.name;
    return answers;
  }
  SampleAnswer one(const Row<SampleParams>& row, const std::vector<float>& logits,
                   const SampleRequest& request) {
    return run(row, logits, std::vector<SampleRequest>{request})[0];
  }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::byte> workspace_;
};

// The probabilities that a request gives, as its definition reads: no code of the rows.
std::vector<double> naive_probabilities(const std::vector<double>& logits, double temperature,
                                        size_t top_k, double top_p, double min_p) {
  std::vector<size_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  std::vector<double> weights(logits.size(), 0.0);
  for (size_t i = 0; i < order.size() && (top_k == 0 || i < top_k); ++i)
    weights[order[i]] = std::exp((logits[order[i]] - logits[order[0]]) / temperature);
  const auto normalise = [&] {
    double total = 0;
    for (double w : weights) total += w;
    for (double& w : weights) w /= total;
  };
  normalise();
  double mass = 0;
  for (size_t id : order) {
    if (mass >= top_p && id != order[0]) weights[id] = 0;
    mass += weights[id];
  }
  for (double& w : weights) w = w < min_p * weights[order[0]] ? 0 : w;
  normalise();
  return weights;
}

// Expects `counts` of draws to fit the probabilities: chi-square within five deviations of its
// mean, and nothing drawn that has none.
void expect_distribution(const std::vector<int>& counts, const std::vector<double>& probabilities,
                         const std::string& what) {
  double total = 0, chi_square = 0, freedom = -1;
  for (int count : counts) total += count;
  for (size_t id = 0; id < counts.size(); ++id) {
    const double expected = total * probabilities[id];
    if (probabilities[id] == 0) {
      EXPECT_EQ(counts[id], 0) << what << " id " << id;
      continue;
    }
    ASSERT_GE(expected, 5.0) << "too few draws for the test";
    chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    freedom += 1;
  }
  EXPECT_LE(chi_square, freedom + 5 * std::sqrt(2 * std::max(freedom, 1.0))) << what;
}

TEST(Philox, GivesThePublishedWords) {
  const auto zeros = philox4x32_10({{0, 0, 0, 0}}, 0, 0);
  const uint32_t expected_zeros[] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  const auto ones = philox4x32_10({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u);
  const uint32_t expected_ones[] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  const auto pi =
      philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0);
  const uint32_t expected_pi[] = {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(zeros.word[i], expected_zeros[i]);
    EXPECT_EQ(ones.word[i], expected_ones[i]);
    EXPECT_EQ(pi.word[i], expected_pi[i]);
  }
}

TEST(Gumbel, NoiseStaysInItsRangeAndHasItsMean) {
  double sum = 0, least = 100, greatest = -100;
  for (int32_t id = 0; id < 100000; ++id) {
    const double noise = gumbel_noise(7, 3, id);
    sum += noise;
    least = std::min(least, noise);
    greatest = std::max(greatest, noise);
  }
  EXPECT_NEAR(sum / 100000, 0.57722, 0.02);  // five deviations of the mean
  EXPECT_GE(least, -3.2);
  EXPECT_LE(greatest, 22.9);
  // Seed, step and id all matter, in all their bits.
  const double base = gumbel_noise(1, 1, 1);
  EXPECT_NE(base, gumbel_noise(1 + (1ull << 32), 1, 1));
  EXPECT_NE(base, gumbel_noise(1, 1 + (1ull << 32), 1));
  EXPECT_NE(base, gumbel_noise(2, 1, 1));
  EXPECT_NE(base, gumbel_noise(1, 2, 1));
  EXPECT_NE(base, gumbel_noise(1, 1, 2));
}

TEST(Sample, DrawsFollowTheProbabilities) {
  const std::vector<double> logits = {2.0, 0.5, 1.0, -0.5, 0.0, 1.5, -1.0, 1.75, 0.25};
  const std::vector<float> row_logits(logits.begin(), logits.end());
  struct Filters {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
  };
  const Filters filters[] = {{1, 0, 1, 0},    {0.5f, 0, 1, 0}, {2, 0, 1, 0},    {1, 4, 1, 0},
                             {1, 0, 0.7f, 0}, {1, 0, 1, 0.3f}, {2, 6, 0.8f, 0}, {2, 5, 0.9f, 0.4f}};
  Sampler sampler(1);
  constexpr int kDraws = 8000, kBatch = 100;
  for (const auto* row : rows_here()) {
    for (const Filters& f : filters) {
      for (bool by_seed : {false, true}) {
        std::vector<int> counts(logits.size(), 0);
        for (int i = 0; i < kDraws; i += kBatch) {
          std::vector<SampleRequest> requests;
          std::vector<float> batch;
          for (int j = 0; j < kBatch; ++j) {
            requests.push_back({.temperature = f.temperature,
                                .top_k = f.top_k,
                                .top_p = f.top_p,
                                .min_p = f.min_p,
                                .seed = by_seed ? static_cast<uint64_t>(i + j) : 42u,
                                .step = by_seed ? 5u : static_cast<uint64_t>(i + j)});
            batch.insert(batch.end(), row_logits.begin(), row_logits.end());
          }
          for (const auto& answer : sampler.run(*row, batch, requests))
            ++counts[static_cast<size_t>(answer.token)];
        }
        expect_distribution(counts,
                            naive_probabilities(logits, f.temperature, static_cast<size_t>(f.top_k),
                                                f.top_p, f.min_p),
                            std::string(row->name) + " t " + std::to_string(f.temperature) + " k " +
                                std::to_string(f.top_k) + " p " + std::to_string(f.top_p) +
                                " min " + std::to_string(f.min_p));
      }
    }
  }
}

TEST(Sample, GreedyTakesTheGreatestLogitAndTheLowerIdOfEquals) {
  Sampler sampler;
  for (const auto* row : rows_here()) {
    for (int32_t vocab : {1, 2, 15, 64, 1000, 4097}) {
      std::vector<float> logits(static_cast<size_t>(vocab), -1.0f);
      EXPECT_EQ(sampler.one(*row, logits, {}).token, 0) << row->name;
      logits.back() = 3.0f;
      EXPECT_EQ(sampler.one(*row, logits, {}).token, vocab - 1) << row->name;
      logits[static_cast<size_t>(vocab / 2)] = 3.0f;
      EXPECT_EQ(sampler.one(*row, logits, {}).token, vocab / 2) << row->name;
    }
    for (float temperature : {0.0f, -1.0f, 1e-9f, kNan})
      EXPECT_EQ(sampler.one(*row, {0.0f, 1.0f, 0.999f}, {.temperature = temperature}).token, 1);
  }
}

TEST(Sample, PenaltiesAndBiasChangeTheLogitsAsOpenAiAndVllmDefineThem) {
  Sampler sampler;
  const std::vector<int32_t> history = {0, 1, 2}, counts = {0, 1, 3};
  for (const auto* row : rows_here()) {
    SampleRequest request;
    request.history_ids = history.data();
    request.history_counts = counts.data();
    request.num_history = 3;
    // Repetition counts the prompt's ids too: 4 / 2 < 3, and -1 * 2 < -1.5.
    request.repetition_penalty = 2;
    EXPECT_EQ(sampler.one(*row, {4.0f, 4.0f, 4.0f, 3.0f}, request).token, 3) << row->name;
    EXPECT_EQ(sampler.one(*row, {-1.0f, -1.0f, -1.0f, -1.5f}, request).token, 3) << row->name;
    // Frequency goes by the count in the output: 0, 1, 3 times 0.5.
    request.repetition_penalty = 1;
    request.frequency_penalty = 0.5f;
    EXPECT_EQ(sampler.one(*row, {1.0f, 1.5f, 2.25f, 0.9f}, request).token, 0) << row->name;
    EXPECT_EQ(sampler.one(*row, {1.0f, 1.5f, 2.75f, 0.9f}, request).token, 2) << row->name;
    // Presence goes by being in the output at all.
    request.frequency_penalty = 0;
    request.presence_penalty = 0.5f;
    EXPECT_EQ(sampler.one(*row, {1.0f, 1.4f, 1.4f, 0.0f}, request).token, 0) << row->name;
    request.presence_penalty = -0.5f;
    EXPECT_EQ(sampler.one(*row, {1.0f, 0.7f, 0.6f, 0.0f}, request).token, 1) << row->name;

    const std::vector<int32_t> bias_ids = {1, -1, 4, 100000, 2};
    const std::vector<float> bias = {100, 100, 100, 100, -100};
    SampleRequest biased{.bias_ids = bias_ids.data(), .bias_values = bias.data(), .num_bias = 5};
    EXPECT_EQ(sampler.one(*row, {5.0f, -3.0f, 60.0f, 1.0f}, biased).token, 1) << row->name;
    // Bias comes before the penalties: (1 + 3) / 2 against 2.5.
    const std::vector<int32_t> id = {0};
    const std::vector<float> three = {3};
    SampleRequest both{.repetition_penalty = 2,
                       .history_ids = history.data(),
                       .history_counts = counts.data(),
                       .num_history = 1,
                       .bias_ids = id.data(),
                       .bias_values = three.data(),
                       .num_bias = 1};
    EXPECT_EQ(sampler.one(*row, {1.0f, 2.5f}, both).token, 1) << row->name;
    EXPECT_EQ(sampler.one(*row, {1.0f, 1.5f}, both).token, 0) << row->name;
  }
}

TEST(Sample, OnlyAllowedIdsAreDrawn) {
  Sampler sampler;
  std::vector<float> logits(100, 0.0f);
  std::vector<uint32_t> mask(4, 0u);
  for (int32_t id : {3, 31, 32, 70}) mask[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
  mask[3] |= 0xFFFFFFF0u;  // ids past the vocabulary
  for (const auto* row : rows_here()) {
    std::set<int32_t> seen;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      seen.insert(
          sampler.one(*row, logits, {.temperature = 1, .seed = seed, .allowed_mask = mask.data()})
              .token);
    }
    EXPECT_EQ(seen, (std::set<int32_t>{3, 31, 32, 70})) << row->name;
    std::vector<float> hidden(100, -kInf);
    EXPECT_EQ(sampler.one(*row, hidden, {.allowed_mask = mask.data()}).token, 3) << row->name;
    const std::vector<uint32_t> none(4, 0u);
    EXPECT_EQ(sampler.one(*row, logits, {.temperature = 1, .allowed_mask = none.data()}).token, -1);
    EXPECT_EQ(sampler.one(*row, logits, {.num_logprobs = 3, .allowed_mask = none.data()}).num_top,
              3);
  }
}

TEST(Sample, OddLogitsAreNeverDrawnAndNeverFatal) {
  Sampler sampler;
  for (const auto* row : rows_here()) {
    for (float temperature : {0.0f, 1.0f, 1e-5f, 1e30f, kInf}) {
      const auto token = [&](const std::vector<float>& logits) {
        return sampler.one(*row, logits, {.temperature = temperature, .num_logprobs = 2}).token;
      };
      EXPECT_EQ(token({kNan, -kInf, 1.0f, kNan}), 2) << row->name;
      EXPECT_EQ(token({kNan, kNan}), 0) << row->name;
      EXPECT_EQ(token({-kInf, -kInf, -kInf}), 0) << row->name;
      if (temperature < 1e20f) {
        EXPECT_EQ(token({1.0f, kInf, 5.0f}), 1) << row->name;
      }
    }
  }
}

TEST(Sample, FiltersKeepAtLeastOneIdAndTolerateAnyNumber) {
  Sampler sampler;
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f};
  for (const auto* row : rows_here()) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      for (float top_p : {0.0f, -1.0f, 1e-9f})
        EXPECT_EQ(sampler.one(*row, logits, {.temperature = 1, .top_p = top_p, .seed = seed}).token,
                  1);
      EXPECT_EQ(sampler.one(*row, logits, {.temperature = 1, .top_k = 1, .seed = seed}).token, 1);
      for (float min_p : {1.0f, 7.0f})
        EXPECT_EQ(sampler.one(*row, logits, {.temperature = 1, .min_p = min_p, .seed = seed}).token,
                  1);
      const auto all = sampler.one(*row, logits, {.temperature = 1, .seed = seed}).token;
      const SampleRequest same[] = {{.temperature = 1, .top_k = 1000, .seed = seed},
                                    {.temperature = 1, .top_k = -5, .seed = seed},
                                    {.temperature = 1, .top_p = 2, .seed = seed},
                                    {.temperature = 1, .top_p = kNan, .seed = seed},
                                    {.temperature = 1, .min_p = -1, .seed = seed},
                                    {.temperature = 1, .min_p = kNan, .seed = seed}};
      for (const auto& request : same) EXPECT_EQ(sampler.one(*row, logits, request).token, all);
    }
  }
}

TEST(Sample, LogprobsAreOfTheRawLogits) {
  Sampler sampler;
  const std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};
  double total = 0;
  for (float x : logits) total += std::exp(static_cast<double>(x));
  const std::vector<int32_t> bias_ids = {4};
  const std::vector<float> bias = {100};
  for (const auto* row : rows_here()) {
    SampleRequest request{.temperature = 0.3f, .top_k = 1, .num_logprobs = 3};
    request.bias_ids = bias_ids.data();
    request.bias_values = bias.data();
    request.num_bias = 1;
    const auto answer = sampler.one(*row, logits, request);
    EXPECT_EQ(answer.token, 4) << row->name;
    EXPECT_NEAR(answer.logprob, -1.0 - std::log(total), 1e-6) << row->name;
    EXPECT_EQ(answer.rank, 4) << row->name;
    ASSERT_EQ(answer.num_top, 3) << row->name;
    EXPECT_EQ(answer.top_ids[0], 1) << row->name;
    EXPECT_EQ(answer.top_ids[1], 3) << row->name;
    EXPECT_EQ(answer.top_ids[2], 2) << row->name;
    EXPECT_NEAR(answer.top_logprobs[2], 2.0 - std::log(total), 1e-6) << row->name;

    EXPECT_EQ(sampler.one(*row, logits, {.num_logprobs = 0}).num_top, 0) << row->name;
    EXPECT_NE(sampler.one(*row, logits, {.num_logprobs = 0}).logprob, 0) << row->name;
    EXPECT_EQ(sampler.one(*row, logits, {}).logprob, 0) << row->name;
    EXPECT_EQ(sampler.one(*row, logits, {.num_logprobs = 1000}).num_top, 5) << row->name;
  }
}

// A random row of logits: near normal, peaked, with many equals, flat, or with odd values.
std::vector<float> random_logits(std::mt19937& random, int32_t vocab) {
  std::normal_distribution<float> normal;
  const auto kind = random() % 6;
  const float spread = std::exp2(static_cast<float>(random() % 8) - 3);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) {
    x = normal(random) * spread;
    if (kind == 1) x = std::round(x);
    if (kind == 2) x = 1.5f;
    if (kind == 3 && random() % 64 == 0) x += 20;
    if (kind == 4) {
      const float odd[] = {kNan, kInf, -kInf, 1e-40f, -1e-40f, 0.0f, -0.0f, 3e38f, -3e38f};
      if (random() % 8 == 0) x = odd[random() % 9];
    }
  }
  return logits;
}

// A random request with its arrays.
struct Wish {
  SampleRequest request;
  std::vector<int32_t> history_ids, history_counts, bias_ids;
  std::vector<float> bias;
  std::vector<uint32_t> mask;

  Wish(std::mt19937& random, int32_t vocab) {
    const auto one_of = [&](std::initializer_list<float> list) {
      return *(list.begin() + random() % list.size());
    };
    const auto maybe = [&](unsigned n) { return random() % n == 0; };
    request.temperature = one_of({0, 0.01f, 0.3f, 0.7f, 1, 1, 1.5f, 5, 1e6f});
    if (maybe(3)) request.top_k = 1 + static_cast<int32_t>(random() % static_cast<unsigned>(vocab));
    if (maybe(3)) request.top_k = 1 + static_cast<int32_t>(random() % 50);
    if (maybe(2)) request.top_p = one_of({0, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 1});
    if (maybe(3)) request.min_p = one_of({0.001f, 0.05f, 0.5f, 1});
    if (maybe(3)) request.num_logprobs = static_cast<int32_t>(random() % 25);
    request.seed = (static_cast<uint64_t>(random()) << 32) | random();
    request.step = maybe(2) ? random() % 1000 : (static_cast<uint64_t>(random()) << 32);
    if (maybe(3)) {
      request.repetition_penalty = one_of({1, 1.1f, 0.8f, 2});
      request.frequency_penalty = one_of({0, 0.5f, -2});
      request.presence_penalty = one_of({0, 0.5f, 2});
      std::set<int32_t> ids;
      for (unsigned i = 0; i < 30; ++i)
        ids.insert(static_cast<int32_t>(random() % static_cast<unsigned>(vocab)));
      for (int32_t id : ids) {
        history_ids.push_back(id);
        history_counts.push_back(static_cast<int32_t>(random() % 4));
      }
    }
    if (maybe(3)) {
      for (unsigned i = 0; i < 20; ++i) {
        bias_ids.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(vocab + 3)) - 1);
        bias.push_back(one_of({-100, -1, 0.5f, 3, 100}));
      }
    }
    if (maybe(4)) {
      const unsigned density = 1 + random() % 20;
      mask.assign(static_cast<size_t>((vocab + 31) / 32), 0u);
      for (int32_t id = 0; id < vocab; ++id) {
        if (maybe(density)) mask[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
      }
    }
  }
  SampleRequest get() const {
    SampleRequest full = request;
    full.history_ids = history_ids.data();
    full.history_counts = history_counts.data();
    full.num_history = static_cast<int32_t>(history_ids.size());
    full.bias_ids = bias_ids.data();
    full.bias_values = bias.data();
    full.num_bias = static_cast<int32_t>(bias_ids.size());
    full.allowed_mask = mask.empty() ? nullptr : mask.data();
    return full;
  }
};

void expect_same(const SampleAnswer& found, const SampleAnswer& expected, const std::string& what) {
  EXPECT_EQ(found.token, expected.token) << what;
  EXPECT_EQ(found.rank, expected.rank) << what;
  ASSERT_EQ(found.num_top, expected.num_top) << what;
  // Both are rounded to F32 once from sums that agree to 1e-11.
  const auto near = [&](float a, float b) {
    EXPECT_TRUE(a == b || std::fabs(a - b) <= 2e-7f * std::max(1.0f, std::fabs(b)))
        << what << ": " << a << " and " << b;
  };
  near(found.logprob, expected.logprob);
  for (int i = 0; i < expected.num_top; ++i) {
    EXPECT_EQ(found.top_ids[i], expected.top_ids[i]) << what;
    near(found.top_logprobs[i], expected.top_logprobs[i]);
  }
}

TEST(Sample, EveryRowAnswersAsTheReferenceDoes) {
  std::mt19937 random(2024);
  Sampler sampler(3);
  for (int round = 0; round < 400; ++round) {
    const int32_t vocab = 1 + static_cast<int32_t>(random() % (round % 4 == 0 ? 5000 : 200));
    const int num_rows = 1 + static_cast<int>(random() % 3);
    std::vector<float> logits;
    std::vector<Wish> wishes;
    std::vector<SampleRequest> requests;
    for (int i = 0; i < num_rows; ++i) {
      const auto row = random_logits(random, vocab);
      logits.insert(logits.end(), row.begin(), row.end());
      wishes.emplace_back(random, vocab);
    }
    for (const Wish& wish : wishes) requests.push_back(wish.get());
    const auto expected = sampler.run(reference(), logits, requests);
    for (const auto* row : rows_here()) {
      const auto found = sampler.run(*row, logits, requests);
      for (size_t i = 0; i < found.size(); ++i) {
        const SampleRequest& r = requests[i];
        expect_same(found[i], expected[i],
                    std::string(row->name) + " round " + std::to_string(round) + " vocab " +
                        std::to_string(vocab) + " t " + std::to_string(r.temperature) + " k " +
                        std::to_string(r.top_k) + " p " + std::to_string(r.top_p) + " min " +
                        std::to_string(r.min_p));
      }
    }
  }
}

TEST(Sample, EveryRowAnswersAsTheReferenceDoesOnTheWholeVocabulary) {
  std::mt19937 random(7);
  Sampler sampler(2);
  constexpr int32_t kVocab = 201088;
  for (int round = 0; round < 6; ++round) {
    const auto logits = random_logits(random, kVocab);
    const Wish wish(random, kVocab);
    const auto expected = sampler.one(reference(), logits, wish.get());
    for (const auto* row : rows_here())
      expect_same(sampler.one(*row, logits, wish.get()), expected, row->name);
  }
}

TEST(Sample, EqualWeightsAtTheEdgeOfTopPAreDecidedAsTheReferenceDoes) {
  // Sums of equal weights meet top_p * total exactly, or miss it by rounding.
  Sampler sampler;
  for (int32_t vocab : {2, 3, 10, 1000, 1024}) {
    for (float top_p : {0.1f, 0.25f, 0.5f, 0.7f, 0.75f}) {
      for (uint64_t seed = 0; seed < 8; ++seed) {
        const std::vector<float> logits(static_cast<size_t>(vocab), 0.25f);
        const SampleRequest request{.temperature = 0.9f, .top_p = top_p, .seed = seed};
        const auto expected = sampler.one(reference(), logits, request);
        EXPECT_LT(expected.token, std::ceil(top_p * static_cast<float>(vocab)) + 1);
        for (const auto* row : rows_here())
          EXPECT_EQ(sampler.one(*row, logits, request).token, expected.token) << row->name;
      }
    }
  }
}

TEST(Sample, ATokenDependsOnItsOwnRowOnly) {
  std::mt19937 random(3);
  constexpr int32_t kVocab = 777;
  std::vector<float> logits;
  std::vector<SampleRequest> requests;
  constexpr int kRows = 40;  // more than are worked on at a time
  for (int i = 0; i < kRows; ++i) {
    const auto row = random_logits(random, kVocab);
    logits.insert(logits.end(), row.begin(), row.end());
    requests.push_back({.temperature = 1, .top_p = i % 3 == 0 ? 0.9f : 1.0f, .seed = 5, .step = 9});
  }
  for (const auto* row : rows_here()) {
    const auto together = Sampler(5).run(*row, logits, requests);
    Sampler alone(1);
    for (size_t i = 0; i < kRows; ++i) {
      const std::vector<float> mine(logits.begin() + static_cast<int64_t>(i * kVocab),
                                    logits.begin() + static_cast<int64_t>((i + 1) * kVocab));
      EXPECT_EQ(alone.one(*row, mine, requests[i]).token, together[i].token) << row->name;
    }
  }
}

TEST(Sample, SeedsAndStepsGiveDifferentTokensAndTheSameOnesAgain) {
  std::vector<float> logits(500, 0.0f);
  Sampler sampler;
  for (const auto* row : rows_here()) {
    std::set<int32_t> by_seed, by_step;
    for (uint64_t i = 0; i < 50; ++i) {
      by_seed.insert(sampler.one(*row, logits, {.temperature = 1, .seed = i}).token);
      by_step.insert(sampler.one(*row, logits, {.temperature = 1, .seed = 1, .step = i}).token);
    }
    EXPECT_GT(by_seed.size(), 35u) << row->name;
    EXPECT_GT(by_step.size(), 35u) << row->name;
    const SampleRequest request{.temperature = 1, .seed = 77, .step = 3};
    EXPECT_EQ(sampler.one(*row, logits, request).token, sampler.one(*row, logits, request).token);
  }
}

}  // namespace
}  // namespace moxie
