// Measures OpenAI-compatible endpoints over HTTP, from outside: sweeps over lengths and over
// streams at once or requests a second. Several endpoints are measured in turn, in blocks A B B A,
// so that a drift of the machine meets all alike. What is sent besides measured requests (warm-ups,
// probes) is counted too, so that an endpoint's own counters can be compared.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "lab/serve_bench_figures.h"
#include "lab/serve_bench_prompts.h"

namespace moxie {

/// What all tests of a run share.
struct ServeOptions {
  std::vector<Endpoint> endpoints;
  std::string model;          ///< empty: the first that the endpoint lists
  bool is_chat = true;        ///< else /completions
  int32_t num_requests = 32;  ///< a test and endpoint; 0: as many as `duration_s` allows
  double duration_s = 0;      ///< requests are begun for so long; 0: `num_requests` counts
  int32_t block = 0;          ///< requests of one endpoint before the next's turn; 0: what suits
  int32_t num_warm_ups = 1;   ///< a test and endpoint, unmeasured
  int32_t max_errors = 10;    ///< of a test: then it ends
  bool keeps_prefix_cache = false;  ///< the context is sent before, and pp counts the prompt alone
  bool ignores_eos = false;
  bool measures_latency = true;
  uint64_t seed = 0;
  ClientLimits limits;
};

struct ServeTest {
  int32_t n_prompt = 512, n_gen = 128, depth = 0;
  int32_t concurrency = 1;  ///< 0: by rate
  double rate = 0;          ///< requests a second, at Poisson's intervals

  std::string name() const;  ///< "pp512 tg128 d2048 c8", "pp512 tg128 r2.5"
  bool operator==(const ServeTest&) const = default;
};

/// Requests that generated, whatever for, and what they say of themselves.
struct ServeTraffic {
  int64_t num_requests = 0, num_prompt = 0, num_completion = 0;
  double ttft_s = 0;  ///< sums over requests, of the streamed ones
  double gaps_s = 0;
  double first_response_s = 0;
};

struct EndpointFacts {
  std::string url, model;
  std::string counts_by;  ///< how prompts were measured: "tokenize" or "usage"
  bool tells_token_ids = false;
  double latency_s = 0;
  int64_t num_template_tokens = 0;
  ServeTraffic traffic;
};

class ServeBench {
 public:
  /// Asks each endpoint for its model, latency and tokenizer; fails with what is wrong there.
  static Result<std::unique_ptr<ServeBench>> prepare(const ServeOptions& options,
                                                     const std::atomic<bool>& stop);
  ~ServeBench();

  struct Outcome {
    std::vector<ServeFigures> figures;  ///< by endpoint; what was measured before an end is kept
    std::string stopped;                ///< why the test ended early; empty: it did not
    double client_cpu_s = 0, wall_s = 0;
  };
  /// Fails only where the test cannot begin (a prompt too short).
  Result<Outcome> run(const ServeTest& test);

  const std::vector<EndpointFacts>& endpoints() const { return facts_; }

 private:
  struct Block;
  ServeBench(const ServeOptions& options, const std::atomic<bool>& stop);
  Status prepare_endpoint(size_t index);
  Status read_model(size_t index);
  Status measure_latency(size_t index);
  Status calibrate(size_t index);
  Status try_stream(size_t index);
  Result<int64_t> count_tokens(size_t index, const PromptText& text);
  Result<int64_t> count_by_usage(size_t index, const PromptText& text);
  std::string body_of(size_t index, const PromptText& text, int32_t n_gen, bool is_stream) const;
  const char* path() const { return options_.is_chat ? "/chat/completions" : "/completions"; }
  Block next_block(size_t index, const ServeTest& test, int32_t turn) const;
  Status make_texts(const ServeTest& test, Block* block);
  Status load_contexts(const ServeTest& test, Block* block, Outcome* outcome);
  Status start(const ServeTest& test, Block* block);
  Status run_unmeasured(const ServeTest& test, Block* block, Outcome* outcome);
  Status run_block(const ServeTest& test, Block* block, Outcome* outcome);
  void finish_block(const Block& block, size_t num_before, double end_s,
                    ServeFigures* figures) const;
  bool is_over(Outcome* outcome) const;
  int32_t num_turns(const ServeTest& test) const;
  void absorb(const Block& block, const StreamResult& result, ServeFigures* figures);
  void count_traffic(size_t index, const StreamResult& result);
  int32_t block_size(const ServeTest& test) const;

  ServeOptions options_;
  const std::atomic<bool>& stop_;
  std::unique_ptr<ServeClient> client_;
  std::vector<EndpointFacts> facts_;
  std::vector<PromptMaker> prompts_;  // by endpoint
  std::mt19937_64 arrivals_;
  int64_t next_number_ = 0;
};

}  // namespace moxie
