#include "lab/serve_bench.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <deque>

namespace moxie {
namespace {

constexpr double kMostRetryAfterS = 60;
constexpr int32_t kTurns = 16;  // of an endpoint, where several are measured

double cpu_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

std::string ServeTest::name() const {
  std::string text = fmt::format("pp{} tg{}", n_prompt, n_gen);
  if (depth > 0) text += fmt::format(" d{}", depth);
  return text + (concurrency > 0 ? fmt::format(" c{}", concurrency) : fmt::format(" r{}", rate));
}

// Consecutive requests to one endpoint.
struct ServeBench::Block {
  size_t index = 0;
  int32_t num_requests = 0;  // 0: begun for duration_s
  double duration_s = 0;
  int32_t num_asked = 0;  // tokens of an answer
  int32_t n_prompt = 0, num_prompt_asked = 0;
  bool loads_context = false;        // before; then pp counts the prompt alone
  std::deque<std::string> bodies;    // made before the clock runs
  std::vector<PromptText> contexts;  // of them, where they are loaded before
  int32_t num_begun = 0;
  double begin_s = 0, hold_until_s = 0, next_arrival_s = 0;
  int32_t num_running = 0;
  bool is_measured = true;  // else its answers may be without text

  bool is_begun(double now) const {
    return num_requests > 0 ? num_begun >= num_requests : now - begin_s >= duration_s;
  }
};

namespace {

// A user's turn of its own: some endpoints refuse an empty one.
PromptText context_of(PromptText text) {
  text.user = ".";
  return text;
}

}  // namespace

ServeBench::ServeBench(const ServeOptions& options, const std::atomic<bool>& stop)
    : options_(options), stop_(stop), facts_(options.endpoints.size()), arrivals_(options.seed) {}
ServeBench::~ServeBench() = default;

void ServeBench::count_traffic(size_t index, const StreamResult& result) {
  if (!result.error.kind.empty()) return;
  ServeTraffic* traffic = &facts_[index].traffic;
  ++traffic->num_requests;
  traffic->num_prompt += std::max<int64_t>(0, result.usage.num_prompt);
  traffic->num_completion += std::max<int64_t>(0, result.usage.num_completion);
  if (result.content_s.empty()) return;
  traffic->ttft_s += result.content_s.front() - result.start_s;
  traffic->gaps_s += result.content_s.back() - result.content_s.front();
  traffic->first_response_s += result.first_response_s - result.start_s;
}

// One endpoint: all at once. Several: small blocks, since a verdict needs many turns. Contexts that
// are loaded before must fit into the endpoint's cache.
int32_t ServeBench::block_size(const ServeTest& test) const {
  const int32_t all = options_.num_requests;
  if (options_.block > 0) return std::min(options_.block, all);
  const bool loads_context = options_.keeps_prefix_cache && test.depth > 0;
  if (facts_.size() == 1 && !loads_context) return all;
  return std::min(all, std::max({1, test.concurrency, all / kTurns}));
}

Status ServeBench::start(const ServeTest& test, Block* block) {
  const size_t index = block->index;
  std::string body;
  if (block->bodies.empty()) {
    auto text = prompts_[index].make(test.n_prompt, test.depth);
    if (!text) return fail(text.error());
    body = body_of(index, *text, test.n_gen, true);
  } else {
    body = std::move(block->bodies.front());
    block->bodies.pop_front();
  }
  ++block->num_running;
  ++block->num_begun;
  return client_->start(next_number_++, {.endpoint = &options_.endpoints[index],
                                         .path = path(),
                                         .body = std::move(body),
                                         .num_tokens = test.n_gen});
}

void ServeBench::absorb(const Block& block, const StreamResult& result, ServeFigures* figures) {
  RequestError error = result.error;
  if (error.kind.empty() && result.content_s.empty()) {
    // One token of an unmeasured request may have no text.
    if (!block.is_measured) return;
    error = {"no_content", "the answer has no text"};
    if (result.finish_reason == "stop" && !options_.ignores_eos)
      error.message += ": the model ended it at once (--ignore-eos asks for full length)";
  }
  if (error.kind.empty()) {
    if (std::string fault = usage_fault(result, block.num_asked); !fault.empty())
      error = {"usage", std::move(fault)};
  }
  if (!error.kind.empty()) {
    ++figures->errors[error.kind];
    figures->first_message.emplace(error.kind, error.message);
    return;
  }
  if (result.usage.num_prompt >= 0 && result.usage.num_prompt != block.num_prompt_asked)
    ++figures->num_disagreements;
  figures->requests.push_back(figures_of(result, block.num_prompt_asked,
                                         block.loads_context ? block.n_prompt : 0,
                                         facts_[block.index].latency_s));
}

// Runs the requests of a block: a closed loop of so many at once, or Poisson arrivals.
Status ServeBench::run_block(const ServeTest& test, Block* block, Outcome* outcome) {
  ServeFigures* figures = &outcome->figures[block->index];
  const size_t num_before = figures->requests.size();
  const int64_t num_errors_before = figures->num_errors();
  std::exponential_distribution<double> interval(std::max(test.rate, 1e-9));
  block->begin_s = block->next_arrival_s = client_->now_s();
  std::vector<std::pair<int64_t, StreamResult>> ended;
  for (;;) {
    const double now = client_->now_s();
    const bool ends = stop_.load() || figures->num_errors() >= options_.max_errors;
    const bool is_begun = ends || block->is_begun(now);
    if (is_begun && block->num_running == 0) break;
    const bool has_place = test.concurrency == 0 || block->num_running < test.concurrency;
    const double due_s = test.concurrency == 0 ? block->next_arrival_s : block->hold_until_s;
    if (!is_begun && has_place && now >= due_s) {
      if (test.concurrency == 0) block->next_arrival_s += interval(arrivals_);
      if (auto status = start(test, block); !status) return status;
      continue;
    }
    double wait_s = !is_begun && has_place ? due_s - now : 1.0;
    if (!is_begun && block->num_requests == 0)
      wait_s = std::min(wait_s, block->begin_s + block->duration_s - now);
    ended.clear();
    if (auto status = client_->wait(wait_s, &ended); !status) return status;
    for (const auto& [number, result] : ended) {
      --block->num_running;
      count_traffic(block->index, result);
      absorb(*block, result, figures);
      if (result.retry_after_s > 0) {
        block->hold_until_s = client_->now_s() + std::min(result.retry_after_s, kMostRetryAfterS);
        block->next_arrival_s = std::max(block->next_arrival_s, block->hold_until_s);
      }
    }
  }
  // What failed late took time of the others too, and where requests come by a rate, the time in
  // which none came is part of the test.
  double end_s = block->begin_s;
  if (test.concurrency == 0 && block->num_requests == 0)
    end_s = std::min(client_->now_s(), block->begin_s + block->duration_s);
  if (figures->num_errors() > num_errors_before) end_s = client_->now_s();
  finish_block(*block, num_before, end_s, figures);
  return {};
}

// A block that took at least until `end_s`.
void ServeBench::finish_block(const Block& block, size_t num_before, double end_s,
                              ServeFigures* figures) const {
  double num_output = 0;
  for (size_t i = num_before; i < figures->requests.size(); ++i) {
    end_s = std::max(end_s, figures->requests[i].end_s);
    num_output += static_cast<double>(figures->requests[i].num_output);
  }
  if (end_s <= block.begin_s) return;
  figures->busy_s += end_s - block.begin_s;
  figures->block_begins.push_back(num_before);
  figures->block_tok_s.push_back(num_output / (end_s - block.begin_s));
}

// Requests that are not measured. Their errors count: what comes after them would fail too.
Status ServeBench::run_unmeasured(const ServeTest& test, Block* block, Outcome* outcome) {
  if (block->num_requests == 0) return {};
  block->is_measured = false;
  Outcome unmeasured{.figures = std::vector<ServeFigures>(facts_.size())};
  ServeTest closed = test;
  closed.concurrency = std::max(1, test.concurrency);
  if (auto status = run_block(closed, block, &unmeasured); !status) return status;
  const ServeFigures& found = unmeasured.figures[block->index];
  ServeFigures* figures = &outcome->figures[block->index];
  for (const auto& [kind, count] : found.errors) figures->errors[kind] += count;
  figures->first_message.insert(found.first_message.begin(), found.first_message.end());
  return {};
}

// The texts of a block, before its clock runs. For a duration their number is not known.
Status ServeBench::make_texts(const ServeTest& test, Block* block) {
  for (int32_t i = 0; i < block->num_requests; ++i) {
    auto text = prompts_[block->index].make(test.n_prompt, test.depth);
    if (!text) return fail(text.error());
    block->bodies.push_back(body_of(block->index, *text, test.n_gen, true));
    if (block->loads_context) block->contexts.push_back(context_of(std::move(*text)));
  }
  return {};
}

// The contexts of a block's requests, unmeasured, so that the endpoint's prefix cache has them.
Status ServeBench::load_contexts(const ServeTest& test, Block* block, Outcome* outcome) {
  Block loads{.index = block->index, .num_requests = block->num_requests, .num_asked = 1};
  for (const PromptText& text : block->contexts)
    loads.bodies.push_back(body_of(block->index, text, 1, true));
  ServeTest closed = test;
  closed.concurrency = std::max(1, test.concurrency);
  closed.n_gen = 1;
  return run_unmeasured(closed, &loads, outcome);
}

ServeBench::Block ServeBench::next_block(size_t index, const ServeTest& test, int32_t turn) const {
  Block block{.index = index,
              .num_asked = test.n_gen,
              .n_prompt = test.n_prompt,
              .num_prompt_asked = test.n_prompt + test.depth,
              .loads_context = options_.keeps_prefix_cache && test.depth > 0};
  if (options_.duration_s > 0) {
    block.duration_s = options_.duration_s / num_turns(test);
  } else {
    block.num_requests =
        std::min(block_size(test), options_.num_requests - turn * block_size(test));
  }
  return block;
}

int32_t ServeBench::num_turns(const ServeTest& test) const {
  if (options_.duration_s > 0) return facts_.size() > 1 ? kTurns : 1;
  return ceil_div(options_.num_requests, block_size(test));
}

bool ServeBench::is_over(Outcome* outcome) const {
  for (const ServeFigures& figures : outcome->figures) {
    if (figures.num_errors() >= options_.max_errors)
      outcome->stopped = fmt::format("{} requests failed (--max-errors)", figures.num_errors());
  }
  if (stop_.load()) outcome->stopped = "interrupted";
  return !outcome->stopped.empty();
}

Result<ServeBench::Outcome> ServeBench::run(const ServeTest& test) {
  Outcome outcome{.figures = std::vector<ServeFigures>(facts_.size())};
  for (size_t i = 0; i < facts_.size(); ++i) {
    Block block{.index = i,
                .num_requests = options_.num_warm_ups,
                .num_asked = test.n_gen,
                .n_prompt = test.n_prompt,
                .num_prompt_asked = test.n_prompt + test.depth};
    if (auto status = run_unmeasured(test, &block, &outcome); !status) return fail(status.error());
  }
  const double cpu_before = cpu_seconds(), wall_before = client_->now_s();
  for (int32_t turn = 0; turn < num_turns(test) && !is_over(&outcome); ++turn) {
    for (size_t place = 0; place < facts_.size() && !is_over(&outcome); ++place) {
      // A B, then B A, and so on.
      Block block = next_block(turn % 2 == 0 ? place : facts_.size() - 1 - place, test, turn);
      auto status = make_texts(test, &block);
      if (status && block.loads_context) status = load_contexts(test, &block, &outcome);
      if (status) status = run_block(test, &block, &outcome);
      if (!status) return fail(status.error());
    }
  }
  outcome.client_cpu_s = cpu_seconds() - cpu_before;
  outcome.wall_s = client_->now_s() - wall_before;
  (void)is_over(&outcome);
  return outcome;
}

}  // namespace moxie
