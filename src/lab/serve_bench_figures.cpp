#include "lab/serve_bench_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <string_view>

namespace moxie {
namespace {

int64_t num_output_of(const StreamResult& r) {
  if (r.usage.num_completion >= 0) return r.usage.num_completion;
  if (r.num_token_ids >= 0) return r.num_token_ids;
  return static_cast<int64_t>(r.content_s.size());
}

template <typename Get>
int64_t sum_of(const std::vector<RequestFigures>& requests, Get get) {
  return std::accumulate(requests.begin(), requests.end(), int64_t{0},
                         [&](int64_t sum, const RequestFigures& r) { return sum + get(r); });
}

double per_second(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

std::string usage_fault(const StreamResult& r, int64_t num_asked) {
  const auto num_events = static_cast<int64_t>(r.content_s.size());
  const int64_t told = r.usage.num_completion;
  if (r.usage.num_prompt == 0) return "usage tells of a prompt of no tokens";
  if (told < 0) return "";
  if (told > num_asked)
    return fmt::format("usage tells of {} tokens, where at most {} were asked for", told,
                       num_asked);
  if (num_events > told)
    return fmt::format("usage tells of {} tokens, but {} events had text", told, num_events);
  if (r.num_token_ids >= 0 && std::abs(r.num_token_ids - told) > 1)  // the token that ends it
    return fmt::format("usage tells of {} tokens, token_ids of {}", told, r.num_token_ids);
  return "";
}

RequestFigures figures_of(const StreamResult& r, int64_t num_prompt_asked,
                          int64_t num_prompt_counted, double latency_s) {
  CHECK(!r.content_s.empty());
  RequestFigures f{.start_s = r.start_s, .end_s = r.end_s};
  f.num_events = static_cast<int64_t>(r.content_s.size());
  f.num_output = num_output_of(r);
  f.num_prompt = r.usage.num_prompt > 0 ? r.usage.num_prompt : num_prompt_asked;
  f.num_cached = std::max<int64_t>(0, r.usage.num_cached);
  f.ttft_ms = 1e3 * (r.content_s.front() - r.start_s);
  f.e2e_ms = 1e3 * (r.end_s - r.start_s);
  for (size_t i = 1; i < r.content_s.size(); ++i)
    f.itl_ms.push_back(1e3 * (r.content_s[i] - r.content_s[i - 1]));
  const int64_t num_until_last = r.num_last_token_ids > 0 ? r.num_last_token_ids : f.num_output;
  const int64_t num_later = num_until_last - std::max<int64_t>(1, r.num_first_token_ids);
  const double decode_ms = 1e3 * (r.content_s.back() - r.content_s.front());
  if (num_later > 0 && decode_ms > 0) f.tpot_ms = decode_ms / static_cast<double>(num_later);
  f.ttfr_ms = 1e3 * (r.first_response_s - r.start_s);
  const auto counted =
      static_cast<double>(num_prompt_counted > 0 ? num_prompt_counted : f.num_prompt);
  const auto rate_within = [&](double ms) -> std::optional<double> {
    const double prompt_s = ms / 1e3 - latency_s;
    return prompt_s > 0 ? std::optional(counted / prompt_s) : std::nullopt;
  };
  f.pp_tok_s = rate_within(f.ttfr_ms);
  f.pp_ttft_tok_s = rate_within(f.ttft_ms);
  return f;
}

bool Goodput::is_met(const RequestFigures& f) const {
  const auto keeps = [](double value, const std::optional<double>& bar) {
    return !bar || value <= *bar;
  };
  return keeps(f.ttft_ms, ttft_ms) && keeps(f.tpot_ms.value_or(0), tpot_ms) &&
         keeps(f.e2e_ms, e2e_ms);
}

Result<Goodput> parse_goodput(const std::string& text) {
  Goodput goodput;
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const size_t equals = one.find('=');
    const std::string_view name = one.substr(0, equals);
    std::optional<double>* bar = name == "ttft_ms"   ? &goodput.ttft_ms
                                 : name == "tpot_ms" ? &goodput.tpot_ms
                                 : name == "e2e_ms"  ? &goodput.e2e_ms
                                                     : nullptr;
    double value = 0;
    const char* const end = one.data() + one.size();
    const char* const begin = equals == one.npos ? end : one.data() + equals + 1;
    const auto [at, error] = std::from_chars(begin, end, value);
    if (bar == nullptr || error != std::errc() || at != end || !std::isfinite(value) ||
        value <= 0) {
      return fail(fmt::format("'{}' is no bar", one), "--goodput",
                  "such as ttft_ms=500,tpot_ms=50,e2e_ms=10000");
    }
    *bar = value;
  }
  return goodput;
}

int64_t ServeFigures::num_errors() const {
  int64_t count = 0;
  for (const auto& [kind, number] : errors) count += number;
  return count;
}
int64_t ServeFigures::num_output() const {
  return sum_of(requests, [](const RequestFigures& r) { return r.num_output; });
}
int64_t ServeFigures::num_prompt() const {
  return sum_of(requests, [](const RequestFigures& r) { return r.num_prompt; });
}
int64_t ServeFigures::num_cached() const {
  return sum_of(requests, [](const RequestFigures& r) { return r.num_cached; });
}
double ServeFigures::output_tok_s() const {
  return per_second(static_cast<double>(num_output()), busy_s);
}
double ServeFigures::total_tok_s() const {
  return per_second(static_cast<double>(num_output() + num_prompt()), busy_s);
}
double ServeFigures::requests_s() const {
  return per_second(static_cast<double>(requests.size()), busy_s);
}
int64_t ServeFigures::num_good(const Goodput& goodput) const {
  return std::count_if(requests.begin(), requests.end(),
                       [&](const RequestFigures& r) { return goodput.is_met(r); });
}

std::vector<ServeFigures> ServeFigures::by_block() const {
  std::vector<ServeFigures> blocks;
  for (size_t i = 0; i < block_begins.size(); ++i) {
    const size_t end = i + 1 < block_begins.size() ? block_begins[i + 1] : requests.size();
    ServeFigures block{.block_tok_s = {block_tok_s[i]}, .block_begins = {0}};
    block.requests.assign(requests.begin() + static_cast<ptrdiff_t>(block_begins[i]),
                          requests.begin() + static_cast<ptrdiff_t>(end));
    blocks.push_back(std::move(block));
  }
  return blocks;
}

std::vector<ServeSeries> ServeFigures::series() const {
  ServeSeries ttft{"ttft", "ms"}, tpot{"tpot", "ms"}, itl{"itl", "ms"}, e2e{"e2e", "ms"};
  ServeSeries pp{"pp", "tok/s", false}, pp_ttft{"pp_ttft", "tok/s", false};
  ServeSeries tg{"tg", "tok/s", false};
  for (const RequestFigures& r : requests) {
    ttft.samples.push_back(r.ttft_ms);
    e2e.samples.push_back(r.e2e_ms);
    itl.samples.insert(itl.samples.end(), r.itl_ms.begin(), r.itl_ms.end());
    if (r.pp_tok_s) pp.samples.push_back(*r.pp_tok_s);
    if (r.pp_ttft_tok_s) pp_ttft.samples.push_back(*r.pp_ttft_tok_s);
    if (!r.tpot_ms) continue;
    tpot.samples.push_back(*r.tpot_ms);
    tg.samples.push_back(1e3 / *r.tpot_ms);
  }
  ServeSeries output{"output", "tok/s", false, block_tok_s};
  return {std::move(ttft), std::move(tpot),    std::move(itl), std::move(e2e),
          std::move(pp),   std::move(pp_ttft), std::move(tg),  std::move(output)};
}

}  // namespace moxie
