// Depth is filled once; each repetition runs on a fork of it, so that none sees another's tokens.
#include "lab/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "core/clock.h"
#include "kernels/experts/experts.h"
#include "kernels/gemm/tile_model.h"
#include "lab/stats.h"

namespace moxie {
namespace {

class Runner {
 public:
  Runner(Engine& engine, const BenchTest& test) : engine_(engine), test_(test) {
    for (int32_t s = 0; s < test.streams; ++s) base_.push_back(engine.kv().add_sequence());
  }
  ~Runner() {
    for (const SeqId seq : base_) engine_.kv().free_sequence(seq);
  }

  Status fill_depth() {
    for (const SeqId seq : base_) {
      if (auto status = prefill(seq, test_.depth); !status) return status;
    }
    return engine_.synchronize();
  }

  /// Seconds of one repetition.
  Result<double> repeat() {
    std::vector<SeqId> seqs;
    Status status;
    for (const SeqId seq : base_) {
      auto fork = engine_.kv().fork(seq);
      if (!fork) {
        status = fail(std::move(fork.error()));
        break;
      }
      seqs.push_back(*fork);
    }
    const auto start = Clock::now();
    if (status && test_.n_prompt > 0) {
      for (const SeqId seq : seqs) {
        if (status) status = prefill(seq, test_.n_prompt);
      }
      if (status) status = engine_.synchronize();
    } else if (status) {
      const bool ahead = engine_.device().kind() == DeviceKind::kCuda &&
                         seqs.size() <= static_cast<size_t>(engine_.decode_loop().max_streams());
      status = ahead ? generate_ahead(seqs) : generate(seqs);
    }
    const double seconds = seconds_since(start);
    if (auto ended = engine_.decode_loop().end(); status) status = ended;
    for (const SeqId seq : seqs) engine_.kv().free_sequence(seq);
    if (!status) return fail(std::move(status.error()));
    return seconds;
  }

 private:
  int32_t random_token() {
    return std::uniform_int_distribution<int32_t>(0, engine_.config().vocab - 1)(random_);
  }

  Status prefill(SeqId seq, int32_t count) {
    const int32_t chunk = engine_.options().max_batch_tokens;
    for (int32_t at = 0; at < count; at += chunk) {
      std::vector<int32_t> tokens(static_cast<size_t>(std::min(chunk, count - at)));
      for (int32_t& token : tokens) token = random_token();
      const Chunk part{seq, tokens, at + chunk >= count ? Logits::kLast : Logits::kNone};
      if (auto rows = engine_.step({&part, 1}); !rows) return fail(std::move(rows.error()));
    }
    return {};
  }

  Status generate(const std::vector<SeqId>& seqs) {
    std::vector<int32_t> tokens(seqs.size());
    std::vector<Chunk> chunks(seqs.size());
    const std::vector<SampleRequest> requests(seqs.size());
    std::vector<SampleAnswer> answers(seqs.size());
    for (int32_t n = 0; n < test_.n_gen; ++n) {
      for (size_t s = 0; s < seqs.size(); ++s) {
        tokens[s] = random_token();
        chunks[s] = {seqs[s], {&tokens[s], 1}, Logits::kLast};
      }
      if (auto rows = engine_.step(chunks); !rows) return fail(std::move(rows.error()));
      if (auto status = engine_.sample(requests, answers); !status) return status;
    }
    return {};
  }

  // Without the host on the path; the tokens to feed travel before.
  Status generate_ahead(const std::vector<SeqId>& seqs) {
    const auto num_fed = static_cast<size_t>(std::clamp(test_.n_gen, 0, DecodeLoop::kMaxFed));
    std::vector<std::vector<int32_t>> fed(seqs.size(), std::vector<int32_t>(num_fed));
    std::vector<DecodeLoop::Member> members;
    for (size_t s = 0; s < seqs.size(); ++s) {
      for (int32_t& token : fed[s]) token = random_token();
      members.push_back({.seq = seqs[s], .first_token = random_token(), .fed = fed[s]});
    }
    DecodeLoop& loop = engine_.decode_loop();
    if (auto status = loop.begin(members); !status) return status;
    int32_t num_asked = 0;
    for (int32_t num_read = 0; num_read < test_.n_gen; ++num_read) {
      while (num_asked < test_.n_gen) {
        auto launched = loop.launch();
        if (!launched) return fail(std::move(launched.error()));
        if (!*launched) break;
        ++num_asked;
      }
      if (loop.num_in_flight() == 0) return fail("no free pages in the KV cache", "bench");
      if (auto answers = loop.next(); !answers) return fail(std::move(answers.error()));
    }
    return {};
  }

  Engine& engine_;
  const BenchTest& test_;
  std::vector<SeqId> base_;
  std::mt19937 random_{42};
};

// The least work of the test's tokens, all streams together, launch by launch.
Work least_work(const Engine& engine, const BenchTest& test) {
  const GptOssConfig& config = engine.config();
  Work total;
  const auto add = [&](int32_t tokens, int64_t visible, int32_t rows) {
    Batch batch{.num_logit_rows = rows};
    batch.ragged = {.num_tokens = tokens, .num_seqs = 1, .num_visible_keys = visible};
    const auto distinct = static_cast<int32_t>(
        std::lround(expected_distinct_experts(config.num_experts, config.top_k, tokens)));
    const Work work = engine.model().work(batch, engine.kv_dtype(), distinct);
    total.bytes += work.bytes;
    total.flops += work.flops;
  };
  if (test.n_prompt > 0) {
    const int32_t chunk = engine.options().max_batch_tokens;
    for (int32_t at = 0; at < test.n_prompt; at += chunk) {
      const int64_t count = std::min(chunk, test.n_prompt - at);
      const int64_t first = test.depth + at;
      add(static_cast<int32_t>(count), count * first + count * (count + 1) / 2,
          at + chunk >= test.n_prompt ? 1 : 0);
    }
    total.bytes *= test.streams;
    total.flops *= test.streams;
    return total;
  }
  for (int32_t n = 0; n < test.n_gen; ++n) {
    add(test.streams, int64_t{test.streams} * (test.depth + n + 1), test.streams);
  }
  return total;
}

// The tile of the experts' products in the test's largest launch.
std::string tile_of(Engine& engine, const BenchTest& test) {
  const auto counts = engine.kernels().counts();
  if (std::none_of(counts.begin(), counts.end(),
                   [](const auto& count) { return count.name == kTiledExpertsRow; })) {
    return {};
  }
  const int32_t forced = engine.kernels().tile_columns();
  if (forced != 0) return gemm::tile_name(forced) + ", forced";
  const GptOssConfig& c = engine.config();
  const int32_t tokens =
      test.n_prompt > 0 ? std::min(test.n_prompt, engine.options().max_batch_tokens) : test.streams;
  const auto choice = gemm::choose_tile(gemm::mean_pairs(tokens, c.top_k, c.num_experts));
  return gemm::tile_name(choice.columns) + ", " + choice.reason;
}

}  // namespace

std::string BenchTest::name() const {
  std::string text = n_prompt > 0 ? fmt::format("pp{}", n_prompt) : fmt::format("tg{}", n_gen);
  if (depth > 0) text += fmt::format("@d{}", depth);
  if (streams > 1) text += fmt::format("@b{}", streams);
  return text;
}

std::vector<BenchTest> bench_tests(const std::vector<int32_t>& n_prompt,
                                   const std::vector<int32_t>& n_gen,
                                   const std::vector<int32_t>& depth,
                                   const std::vector<int32_t>& streams) {
  std::vector<BenchTest> tests;
  for (const int32_t d : depth) {
    for (const int32_t b : streams) {
      for (const int32_t p : n_prompt) {
        if (p > 0) tests.push_back({.n_prompt = p, .depth = d, .streams = b});
      }
      for (const int32_t n : n_gen) {
        if (n > 0) tests.push_back({.n_gen = n, .depth = d, .streams = b});
      }
    }
  }
  return tests;
}

void fit_engine(const std::vector<BenchTest>& tests, EngineOptions* options) {
  int32_t context = 1, streams = 1;
  for (const BenchTest& test : tests) {
    context = std::max(context, test.context());
    streams = std::max(streams, test.streams);
  }
  if (options->max_model_len == 0) options->max_model_len = context;
  options->max_num_seqs = 2 * streams;  // the filled depth, and the forks that run on it
  options->max_logit_rows = streams;
  if (options->max_batch_tokens > 0)
    options->max_batch_tokens = std::max(options->max_batch_tokens, streams);
}

Result<BenchResult> run_bench(Engine& engine, const BenchTest& test, int32_t repetitions,
                              const MachineLimits& limits) {
  Runner runner(engine, test);
  if (auto status = runner.fill_depth(); !status) return fail(std::move(status.error()));
  if (auto warm = runner.repeat(); !warm) return fail(std::move(warm.error()));
  engine.kernels().reset_counts();
  BenchResult result{.test = test};
  const double tokens = static_cast<double>(test.streams) * std::max(test.n_prompt, test.n_gen);
  for (int32_t r = 0; r < repetitions; ++r) {
    auto seconds = runner.repeat();
    if (!seconds) return fail(std::move(seconds.error()));
    result.tok_s.push_back(tokens / *seconds);
  }
  result.kernels = engine.kernels().counts();
  result.tile = tile_of(engine, test);
  const Work work = least_work(engine, test);
  result.bytes_per_token = work.bytes / tokens;
  result.flops_per_token = work.flops / tokens;
  const Peak& peak = limits.bf16.rate > limits.fp32.rate ? limits.bf16 : limits.fp32;
  result.share_of_limit =
      share_of_limit(limits, peak, work.bytes, work.flops, tokens / median(result.tok_s));
  return result;
}

}  // namespace moxie
