// The whole model against Hugging Face transformers (fp32, eager): logits, every layer's residual
// and greedy continuations. Vectors in tests/data/goldens were made by transformers, not by us.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/testing/paths.h"
#include "model/testing/harness.h"
#include "model/testing/mean_kl.h"
#include "weights/safetensors.h"

namespace moxie {
namespace {

// The reference rows are slow, and a sanitizer makes them slower by ten: its builds take the short
// cases.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kReferenceTokens = 150;
#else
constexpr size_t kReferenceTokens = 4096;
#endif

const std::string kGoldens = test_data() + "/goldens/";

struct Golden {
  SafetensorsFile file;
  explicit Golden(const std::string& path) : file(open(path)) {}
  static SafetensorsFile open(const std::string& path) {
    auto opened = SafetensorsFile::open(path);
    CHECK(opened.has_value(), opened ? "" : opened.error().message());
    return std::move(*opened);
  }
  template <typename T>
  std::vector<T> read(const std::string& name) const {
    const auto* tensor = file.find(name);
    CHECK(tensor != nullptr, name);
    std::vector<T> values(tensor->bytes / sizeof(T));
    std::memcpy(values.data(), file.data(*tensor), tensor->bytes);
    return values;
  }
  bool has(const std::string& name) const { return file.find(name) != nullptr; }
};

double greatest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - b[i]);
    if (!(difference <= worst)) worst = difference;  // NaN is the worst
  }
  return worst;
}

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return kGoldens + GetParam(); }
  std::unique_ptr<ModelHarness> open(ModelHarness::Options options) const {
    auto harness = ModelHarness::open(folder(), std::move(options));
    CHECK(harness.has_value(), harness ? "" : harness.error().message());
    return std::move(*harness);
  }
  // visit(golden, name, ids) of every case of at most so many tokens; fails without any.
  template <typename Visit>
  void for_each_case(size_t most_tokens, Visit visit) const {
    const Golden golden(folder() + "/goldens.safetensors");
    int num_visited = 0;
    for (int c = 0; golden.has("case" + std::to_string(c) + ".logits"); ++c) {
      const std::string name = "case" + std::to_string(c);
      const auto ids = golden.read<int32_t>(name + ".input_ids");
      if (ids.size() > most_tokens) continue;
      ++num_visited;
      visit(golden, name, ids);
    }
    EXPECT_GT(num_visited, 0) << folder() << " has no case of at most " << most_tokens << " tokens";
  }
  // Over all positions of all cases; each(name, kl) is told that of each case.
  template <typename Each>
  double mean_kl_of_cases(ModelHarness& model, Each each) const {
    double sum = 0, positions = 0;
    for_each_case(SIZE_MAX, [&](const Golden& golden, const std::string& name,
                                const std::vector<int32_t>& ids) {
      const double kl =
          mean_kl(golden.read<float>(name + ".logits"), model.logits(ids), model.config().vocab);
      each(name, kl);
      sum += kl * static_cast<double>(ids.size());
      positions += static_cast<double>(ids.size());
    });
    return sum / positions;
  }
};

TEST_P(GoldenTest, ReferenceRowsEqualTransformers) {
  auto model = open({.kernels = {"all=reference"}, .taps = true});
  int num_layers = 0;
  for_each_case(kReferenceTokens, [&](const Golden& golden, const std::string& name,
                                      const std::vector<int32_t>& ids) {
    std::vector<float> hidden;
    const auto logits = model->logits(ids, 0, &hidden);
    EXPECT_LE(greatest_difference(logits, golden.read<float>(name + ".logits")), 1e-3) << name;
    // transformers' last hidden state is after the final norm: the logits cover it.
    const size_t width = ids.size() * model->config().hidden;
    for (int l = 0; l < model->config().num_layers; ++l) {
      const std::string key = name + ".hidden." + std::to_string(l);
      if (!golden.has(key)) continue;
      const std::vector<float> layer(hidden.begin() + l * width, hidden.begin() + (l + 1) * width);
      EXPECT_LE(greatest_difference(layer, golden.read<float>(key)), 1e-3) << key;
      ++num_layers;
    }
  });
  // The short case of nano-b has none.
  if (kReferenceTokens >= 4096) {
    EXPECT_EQ(num_layers, model->config().num_layers);
  }
  EXPECT_FALSE(model->kernels().counts().empty());
  for (const auto& count : model->kernels().counts()) {
    EXPECT_TRUE(count.name.ends_with("_reference")) << count.name;
  }
}

TEST_P(GoldenTest, GreedyContinuationsEqualTransformers) {
  auto reference = open({.kernels = {"all=reference"}});
  for_each_case(kReferenceTokens, [&](const Golden& golden, const std::string& name,
                                      const std::vector<int32_t>& ids) {
    const auto want = golden.read<int32_t>(name + ".greedy");
    ASSERT_FALSE(want.empty()) << name;
    EXPECT_EQ(reference->greedy(ids, static_cast<int32_t>(want.size())), want) << name;
  });
}

TEST_P(GoldenTest, DefaultRowsStayWithinTheKlBar) {
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    auto model = open({.kv_dtype = kv});
    // These weights are random: rounding the cache to BF16 flips an expert now and then, so that
    // the bar holds for the mean over all positions, and without rounding by a wide margin.
    const double mean = mean_kl_of_cases(*model, [&](const std::string& name, double kl) {
      if (kv == DType::kF32) {
        EXPECT_LE(kl, 1e-6) << name;
      }
    });
    EXPECT_LE(mean, 2e-3) << dtype_name(kv);
  }
}

TEST_P(GoldenTest, ActivationsInInt8StayWithinTheKlBar) {
  if ((cpu_features() & kInt8Features) == 0) GTEST_SKIP() << "no row for it on this CPU";
  auto model = open({.activation = "int8", .kv_dtype = DType::kF32});
  const double mean = mean_kl_of_cases(*model, [](const std::string&, double) {});
  std::printf("  mean KL %.2e\n", mean);
  EXPECT_LE(mean, 2e-3);
  int num_rows = 0;
  for (const auto& count : model->kernels().counts()) {
    if (count.op != &Op<ExpertsParams>::info) continue;
    ++num_rows;
    EXPECT_NE(count.name.find("_i8_"), std::string::npos) << count.name;
  }
  EXPECT_GT(num_rows, 0);
}

TEST_P(GoldenTest, ChunkedPrefillGivesTheSameLogits) {
  const Golden golden(folder() + "/goldens.safetensors");
  const auto ids = golden.read<int32_t>("case0.input_ids");
  const auto check = [&](const std::string& row, const std::vector<int32_t>& chunks) {
    auto model = open({.kernels = {"all=" + row}});
    const auto whole = model->logits(ids);
    for (const int32_t chunk : chunks) {
      EXPECT_LE(greatest_difference(whole, model->logits(ids, chunk)), 1e-3) << row << chunk;
    }
  };
  check("auto", {1, 7, 16, 33});
  if (ids.size() <= kReferenceTokens) check("reference", {33});
}

TEST_P(GoldenTest, WithoutSinksTheLogitsAreVisiblyWrong) {
  const Golden golden(folder() + "/goldens.safetensors");
  auto model = open({.use_sinks = false});
  const auto logits = model->logits(golden.read<int32_t>("case0.input_ids"));
  EXPECT_GT(greatest_difference(logits, golden.read<float>("case0.logits")), 0.1);
}

// The embedded model, as it is linked in, against transformers loading models/tiny: the 8 greatest
// logits and the sum of all at every position, the whole row after the prompt, and the answer.
class EmbeddedGoldenTest : public ::testing::Test {
 protected:
  EmbeddedGoldenTest() : golden_(test_data() + "/tiny_goldens/goldens.safetensors") {}

  static std::unique_ptr<ModelHarness> open(ModelHarness::Options options) {
    options.max_tokens = 2048;
    auto harness = ModelHarness::open("embedded", std::move(options));
    CHECK(harness.has_value(), harness ? "" : harness.error().message());
    return std::move(*harness);
  }
  // visit(name, ids) of every case of at most so many tokens, of which four at least are wanted.
  template <typename Visit>
  void for_each_case(size_t most_tokens, Visit&& visit) const {
    int num_visited = 0;
    for (int c = 0; golden_.has(std::to_string(c) + ".ids"); ++c) {
      const std::string name = std::to_string(c);
      const auto ids = golden_.read<int32_t>(name + ".ids");
      if (ids.size() > most_tokens) continue;
      ++num_visited;
      visit(name, ids);
    }
    EXPECT_GE(num_visited, 4);
  }
  Golden golden_;
};

TEST_F(EmbeddedGoldenTest, ReferenceRowsEqualTransformers) {
  auto model = open({.kernels = {"all=reference"}});
  const auto vocab = static_cast<size_t>(model->config().vocab);
  for_each_case(kReferenceTokens, [&](const std::string& name, const std::vector<int32_t>& ids) {
    const auto logits = model->logits(ids);
    const std::vector<float> last(logits.end() - static_cast<int64_t>(vocab), logits.end());
    EXPECT_LE(greatest_difference(last, golden_.read<float>(name + ".last_logits")), 1e-3) << name;
    const auto top_ids = golden_.read<int32_t>(name + ".top_ids");
    const auto top_logits = golden_.read<float>(name + ".top_logits");
    const auto log_sums = golden_.read<float>(name + ".logsumexp");
    double worst = 0;
    for (size_t t = 0; t < ids.size(); ++t) {
      const float* row = &logits[t * vocab];
      double sum = 0;
      for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(row[i]) - log_sums[t]);
      worst = std::max(worst, std::fabs(std::log(sum)));
      for (size_t k = 0; k < 8; ++k) {
        const double difference = row[top_ids[t * 8 + k]] - top_logits[t * 8 + k];
        worst = std::max(worst, std::fabs(difference));
      }
    }
    EXPECT_LE(worst, 1e-3) << name;
  });
}

TEST_F(EmbeddedGoldenTest, DefaultRowsAgreeOnTheBestTokenAndOnTheAnswers) {
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    auto model = open({.kv_dtype = kv});
    const auto vocab = static_cast<size_t>(model->config().vocab);
    size_t same = 0, positions = 0;
    for_each_case(SIZE_MAX, [&](const std::string& name, const std::vector<int32_t>& ids) {
      const auto logits = model->logits(ids);
      const auto top_ids = golden_.read<int32_t>(name + ".top_ids");
      for (size_t t = 0; t < ids.size(); ++t) {
        const auto row = logits.begin() + static_cast<int64_t>(t * vocab);
        same += std::max_element(row, row + static_cast<int64_t>(vocab)) - row == top_ids[t * 8];
      }
      positions += ids.size();
      const auto answer = golden_.read<int32_t>(name + ".greedy");
      ASSERT_FALSE(answer.empty()) << name;
      EXPECT_EQ(model->greedy(ids, static_cast<int32_t>(answer.size())), answer)
          << name << " kv " << dtype_name(kv);
    });
    EXPECT_GE(static_cast<double>(same), 0.99 * static_cast<double>(positions)) << dtype_name(kv);
  }
}

TEST_F(EmbeddedGoldenTest, DefaultRowsStayWithinTheKlBarOfTheReference) {
  auto reference = open({.kernels = {"all=reference"}});
  auto model = open({.kv_dtype = DType::kBF16});
  constexpr size_t kMostTokens = std::min<size_t>(kReferenceTokens, 512);
  for_each_case(kMostTokens, [&](const std::string& name, const std::vector<int32_t>& ids) {
    EXPECT_LE(mean_kl(reference->logits(ids), model->logits(ids), model->config().vocab), 2e-3)
        << name;
  });
}

INSTANTIATE_TEST_SUITE_P(Goldens, GoldenTest, ::testing::Values("nano-a", "nano-b"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace moxie
