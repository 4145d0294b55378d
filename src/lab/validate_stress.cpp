// Level 3: many requests one after another, some at once, and a long context; nothing is lost and
// nothing grows.
#include <fmt/format.h>

#include <algorithm>

#include "core/bytes.h"
#include "lab/validate_requests.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

constexpr int32_t kTokens = 8, kPromptTokens = 32;
constexpr size_t kWarmUps = 20;
/// Requests repeat so many prompts, so that the prefix cache's lists have their full length when
/// the warm-up ends.
constexpr size_t kNumPrompts = 10;
/// A request may leave so much behind: its tokens and times, which the level keeps, take half of
/// it. It is less than the smallest page of memory.
constexpr double kMostHeapBytes = 1024;
constexpr double kDrainS = 5;
/// Resident pages come and go with the allocator's own; so many bytes over the whole level.
constexpr double kMostResidentBytes = 32 << 20;

std::string faults_or(const std::string& fault, const std::string& text) {
  return fault.empty() ? text : fault;
}

std::vector<ServiceRequest> short_requests(Validation& run, size_t count, size_t num_prompts) {
  std::vector<ServiceRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    requests.push_back(greedy_request(
        random_ids(kPromptTokens, run.engine().config().vocab, 300 + i % num_prompts), kTokens));
    requests.back().use_prefix_cache = run.options().prefix_cache;
  }
  return requests;
}

Status check_one_after_another(Validation& run, Service& service) {
  const size_t count = run.options().quick ? 40 : 100;
  MemoryInUse before;
  size_t num_ended = 0;
  auto requests = short_requests(run, count, kNumPrompts);
  const auto answers = answer_all(service, std::move(requests),
                                  {.patience_s = run.seams().patience_s, .on_finish = [&](size_t) {
                                     if (++num_ended == kWarmUps) before = run.seams().memory();
                                   }});
  const MemoryInUse after = run.seams().memory();
  const std::string fault = answers_fault(answers, kTokens);
  run.check(fmt::format("{} requests one after another", count), fault.empty(),
            faults_or(fault, fmt::format("{} answers of {} tokens", answers.size(), kTokens)),
            "every request has one answer of full length");
  if (num_ended < kWarmUps) return {};
  const auto since_warm_up = static_cast<double>(num_ended - kWarmUps);
  const auto growth = [](uint64_t from, uint64_t to) {
    return static_cast<double>(to) - static_cast<double>(from);
  };
  run.check_most(
      "growth of the heap a request", growth(before.heap_bytes, after.heap_bytes) / since_warm_up,
      kMostHeapBytes,
      fmt::format("bytes, over {} requests behind {} for warm-up", since_warm_up, kWarmUps));
  run.check_most("growth of resident memory", growth(before.resident_bytes, after.resident_bytes),
                 kMostResidentBytes, fmt::format("bytes, over the same requests"));
  return {};
}

Status check_at_once(Validation& run, Service& service) {
  const size_t count = run.options().quick ? 12 : 40;
  for (const int32_t concurrency : {2, kValidateStreams}) {
    auto requests = short_requests(run, count, count);
    for (size_t i = 0; i < requests.size(); ++i)  // of unequal length, so that they mix
      requests[i].prompt.resize(1 + (i * 13) % kPromptTokens);
    const auto answers =
        answer_all(service, std::move(requests),
                   {.concurrency = concurrency, .patience_s = run.seams().patience_s});
    const std::string fault = answers_fault(answers, kTokens);
    run.check(fmt::format("{} requests, {} at once", count, concurrency), fault.empty(),
              faults_or(fault, fmt::format("{} answers of {} tokens", answers.size(), kTokens)),
              "every request has one answer of full length");
  }
  return {};
}

// The tokens of a long prompt that take no longer than level 3 may, by the pace of `probe` tokens.
int32_t affordable(Validation& run, Service& service, int32_t wanted) {
  constexpr int32_t kProbe = 512;
  if (wanted <= kProbe) return wanted;
  const double most_s = run.limit_s(120, 20);
  const auto start = Clock::now();
  std::vector<ServiceRequest> probe{
      greedy_request(random_ids(kProbe, run.engine().config().vocab, 400), 1)};
  static_cast<void>(answer_all(service, std::move(probe), {.patience_s = run.seams().patience_s}));
  const double pace = kProbe / seconds_since(start);  // falls with depth: attention grows
  return std::clamp(static_cast<int32_t>(std::min(0.5 * pace * most_s, 1e9)), kProbe, wanted);
}

Status check_long_context(Validation& run, Service& service) {
  const int32_t longest = run.engine().plan().max_model_len - kTokens - 1;
  const int32_t wanted = std::min(kLongContext, longest);
  const int32_t length = affordable(run, service, wanted);
  if (length < kLongContext) {
    run.omit(fmt::format("a context of {} tokens", kLongContext),
             length < wanted
                 ? fmt::format("it would take too long here: {} tokens instead", length)
                 : fmt::format("{} tokens are the longest that fit (--max-model-len)", longest));
  }
  std::vector<ServiceRequest> requests{
      greedy_request(random_ids(length, run.engine().config().vocab, 401), kTokens),
      greedy_request(random_ids(kPromptTokens, run.engine().config().vocab, 402), kTokens)};
  const auto answers = answer_all(service, std::move(requests),
                                  {.concurrency = 2, .patience_s = run.seams().patience_s});
  const std::string fault = answers_fault(answers, kTokens);
  run.check(fmt::format("a prompt of {} tokens, another request beside it", length), fault.empty(),
            faults_or(fault, fmt::format("{} tokens behind each", kTokens)),
            "both have one answer of full length");
  return {};
}

// Of the cache itself: what the service says is derived from the requests it knows.
void check_pages(Validation& run) {
  const KvCache& kv = run.engine().kv();
  const int32_t held = kv.num_full_pages() - kv.num_free_full_pages() + kv.num_window_pages() -
                       kv.num_free_window_pages();
  run.check({.name = "pages of the cache still held",
             .passed = held == 0,
             .value = fmt::format("{} of {}", held, kv.num_full_pages() + kv.num_window_pages()),
             .bar = "none when all requests have ended",
             .number = static_cast<double>(held)});
}

}  // namespace

Status run_stress(Validation& run) {
  run.start_path();
  auto service = run.make_service({.prefix_cache = run.options().prefix_cache});
  for (const auto check : {check_one_after_another, check_at_once, check_long_context})
    if (auto status = check(run, *service); !status) return status;
  const bool is_empty = service->drain(kDrainS);
  const ServiceStats stats = service->stats();
  run.check("nothing is left in the service", is_empty,
            fmt::format("{} requests run, {} wait", stats.running, stats.waiting),
            "no request behind the last answer");
  run.check("launches that failed", stats.num_failed_steps == 0,
            fmt::format("{} of {}", stats.num_failed_steps, stats.num_steps), "none");
  service = nullptr;
  check_pages(run);
  return {};
}

}  // namespace moxie
