// Faults in the rows of a small model: each is found by the level that should.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/experts/experts.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/route/route.h"
#include "kernels/sample/sample.h"
#include "kernels/unembed/unembed.h"
#include "lab/testing/validate_case.h"
#include "model/testing/files.h"
#include "model/testing/memory_checkpoint.h"

namespace moxie::testing {
namespace {

using Level = ValidateLevel;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Level 2 finds it in a check whose name has `part`.
#define EXPECT_LEVEL_2_FINDS(part) \
  expect_caught(run(options(Level::kStress)), Level::kCorrectness, part)

TEST_F(ValidateTest, ASoundModelPassesLevel2) { expect_sound(run(options(Level::kCorrectness))); }

TEST_F(ValidateTest, LevelTwoFindsANan) {
  Planted<AttendParams>::fault = [](auto run, AttendParams p) {
    run(p);
    if (p.batch.num_tokens == 7) p.a[3] = kNan;
  };
  EXPECT_LEVEL_2_FINDS("finite logits, launches of 7");
}

TEST_F(ValidateTest, LevelTwoFindsAnInfinity) {
  Planted<UnembedParams>::fault = [](auto run, UnembedParams p) {
    run(p);
    if (p.num_rows > 1) p.logits[11] = -kInf;
  };
  EXPECT_LEVEL_2_FINDS("finite logits");
}

TEST_F(ValidateTest, LevelTwoFindsSinksThatAreOffAsAHiddenState) {
  ValidateOptions o = options(Level::kStress);
  o.seams.load = [](EngineOptions engine) {
    engine.sinks = false;
    return Engine::load(engine);
  };
  expect_caught(run(o), Level::kCorrectness, "KL");
}

TEST_F(ValidateTest, LevelTwoFindsAWindowThatIsOneTooLong) {
  Planted<AttendParams>::fault = [](auto run, AttendParams p) {
    // Of a prompt in one launch, whose pages are all still there.
    if (p.window > 0 && p.batch.num_tokens > 61) ++p.window;
    run(p);
  };
  EXPECT_LEVEL_2_FINDS("KL, a prompt at once");
}

TEST_F(ValidateTest, LevelTwoFindsAWindowThatIsOneTooShort) {
  Planted<AttendParams>::fault = [](auto run, AttendParams p) {
    if (p.window > 0) --p.window;
    run(p);
  };
  EXPECT_LEVEL_2_FINDS("KL, a token a launch");
}

TEST_F(ValidateTest, LevelTwoFindsAShiftedScaleOfAttention) {
  Planted<AttendParams>::fault = [](auto run, AttendParams p) {
    p.scale *= 1.01f;
    run(p);
  };
  EXPECT_LEVEL_2_FINDS("KL");
}

TEST_F(ValidateTest, LevelTwoFindsAShiftedScaleOfOneExpert) {
  // An exponent of down's scales that is one too great doubles what the expert adds.
  Planted<ExpertsParams>::fault = [](auto run, ExpertsParams p) {
    for (int32_t i = 0; i < p.num_tokens * p.top_k; ++i)
      if (p.expert_ids[i] == 5) p.expert_weights[i] *= 2;
    run(p);
  };
  EXPECT_LEVEL_2_FINDS("KL");
}

TEST_F(ValidateTest, LevelTwoFindsABiasThatIsLeftOut) {
  Planted<OutParams>::fault = [](auto run, OutParams p) {
    const std::vector<float> zeros(static_cast<size_t>(p.weight.rows));
    p.bias = zeros.data();
    run(p);
  };
  EXPECT_LEVEL_2_FINDS("KL");
}

TEST_F(ValidateTest, LevelTwoFindsWeightsOfExpertsThatAreNotNormalised) {
  Planted<RouteParams>::fault = [](auto run, RouteParams p) {
    run(p);
    for (int32_t i = 0; i < p.num_tokens * p.top_k; ++i) p.expert_weights[i] *= 0.97f;
  };
  EXPECT_LEVEL_2_FINDS("KL");
}

TEST_F(ValidateTest, LevelTwoFindsATopKOfThree) {
  Planted<RouteParams>::fault = [](auto run, RouteParams p) {
    run(p);
    for (int32_t t = 0; t < p.num_tokens; ++t) {
      float* const weights = p.expert_weights + t * p.top_k;
      const float rest = 1 - weights[p.top_k - 1];
      weights[p.top_k - 1] = 0;
      for (int32_t k = 0; k + 1 < p.top_k; ++k) weights[k] /= rest;
    }
  };
  EXPECT_LEVEL_2_FINDS("KL");
}

TEST_F(ValidateTest, LevelTwoFindsASwigluWithoutItsClamp) {
  // The model's gates do not reach the limit: biases lift some of them above it.
  MemoryCheckpoint checkpoint = MemoryCheckpoint::read(options(Level::kSmoke).engine.model);
  constexpr uint16_t kTwenty = 0x41A0;  // BF16
  for (MemoryTensor& tensor : checkpoint.tensors) {
    if (!tensor.name.ends_with("gate_up_proj_bias")) continue;
    ASSERT_EQ(tensor.dtype, "BF16");
    for (size_t at = 0; at < tensor.bytes.size(); at += 8)  // every second gate
      std::memcpy(tensor.bytes.data() + at, &kTwenty, sizeof kTwenty);
  }
  const std::filesystem::path folder = fresh_folder();
  write(folder / "model.safetensors", checkpoint.safetensors());
  std::filesystem::copy_file(options(Level::kSmoke).engine.model + "/config.json",
                             folder / "config.json");
  ValidateOptions o = options(Level::kCorrectness);
  o.engine.model = folder;
  expect_sound(run(o));
  o.last = Level::kStress;
  Planted<ExpertsParams>::fault = [](auto run, ExpertsParams p) {
    p.swiglu_limit = 1e30f;
    run(p);
  };
  expect_caught(run(o), Level::kCorrectness, "KL");
}

TEST_F(ValidateTest, LevelTwoFindsARotationThatIsOnePositionAhead) {
  // Of single tokens: a shift of all positions alike changes nothing.
  Planted<QkvParams>::fault = [](auto run, QkvParams p) {
    if (p.batch.num_tokens == 1) {
      p.rotary.table += p.head_dim;
      --p.rotary.max_positions;
    }
    run(p);
  };
  EXPECT_LEVEL_2_FINDS("KL, a token a launch");
}

// Zeros the key of a position that is in the cache already.
void forget_key(const QkvParams& p, int32_t position) {
  const int32_t page = p.kv.page_of(p.batch.seq_idx[0], position);
  if (page < 0) return;  // the window has passed it
  const int64_t offset = p.kv.offset(page, 0, position, p.head_dim);
  std::memset(p.kv.k + offset, 0, static_cast<size_t>(p.kv.row_bytes(p.head_dim)));
}

TEST_F(ValidateTest, LevelTwoFindsAPageThatIsOverwritten) {
  Planted<QkvParams>::fault = [](auto run, QkvParams p) {
    run(p);
    if (p.batch.positions[0] < 64) return;
    for (int32_t position = 0; position < p.kv.page_tokens; ++position) forget_key(p, position);
  };
  EXPECT_LEVEL_2_FINDS("KL, launches of 61");
}

TEST_F(ValidateTest, LevelTwoFindsATokenThatIsDroppedAtABorderOfChunks) {
  Planted<QkvParams>::fault = [](auto run, QkvParams p) {
    run(p);
    if (p.batch.positions[0] > 0 && p.batch.num_tokens > 1) forget_key(p, p.batch.positions[0] - 1);
  };
  EXPECT_LEVEL_2_FINDS("KL, launches of 61");
}

TEST_F(ValidateTest, LevelTwoFindsARowThatDependsOnItsBatch) {
  Planted<AttendParams>::fault = [](auto run, AttendParams p) {
    if (p.batch.num_seqs > 1) p.scale *= 0.95f;
    run(p);
  };
  EXPECT_LEVEL_2_FINDS("KL, texts in one launch");
}

TEST_F(ValidateTest, LevelTwoFindsADrawThatChangesFromRunToRun) {
  static int num_draws;
  num_draws = 0;
  Planted<SampleParams>::fault = [](auto run, SampleParams p) {
    run(p);
    if (p.requests[0].temperature > 0 && p.num_rows == 1 && ++num_draws % 50 == 0)
      p.answers[0].token = (p.answers[0].token + 1) % p.vocab;
  };
  EXPECT_LEVEL_2_FINDS("same tokens, from a seed, run again");
}

TEST_F(ValidateTest, LevelTwoFindsAnIgnoredTopK) {
  Planted<SampleParams>::fault = [](auto run, SampleParams p) {
    std::vector<SampleRequest> requests(p.requests, p.requests + p.num_rows);
    for (SampleRequest& request : requests) request.top_k = 0;
    p.requests = requests.data();
    run(p);
  };
  EXPECT_LEVEL_2_FINDS("draws");
}

}  // namespace
}  // namespace moxie::testing
