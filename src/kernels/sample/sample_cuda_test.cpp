// Every CUDA row of sample against the reference row: the same tokens, up to draws whose two best
// scores lie closer than F32 can tell, the same ranks and lists, log-probabilities to rounding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/sample/sample.h"
#include "kernels/sample/sample_math.h"
#include "kernels/testing/cuda_test.h"

namespace moxie {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kNearTie = 1e-5;       // scores up to 32 have an F32 spacing of 2e-6
constexpr double kLogprobError = 1e-5;  // likewise

// One row's wishes, with its arrays in host memory.
struct Wish {
  SampleRequest request;
  std::vector<int32_t> history_ids, history_counts, bias_ids;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;

  void fill_pointers() {
    request.history_ids = history_ids.data();
    request.history_counts = history_counts.data();
    request.num_history = static_cast<int32_t>(history_ids.size());
    request.bias_ids = bias_ids.data();
    request.bias_values = bias_values.data();
    request.num_bias = static_cast<int32_t>(bias_ids.size());
    request.allowed_mask = mask.empty() ? nullptr : mask.data();
  }
};

class SampleCudaTest : public CudaTest {
 protected:
  // Rows of random logits with one wish each, to be changed by the test before check().
  void make_rows(int32_t rows, int32_t vocab, float scale = 3.0f) {
    vocab_ = vocab;
    logits_ = normal_values(static_cast<uint64_t>(rows) * static_cast<uint64_t>(vocab), scale,
                            static_cast<uint32_t>(random_()));
    wishes_.assign(static_cast<size_t>(rows), {});
    for (Wish& wish : wishes_) {
      wish.request.seed = random_();
      wish.request.step = random_() % 5000;
    }
  }
  float* row_logits(size_t row) { return &logits_[row * static_cast<size_t>(vocab_)]; }
  // Few different values, so that filters end inside ties.
  void round_logits(float unit) {
    for (float& logit : logits_) logit = std::round(logit / unit) * unit;
  }
  template <typename F>
  void each_wish(F&& change) {
    for (size_t i = 0; i < wishes_.size(); ++i) change(wishes_[i], static_cast<int>(i));
  }
  void give_random_history(Wish& wish, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      const int32_t id = random_id();
      if (std::find(wish.history_ids.begin(), wish.history_ids.end(), id) != wish.history_ids.end())
        continue;
      wish.history_ids.push_back(id);
      wish.history_counts.push_back(static_cast<int32_t>(random_() % 4));
    }
  }
  void give_random_bias(Wish& wish, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      wish.bias_ids.push_back(random_id());
      wish.bias_values.push_back(static_cast<float>(random_() % 2001) / 100.0f - 10.0f);
    }
  }
  void give_random_mask(Wish& wish, uint32_t one_in) {
    wish.mask.assign(static_cast<size_t>(ceil_div(vocab_, 32)), 0);
    for (int32_t id = 0; id < vocab_; ++id) {
      if (random_() % one_in == 0)
        wish.mask[static_cast<size_t>(id / 32)] |= uint32_t{1} << (id % 32);
    }
  }
  int32_t random_id() { return static_cast<int32_t>(random_() % static_cast<uint32_t>(vocab_)); }

  // Runs the reference and every CUDA row that this device can run, and compares.
  void check(const char* what) {
    SCOPED_TRACE(std::string(what) + ", " + std::to_string(wishes_.size()) + " rows of " +
                 std::to_string(vocab_));
    for (Wish& wish : wishes_) wish.fill_pointers();
    const std::vector<SampleAnswer> expected = run_reference();
    SampleParams params{.launch = launch(),
                        .num_rows = static_cast<int32_t>(wishes_.size()),
                        .vocab = vocab_,
                        .logits = upload(logits_),
                        .requests = upload(device_requests())};
    int num_cuda_rows = 0;
    for (const auto& row : Op<SampleParams>::rows()) {
      if (row.device != DeviceKind::kCuda || (row.needs & features()) != row.needs) continue;
      // Rows of ranks: rank_mail_cuda_test.cpp.
      if (std::string_view(row.name).find("_peers_") != std::string_view::npos) continue;
      SCOPED_TRACE(row.name);
      ++num_cuda_rows;
      ASSERT_EQ(row.refuses(params), nullptr);
      const bool plain = std::all_of(wishes_.begin(), wishes_.end(),
                                     [](const Wish& wish) { return is_plain(wish.request); });
      for (const bool all_plain : {false, true}) {
        if (all_plain && !plain) continue;
        SCOPED_TRACE(all_plain ? "said to be plain" : "not said to be plain");
        params.all_plain = all_plain;
        const DeviceArray answers = poisoned<SampleAnswer>(wishes_.size());
        const DeviceArray workspace = poisoned<uint8_t>(row.workspace(params));
        params.answers = answers.buffer.as<SampleAnswer>();
        params.launch.workspace = workspace.buffer.data();
        params.launch.workspace_bytes = workspace.bytes;
        row.run(params);
        const std::vector<SampleAnswer> found = download<SampleAnswer>(answers);
        download<uint8_t>(workspace);  // for its guard
        for (size_t i = 0; i < found.size(); ++i) compare(i, found[i], expected[i]);
      }
    }
    EXPECT_GE(num_cuda_rows, 1);
  }

 private:
  std::vector<SampleAnswer> run_reference() {
    std::vector<SampleRequest> requests;
    for (const Wish& wish : wishes_) requests.push_back(wish.request);
    std::vector<SampleAnswer> answers(wishes_.size());
    const SampleParams params{.num_rows = static_cast<int32_t>(wishes_.size()),
                              .vocab = vocab_,
                              .logits = logits_.data(),
                              .requests = requests.data(),
                              .answers = answers.data()};
    for (const auto& row : Op<SampleParams>::rows()) {
      if (std::string(row.name) == "sample_reference") row.run(params);
    }
    return answers;
  }
  std::vector<SampleRequest> device_requests() {
    std::vector<SampleRequest> requests;
    for (const Wish& wish : wishes_) {
      SampleRequest request = wish.request;
      if (request.num_history > 0) {
        request.history_ids = upload(wish.history_ids);
        request.history_counts = upload(wish.history_counts);
      }
      if (request.num_bias > 0) {
        request.bias_ids = upload(wish.bias_ids);
        request.bias_values = upload(wish.bias_values);
      }
      if (!wish.mask.empty()) request.allowed_mask = upload(wish.mask);
      requests.push_back(request);
    }
    return requests;
  }
  // What the draw compares: changed logit over temperature, and noise.
  double score(size_t row, int32_t id) {
    const Wish& wish = wishes_[row];
    float bias = 0;
    int32_t count = -1;
    for (size_t i = 0; i < wish.bias_ids.size(); ++i)
      if (wish.bias_ids[i] == id) bias = wish.bias_values[i];
    for (size_t i = 0; i < wish.history_ids.size(); ++i)
      if (wish.history_ids[i] == id) count = wish.history_counts[i];
    const float logit = adjusted_logit(wish.request, row_logits(row)[id], bias, count);
    return static_cast<double>(logit) / wish.request.temperature +
           gumbel_noise(wish.request.seed, wish.request.step, id);
  }
  void compare(size_t row, const SampleAnswer& found, const SampleAnswer& expected) {
    SCOPED_TRACE("row " + std::to_string(row));
    const SampleRequest& request = wishes_[row].request;
    if (found.token != expected.token) {
      ASSERT_TRUE(!is_greedy(request) && found.token >= 0 && found.token < vocab_ &&
                  expected.token >= 0)
          << "found " << found.token << ", expected " << expected.token;
      const double gap = score(row, expected.token) - score(row, found.token);
      EXPECT_LT(std::fabs(gap), kNearTie)
          << "found " << found.token << ", expected " << expected.token;
      return;
    }
    EXPECT_EQ(found.rank, expected.rank);
    expect_logprob(found.logprob, expected.logprob);
    ASSERT_EQ(found.num_top, expected.num_top);
    for (int32_t i = 0; i < kMaxTopLogprobs; ++i) {
      EXPECT_EQ(found.top_ids[i], expected.top_ids[i]) << "place " << i;
      expect_logprob(found.top_logprobs[i], expected.top_logprobs[i]);
    }
  }
  static void expect_logprob(float found, float expected) {
    if (std::isinf(expected)) {
      EXPECT_EQ(found, expected);
    } else {
      EXPECT_NEAR(found, expected, kLogprobError + std::fabs(expected) * 2e-7);
    }
  }

  int32_t vocab_ = 0;
  std::vector<float> logits_;
  std::vector<Wish> wishes_;
  std::mt19937_64 random_{20252};
};

TEST_F(SampleCudaTest, GreedyIsTheGreatestLogitWhateverTheVocabulary) {
  for (const int32_t vocab : {1, 5, 31, 257, 4096, 50257}) {
    make_rows(3, vocab);
    check("greedy");
  }
}

TEST_F(SampleCudaTest, GreedyTiesGoToTheLowerId) {
  make_rows(40, 1000);
  round_logits(4.0f);
  check("greedy with ties");
}

TEST_F(SampleCudaTest, RowsBeyondTheClustersOfOneWaveAreAllAnswered) {
  make_rows(101, 3000);
  each_wish([](Wish& wish, int i) { wish.request.temperature = i % 3 == 0 ? 0.0f : 0.8f; });
  check("many rows");
}

TEST_F(SampleCudaTest, NoiseIsTheReferencesAtAnyTemperature) {
  for (const float temperature : {1e-5f, 0.01f, 0.3f, 1.0f, 2.0f, 100.0f}) {
    make_rows(20, 4001);
    each_wish([=](Wish& wish, int) { wish.request.temperature = temperature; });
    check("temperature");
  }
}

TEST_F(SampleCudaTest, RowsOfSeveralSharesAreAnswered) {
  for (const int32_t rows : {3, 40}) {
    make_rows(rows, 50257);
    each_wish([](Wish& wish, int i) { wish.request.temperature = i % 3 == 0 ? 0.0f : 1.0f; });
    check("several shares");
    round_logits(4.0f);
    check("several shares with ties");
  }
}

TEST_F(SampleCudaTest, LargeSeedsAndStepsAreNotCutShort) {
  make_rows(20, 4001);
  each_wish([](Wish& wish, int i) {
    wish.request.temperature = 1;
    wish.request.seed = ~uint64_t{0} - static_cast<uint64_t>(i);
    wish.request.step = (uint64_t{1} << 40) + static_cast<uint64_t>(i);
  });
  check("large seeds");
}

TEST_F(SampleCudaTest, TopKKeepsExactlyKAlsoInsideTies) {
  for (const int32_t top_k : {1, 2, 5, 40, 1000, 4000, 4001, 9999}) {
    for (const float unit : {0.0f, 2.0f}) {
      make_rows(12, 4001);
      if (unit > 0) round_logits(unit);
      each_wish([=](Wish& wish, int) {
        wish.request.temperature = 1.5f;
        wish.request.top_k = top_k;
      });
      check("top-k");
    }
  }
}

TEST_F(SampleCudaTest, TopPKeepsTheShortestPrefixAlsoInsideTies) {
  for (const float top_p : {-1.0f, 0.0f, 0.01f, 0.3f, 0.7f, 0.95f, 0.9999f}) {
    for (const float unit : {0.0f, 2.0f}) {
      make_rows(12, 4001);
      if (unit > 0) round_logits(unit);
      each_wish([=](Wish& wish, int) {
        wish.request.temperature = 1.2f;
        wish.request.top_p = top_p;
      });
      check("top-p");
    }
  }
}

TEST_F(SampleCudaTest, MinPKeepsTheLikely) {
  for (const float min_p : {1e-6f, 0.01f, 0.2f, 0.9f, 1.0f, 7.0f}) {
    make_rows(12, 4001);
    each_wish([=](Wish& wish, int) {
      wish.request.temperature = 1.2f;
      wish.request.min_p = min_p;
    });
    check("min-p");
  }
}

TEST_F(SampleCudaTest, LogitsThatAreAllEqualAreStillCutById) {
  make_rows(12, 70001);
  round_logits(1000.0f);
  each_wish([](Wish& wish, int i) {
    wish.request.temperature = 1;
    if (i % 2 == 0)
      wish.request.top_k = 1 + i * 5000;
    else
      wish.request.top_p = 0.08f * static_cast<float>(i);
  });
  check("all equal");
}

TEST_F(SampleCudaTest, BiasPenaltiesAndMasksAreRoundedAsTheReferenceRounds) {
  make_rows(30, 5000);
  each_wish([&](Wish& wish, int i) {
    wish.request.temperature = i % 4 == 0 ? 0.0f : 0.9f;
    wish.request.repetition_penalty = i % 2 == 0 ? 1.3f : 0.7f;
    wish.request.frequency_penalty = 0.1f * static_cast<float>(i % 5);
    wish.request.presence_penalty = 0.37f;
    give_random_history(wish, 40 * i);
    give_random_bias(wish, 10 * i);  // some ids twice: the last counts
    if (i % 3 == 0) give_random_mask(wish, 3);
  });
  check("bias, penalties, mask");
}

TEST_F(SampleCudaTest, IdsOutsideTheVocabularyAreIgnored) {
  make_rows(4, 100);
  each_wish([](Wish& wish, int) {
    wish.request.repetition_penalty = 2;
    wish.bias_ids = {-1, 100, 2147483647, 5};
    wish.bias_values = {50, 50, 50, 40};
    wish.history_ids = {-7, 100, 6};
    wish.history_counts = {1, 1, 1};
  });
  check("ids outside");
}

TEST_F(SampleCudaTest, StrangeLogitsFollowTheRules) {
  make_rows(12, 333);
  for (size_t row = 0; row < 12; ++row) {
    float* raw = row_logits(row);
    for (int i = 0; i < 333; i += 3) raw[i] = std::nanf("");
    raw[1] = -kInfinity;
    raw[2] = row % 2 == 0 ? kInfinity : 1e-41f;
    raw[4] = -1e-42f;
    raw[5] = -0.0f;
    if (row % 4 == 3) raw[7] = kInfinity;
    if (row >= 8) std::fill(raw, raw + 333, row % 2 == 0 ? -kInfinity : std::nanf(""));
  }
  each_wish([](Wish& wish, int i) {
    wish.request.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    wish.request.num_logprobs = 20;
    if (i > 4) wish.request.top_p = 0.5f;
    if (i > 6) wish.request.top_k = 300;
  });
  check("NaN, infinities, subnormals");
}

TEST_F(SampleCudaTest, AMaskOfOneOrOfNoneIsObeyed) {
  make_rows(6, 1000);
  each_wish([](Wish& wish, int i) {
    wish.mask.assign(32, 0);
    if (i < 3) wish.mask[17] = 1u << 9;
    wish.request.temperature = i % 2 == 0 ? 0.0f : 1.0f;
    wish.request.num_logprobs = 3;
    wish.request.top_k = 10;
  });
  check("masks");
}

TEST_F(SampleCudaTest, LogprobsRanksAndListsAreOfTheRawLogits) {
  for (const int32_t vocab : {1, 7, 19, 20, 21, 6000}) {
    make_rows(24, vocab);
    if (vocab == 6000) round_logits(0.25f);
    each_wish([](Wish& wish, int i) {
      wish.request.num_logprobs = i % 2 == 0 ? i : 25;
      wish.request.temperature = 1;
      wish.request.top_p = 0.9f;
      wish.bias_ids = {0};
      wish.bias_values = {3};
    });
    check("logprobs");
  }
}

TEST_F(SampleCudaTest, LargeVocabulariesWithEveryWishAtOnce) {
  for (const int32_t vocab : {201088, 262144}) {
    make_rows(9, vocab);
    each_wish([&](Wish& wish, int i) {
      wish.request.temperature = i == 0 ? 0.0f : 0.6f + 0.1f * static_cast<float>(i);
      wish.request.top_k = i % 3 == 0 ? 0 : 50 * i * i;
      wish.request.top_p = i % 4 == 1 ? 1.0f : 0.95f;
      wish.request.min_p = i % 5 == 2 ? 0.02f : 0.0f;
      wish.request.num_logprobs = 2 * i - 1;
      wish.request.repetition_penalty = 1.1f;
      if (i % 2 == 1) give_random_history(wish, 500);
      if (i % 3 == 1) give_random_bias(wish, 100);
      if (i % 4 == 3) give_random_mask(wish, 10);
    });
    check("everything");
  }
}

TEST_F(SampleCudaTest, LargeSlicesOfTheVocabularyMayLieInTheWorkspace) {
  // 700,000 ids are more than the shared memory of 8 blocks holds on any device.
  make_rows(34, 700000);
  each_wish([&](Wish& wish, int i) {
    wish.request.temperature = i % 4 == 0 ? 0.0f : 1.0f;
    if (i % 3 == 0) wish.request.top_p = 0.8f;
    wish.request.num_logprobs = i < 3 ? 5 : -1;
    if (i == 5) give_random_history(wish, 100);
  });
  check("workspace");
}

TEST_F(SampleCudaTest, AVocabularyBeyondTheLimitIsRefused) {
  const SampleParams params{.num_rows = 1, .vocab = (1 << 20) + 1};
  for (const auto& row : Op<SampleParams>::rows()) {
    if (row.device != DeviceKind::kCuda) continue;
    EXPECT_NE(row.refuses(params), nullptr) << row.name;
  }
}

}  // namespace
}  // namespace moxie
