// The whole model against Hugging Face transformers (fp32, eager): logits, every layer's residual
// and greedy continuations. Vectors in tests/data/goldens were made by transformers, not by us.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/testing/harness.h"
#include "weights/safetensors.h"

namespace moxie {
namespace {

const std::string kGoldens = std::string(MOXIE_TEST_DATA) + "/goldens/";

struct Golden {
  SafetensorsFile file;
  explicit Golden(const std::string& path) : file(std::move(*SafetensorsFile::open(path))) {}
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

// Mean over tokens of KL(p || q) of the softmaxes of two sets of logits.
double mean_kl(const std::vector<float>& p_logits, const std::vector<float>& q_logits,
               size_t vocab) {
  double sum = 0;
  const size_t rows = p_logits.size() / vocab;
  for (size_t r = 0; r < rows; ++r) {
    const float* p = &p_logits[r * vocab];
    const float* q = &q_logits[r * vocab];
    const auto log_sum = [vocab](const float* x) {
      double top = *std::max_element(x, x + vocab), total = 0;
      for (size_t i = 0; i < vocab; ++i) total += std::exp(x[i] - top);
      return top + std::log(total);
    };
    const double zp = log_sum(p), zq = log_sum(q);
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
  }
  return sum / static_cast<double>(rows);
}

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return kGoldens + GetParam(); }
  std::unique_ptr<ModelHarness> open(ModelHarness::Options options) const {
    auto harness = ModelHarness::open(folder(), std::move(options));
    CHECK(harness.has_value(), harness ? "" : harness.error().message());
    return std::move(*harness);
  }
};

TEST_P(GoldenTest, ReferenceRowsEqualTransformers) {
  const Golden golden(folder() + "/goldens.safetensors");
  auto model = open({.kernels = {"all=reference"}});
  for (int c = 0; golden.has("case" + std::to_string(c) + ".logits"); ++c) {
    const std::string name = "case" + std::to_string(c);
    const auto ids = golden.read<int32_t>(name + ".input_ids");
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
    }
  }
  for (const auto& count : model->kernels().counts()) {
    EXPECT_TRUE(count.name.ends_with("_reference")) << count.name;
  }
}

TEST_P(GoldenTest, GreedyContinuationsEqualTransformers) {
  const Golden golden(folder() + "/goldens.safetensors");
  auto reference = open({.kernels = {"all=reference"}});
  for (int c = 0; golden.has("case" + std::to_string(c) + ".logits"); ++c) {
    const std::string name = "case" + std::to_string(c);
    const auto ids = golden.read<int32_t>(name + ".input_ids");
    const auto want = golden.read<int32_t>(name + ".greedy");
    EXPECT_EQ(reference->greedy(ids, static_cast<int32_t>(want.size())), want) << name;
  }
}

TEST_P(GoldenTest, DefaultRowsStayWithinTheKlBar) {
  const Golden golden(folder() + "/goldens.safetensors");
  for (const DType kv : {DType::kF32, DType::kBF16}) {
    auto model = open({.kv_dtype = kv});
    double sum = 0, positions = 0;
    for (int c = 0; golden.has("case" + std::to_string(c) + ".logits"); ++c) {
      const std::string name = "case" + std::to_string(c);
      const auto ids = golden.read<int32_t>(name + ".input_ids");
      const double kl =
          mean_kl(golden.read<float>(name + ".logits"), model->logits(ids), model->config().vocab);
      // These weights are random: rounding the cache to BF16 flips an expert now and then, so that
      // the bar holds for the mean over all positions, and without rounding by a wide margin.
      if (kv == DType::kF32) {
        EXPECT_LE(kl, 1e-6) << name;
      }
      sum += kl * static_cast<double>(ids.size());
      positions += static_cast<double>(ids.size());
    }
    EXPECT_LE(sum / positions, 2e-3) << dtype_name(kv);
  }
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
  check("reference", {33});
}

TEST_P(GoldenTest, WithoutSinksTheLogitsAreVisiblyWrong) {
  const Golden golden(folder() + "/goldens.safetensors");
  auto model = open({.use_sinks = false});
  const auto logits = model->logits(golden.read<int32_t>("case0.input_ids"));
  EXPECT_GT(greatest_difference(logits, golden.read<float>("case0.logits")), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Goldens, GoldenTest, ::testing::Values("nano-a", "nano-b"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace moxie
