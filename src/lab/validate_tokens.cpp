// Level 2, tokens: the same requests again, beside others, in the decode loop, from the prefix
// cache and with drafts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/validate_requests.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

constexpr int32_t kTokens = 24;

// Prompts of several lengths; the long ones fill pages and pass the window.
std::vector<ServiceRequest> requests_of(Validation& run, bool greedy) {
  const Engine& engine = run.engine();
  const int32_t most = engine.plan().max_model_len - kTokens - 1;
  const int32_t past_window = engine.config().sliding_window + 37;
  std::vector<ServiceRequest> requests;
  uint64_t seed = 20;
  for (const int32_t length : {past_window, 90, 17, 48}) {
    requests.push_back(greedy_request(
        random_ids(std::clamp(length, 1, most), engine.config().vocab, ++seed), kTokens));
    requests.back().sampling.num_logprobs = 0;
    requests.back().use_drafter = false;
    if (greedy) continue;
    requests.back().sampling.temperature = 1;
    requests.back().sampling.seed = seed;
  }
  return requests;
}

struct Agreement {
  std::string fault;  // empty: they agree
  int num_tokens = 0, num_ties = 0;
  double greatest = 0;  // difference of log-probabilities of the same token

  std::string text() const {
    if (!fault.empty()) return fault;
    return fmt::format("{} tokens, {} ties, log-probabilities differ by at most {:.2g}", num_tokens,
                       num_ties, greatest);
  }
};

// Whether two answers have the same tokens. With a tolerance above 0 they may part where two tokens
// are so close; what follows is then not compared.
Agreement agreement_of(const std::vector<ValidateAnswer>& a, const std::vector<ValidateAnswer>& b,
                       double tolerance) {
  Agreement found;
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t i = 0; i < a[r].ids.size(); ++i) {
      const double difference = std::fabs(double{a[r].logprobs[i]} - b[r].logprobs[i]);
      const bool is_same = a[r].ids[i] == b[r].ids[i];
      const bool is_close = difference <= tolerance;  // not for NaN
      if (is_same && is_close) {
        ++found.num_tokens;
        found.greatest = std::max(found.greatest, difference);
        continue;
      }
      if (!is_same && is_close && tolerance > 0) {
        ++found.num_ties;
        break;
      }
      found.fault =
          fmt::format("prompt {}, token {}: {} with log-probability {:.7g}, and {} with {:.7g}", r,
                      i, a[r].ids[i], a[r].logprobs[i], b[r].ids[i], b[r].logprobs[i]);
      return found;
    }
  }
  return found;
}

struct Way {
  std::string name;
  ServiceOptions service;
  int32_t concurrency = 1;
  bool in_loop = false, use_prefix_cache = false, use_drafter = false;
};

struct Made {
  std::vector<ValidateAnswer> answers;
  ServiceStats stats;
};

Result<Made> answers_of(Validation& run, const Way& way, bool greedy) {
  auto service = run.make_service(way.service, way.in_loop);
  std::vector<ServiceRequest> requests = requests_of(run, greedy);
  for (ServiceRequest& request : requests) {
    request.use_prefix_cache = way.use_prefix_cache;
    request.use_drafter = way.use_drafter;
  }
  const AnswerOptions options{.concurrency = way.concurrency, .patience_s = run.seams().patience_s};
  if (way.use_prefix_cache) {  // the prompts' pages come into the cache
    const auto first = answer_all(*service, requests, options);
    if (const auto fault = answers_fault(first, kTokens); !fault.empty())
      return fail(fault, way.name);
  }
  Made made{.answers = answer_all(*service, std::move(requests), options), .stats = {}};
  if (const auto fault = answers_fault(made.answers, kTokens); !fault.empty())
    return fail(fault, way.name);
  made.stats = service->stats();
  return made;
}

// Compares a way of running the requests with the plain way.
Status check_way(Validation& run, const Way& way, const std::vector<ValidateAnswer>& plain,
                 double tolerance) {
  auto made = answers_of(run, way, true);
  if (!made) return fail(std::move(made.error()));
  const Agreement found = agreement_of(plain, made->answers, tolerance);
  run.check("same tokens, " + way.name, found.fault.empty(), found.text(),
            tolerance > 0 ? fmt::format("equal up to ties; log-probabilities within {:.3g}, "
                                        "since other rows may run",
                                        tolerance)
                          : "equal tokens, equal log-probabilities");
  if (way.use_prefix_cache) {
    run.check("prefixes were found", made->stats.prefix_hit_tokens > 0,
              fmt::format("{} tokens", made->stats.prefix_hit_tokens), "some");
  }
  if (way.in_loop) {
    run.check("launches in the decode loop", made->stats.num_loop_steps > 0,
              fmt::format("{}", made->stats.num_loop_steps), "some");
  }
  return {};
}

}  // namespace

Status check_tokens(Validation& run, double logprob_tolerance) {
  const EngineOptions& options = run.options().engine;
  const bool is_invariant = options.batch_invariant == "on";
  const bool on_cpu = run.engine().device().kind() == DeviceKind::kCpu;
  const Way plain{.name = "plain", .service = {.prefix_cache = false, .async_scheduling = false}};
  const auto greedy = answers_of(run, plain, true), drawn = answers_of(run, plain, false);
  if (!greedy) return fail(greedy.error());
  if (!drawn) return fail(drawn.error());
  for (const bool is_greedy : {true, false}) {
    const auto again = answers_of(run, plain, is_greedy);
    if (!again) return fail(again.error());
    const Agreement found = agreement_of((is_greedy ? greedy : drawn)->answers, again->answers, 0);
    run.check(is_greedy ? "same tokens, greedy, run again" : "same tokens, from a seed, run again",
              found.fault.empty(), found.text(), "equal tokens, equal log-probabilities");
  }
  const double of_batches = is_invariant ? 0 : logprob_tolerance;
  // The loop on the CPU runs the same rows; on CUDA its tables are longer, which cuts sums
  // otherwise.
  const double of_loop = on_cpu || is_invariant ? 0 : logprob_tolerance;
  const bool has_loop = run.engine().num_ranks() == 1;
  std::vector<std::pair<Way, double>> ways = {
      {{.name = fmt::format("{} at once", kValidateStreams),
        .service = {.prefix_cache = false},
        .concurrency = kValidateStreams},
       of_batches},
      {{.name = on_cpu ? "in the decode loop" : "in the decode loop, graphs " + options.graphs,
        .service = {.prefix_cache = false},
        .in_loop = true},
       of_loop},
      {{.name = "from the prefix cache", .service = {}, .use_prefix_cache = true}, of_batches}};
  if (options.speculation.method != SpecMethod::kOff) {
    ways.push_back(
        {{.name = "with drafts", .service = {.prefix_cache = false}, .use_drafter = true},
         of_batches});
  }
  if (!has_loop) {
    run.omit("same tokens, in the decode loop", "several ranks have no decode loop");
    std::erase_if(ways, [](const auto& way) { return way.first.in_loop; });
  }
  for (const auto& [way, tolerance] : ways)
    if (auto status = check_way(run, way, greedy->answers, tolerance); !status) return status;
  if (on_cpu) run.omit("graphs on and off", "the CPU has no graphs; its decode loop is compared");
  if (!is_invariant) {
    run.omit("equal bits in every batch", "promised by --batch-invariant on alone");
  }
  return {};
}

}  // namespace moxie
