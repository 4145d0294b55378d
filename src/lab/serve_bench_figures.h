// What the times of streamed requests say: figures of one request, and of all requests of a test.
//
// With t0 the moment the request is sent, t1 and tn the events with the first and the last content
// (text, reasoning, or a part of a call; an event with a role alone is none), n tokens up to tn, of
// which f came up to t1 (where the endpoint does not tell: all tokens, and 1):
//   TTFT = t1 - t0        TPOT = (tn - t1) / (n - f)        ITL = each gap between content events
//   E2E = end of the stream - t0                            tg = 1 / TPOT
//   pp = prompt tokens / (first event with a choice - t0 - latency of the endpoint)
//   pp_ttft = prompt tokens / (TTFT - latency)
// pp is llama-benchy's figure. It says nothing of an endpoint that sends the role of its answer
// before it reads the prompt; pp_ttft does, with the time of one token in it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/serve_bench_client.h"

namespace moxie {

struct RequestFigures {
  double start_s = 0, end_s = 0;                ///< of the client's clock
  double ttft_ms = 0, ttfr_ms = 0, e2e_ms = 0;  ///< first content, first response, end
  std::optional<double> tpot_ms;                ///< none: all tokens came at once
  std::vector<double> itl_ms;  ///< between events: a gap may stand for several tokens
  /// None: the answer came within the latency.
  std::optional<double> pp_tok_s, pp_ttft_tok_s;
  int64_t num_prompt = 0, num_output = 0, num_cached = 0, num_events = 0;
};

/// Why an answer's counts cannot be: more events than tokens, more tokens than asked for, other
/// tokens than its `token_ids`. Empty: no contradiction. Fewer events than tokens is none: events
/// may hold several tokens, and tokens of the format have no text.
std::string usage_fault(const StreamResult& result, int64_t num_asked);

/// Of a request without an error, with content. Tokens are `usage`'s, else those of `token_ids`,
/// else events. `num_prompt_counted`: the prompt tokens of pp; 0: all of the prompt (usage's, or
/// `num_prompt_asked` where it has none).
RequestFigures figures_of(const StreamResult& result, int64_t num_prompt_asked,
                          int64_t num_prompt_counted, double latency_s);

/// Bars that a request must keep to be good; an absent one is no bar.
struct Goodput {
  std::optional<double> ttft_ms, tpot_ms, e2e_ms;

  bool is_asked() const { return ttft_ms || tpot_ms || e2e_ms; }
  bool is_met(const RequestFigures& figures) const;
};
/// "ttft_ms=500,tpot_ms=50,e2e_ms=10000", in any order.
Result<Goodput> parse_goodput(const std::string& text);

/// One named quantity with a sample a request (ITL: a gap).
struct ServeSeries {
  std::string name, unit;
  bool lower_is_better = true;
  std::vector<double> samples;
};

/// All requests of one test against one endpoint. `busy_s` is the time from the first request's
/// start to the last one's end, summed over the blocks of requests in which the test ran.
struct ServeFigures {
  std::vector<RequestFigures> requests;              ///< without errors
  std::map<std::string, int64_t> errors;             ///< by kind
  std::map<std::string, std::string> first_message;  ///< by kind
  std::vector<double> block_tok_s;                   ///< tokens out a second of each block
  std::vector<size_t> block_begins;                  ///< of each block, in `requests`
  double busy_s = 0;
  int64_t num_disagreements = 0;  ///< prompts whose usage is not what was asked for

  int64_t num_errors() const;
  int64_t num_output() const;
  int64_t num_prompt() const;
  int64_t num_cached() const;
  double output_tok_s() const;
  double total_tok_s() const;
  double requests_s() const;
  int64_t num_good(const Goodput& goodput) const;
  /// The requests of each block alone, in the order of time; without errors.
  std::vector<ServeFigures> by_block() const;
  /// ttft, tpot, itl, e2e, pp, pp_ttft, tg, output.
  std::vector<ServeSeries> series() const;
};

}  // namespace moxie
