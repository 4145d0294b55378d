// Depth is filled once; each repetition runs on a fork of it, so that none sees another's tokens.
#include "lab/bench_runner.h"

#include <algorithm>
#include <cmath>

#include "kernels/experts/experts.h"

namespace moxie {

BenchRunner::BenchRunner(Engine& engine, const BenchTest& test) : engine_(engine), test_(test) {
  for (int32_t s = 0; s < test.streams; ++s) base_.push_back(engine.kv().add_sequence());
}

BenchRunner::~BenchRunner() {
  for (const SeqId seq : base_) engine_.kv().free_sequence(seq);
}

Status BenchRunner::fill_depth() {
  for (const SeqId seq : base_) {
    if (auto status = prefill(seq, test_.depth); !status) return status;
  }
  return engine_.synchronize();
}

Result<BenchRunner::Window> BenchRunner::repeat() {
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
  if (status) status = engine_.synchronize();
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
  const auto end = Clock::now();
  if (auto ended = engine_.decode_loop().end(); status) status = ended;
  for (const SeqId seq : seqs) engine_.kv().free_sequence(seq);
  if (!status) return fail(std::move(status.error()));
  return Window{start, end};
}

int32_t BenchRunner::random_token() {
  return std::uniform_int_distribution<int32_t>(0, engine_.config().vocab - 1)(random_);
}

Status BenchRunner::prefill(SeqId seq, int32_t count) {
  const int32_t chunk = engine_.options().max_batch_tokens;
  for (int32_t at = 0; at < count; at += chunk) {
    std::vector<int32_t> tokens(static_cast<size_t>(std::min(chunk, count - at)));
    for (int32_t& token : tokens) token = random_token();
    const Chunk part{seq, tokens, at + chunk >= count ? Logits::kLast : Logits::kNone};
    if (auto rows = engine_.step({&part, 1}); !rows) return fail(std::move(rows.error()));
  }
  return {};
}

Status BenchRunner::generate(const std::vector<SeqId>& seqs) {
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
Status BenchRunner::generate_ahead(const std::vector<SeqId>& seqs) {
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

double tokens_of(const BenchTest& test) {
  return static_cast<double>(test.streams) * std::max(test.n_prompt, test.n_gen);
}

// Launch by launch.
StepWorks least_work(const Engine& engine, const BenchTest& test) {
  const GptOssConfig& config = engine.config();
  StepWorks total = {};
  const auto add = [&](int32_t tokens, int64_t visible, int32_t rows) {
    Batch batch{.num_logit_rows = rows};
    batch.ragged = {.num_tokens = tokens, .num_seqs = 1, .num_visible_keys = visible};
    const auto distinct = static_cast<int32_t>(
        std::lround(expected_distinct_experts(config.num_experts, config.top_k, tokens)));
    const StepWorks works = engine.model().work_by_step(batch, engine.kv_dtype(), distinct);
    for (size_t s = 0; s < total.size(); ++s) total[s] += works[s];
  };
  if (test.n_prompt > 0) {
    const int32_t chunk = engine.options().max_batch_tokens;
    for (int32_t at = 0; at < test.n_prompt; at += chunk) {
      const int64_t count = std::min(chunk, test.n_prompt - at);
      const int64_t first = test.depth + at;
      add(static_cast<int32_t>(count), count * first + count * (count + 1) / 2,
          at + chunk >= test.n_prompt ? 1 : 0);
    }
    for (Work& work : total) {
      work.bytes *= test.streams;
      work.flops *= test.streams;
    }
    return total;
  }
  for (int32_t n = 0; n < test.n_gen; ++n) {
    add(test.streams, int64_t{test.streams} * (test.depth + n + 1), test.streams);
  }
  return total;
}

std::string row_of(const std::vector<KernelChooser::Count>& counts, StepKind step) {
  const KernelChooser::Count* most = nullptr;
  for (const auto& count : counts) {
    if (count.step == step && (most == nullptr || count.launches > most->launches)) most = &count;
  }
  return most == nullptr ? "" : most->name;
}

}  // namespace moxie
