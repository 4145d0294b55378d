// The levels against a running server, over HTTP: what can be seen from outside. What cannot is
// omitted by name.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/shown_address.h"
#include "lab/serve_bench_report.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

std::atomic<bool> g_never{false};  // nothing ends these requests early

// One question after another to the endpoint of the options.
class Questioner {
 public:
  static Result<Questioner> make(const ValidateOptions& options) {
    auto endpoint = parse_endpoint(options.url, options.api_key);
    if (!endpoint) return fail(std::move(endpoint.error()));
    auto client = ServeClient::make({.stall_s = options.seams.patience_s}, g_never);
    if (!client) return fail(std::move(client.error()));
    return Questioner(std::move(*endpoint), std::move(*client));
  }

  const Endpoint& endpoint() const { return endpoint_; }
  /// A JSON document; `body` null: GET.
  Result<Json> ask(const std::string& url, const Json& body = {}) {
    const auto answer = client_->ask(endpoint_, url, body.is_null() ? "" : body.dump());
    if (!answer.error.kind.empty()) return fail(answer.error.message, url);
    if (answer.status != 200)
      return fail(fmt::format("status {}: {}", answer.status, error_text(answer.body)), url);
    Json json = Json::parse(answer.body, nullptr, false);
    if (!json.is_object()) return fail("is no JSON object: " + error_text(answer.body), url);
    return json;
  }

  Result<Json> model() {
    const std::string url = endpoint_.base + "/models";
    const auto models = ask(url);
    if (!models) return fail(models.error());
    Json first = models->value(Json::json_pointer("/data/0"), Json());
    if (!first.is_object() || !first.contains("id") || !first["id"].is_string())
      return fail("lists no model", url);
    return first;
  }

  /// Launches by step and name, of a server of this program.
  Result<RowLaunches> kernels() {
    const std::string url = endpoint_.root + "/debug/kernels";
    const auto answer = ask(url);
    if (!answer) return fail(answer.error());
    RowLaunches rows;
    const Json list = answer->value("kernels", Json());
    for (const Json& row : list) {
      const bool is_row = row.is_object() && row.contains("step") && row["step"].is_string() &&
                          row.contains("name") && row["name"].is_string() &&
                          row.contains("launches") && row["launches"].is_number_unsigned();
      if (!is_row) return fail("/kernels holds no step, name and launches", url);
      rows[{row["step"].get<std::string>(), row["name"].get<std::string>()}] +=
          row["launches"].get<uint64_t>();
    }
    return rows;
  }

 private:
  Questioner(Endpoint endpoint, std::unique_ptr<ServeClient> client)
      : endpoint_(std::move(endpoint)), client_(std::move(client)) {}
  Endpoint endpoint_;
  std::unique_ptr<ServeClient> client_;
};

// Rows with more launches than before.
RowLaunches risen(const RowLaunches& before, const RowLaunches& now) {
  RowLaunches rows;
  for (const auto& [key, launches] : now) {
    const auto known = before.find(key);
    const uint64_t was = known == before.end() ? 0 : known->second;
    if (launches > was) rows[key] = launches - was;
  }
  return rows;
}

Json question(const std::string& model, uint64_t seed, double temperature) {
  return {{"model", model},
          {"messages", Json::array({{{"role", "user"}, {"content", "What is 12 + 30?"}}})},
          {"max_tokens", 48},
          {"temperature", temperature},
          {"seed", seed},
          {"logprobs", true}};
}

// All that an answer's message says.
std::string text_of(const Json& answer) {
  const Json message = answer.value(Json::json_pointer("/choices/0/message"), Json());
  std::string text;
  for (const char* key : {"reasoning_content", "reasoning", "content"})
    if (message.is_object() && message.contains(key) && message[key].is_string())
      text += message[key].get<std::string>();
  return text;
}

Result<std::string> answer_text(Questioner& server, uint64_t seed, double temperature,
                                Json* whole = nullptr) {
  const auto model = server.model();
  if (!model) return fail(model.error());
  auto answer = server.ask(server.endpoint().base + "/chat/completions",
                           question((*model)["id"].get<std::string>(), seed, temperature));
  if (!answer) return fail(std::move(answer.error()));
  std::string text = text_of(*answer);
  if (whole != nullptr) *whole = std::move(*answer);
  return text;
}

// Prompts of a server that nobody has sent to it before.
uint64_t another_seed() {
  return (uint64_t{std::random_device{}()} << 20) ^ std::random_device{}();
}

struct Streams {
  ServeFigures figures;
  int64_t num_template_tokens = 0;  // of every prompt, which a prefix cache may find
};

// Streamed requests of one size; adds a check that none failed.
Result<Streams> run_streams(Validation& run, const ServeTest& test, int32_t num_requests) {
  auto endpoint = parse_endpoint(run.options().url, run.options().api_key);
  if (!endpoint) return fail(std::move(endpoint.error()));
  ServeOptions options{
      .endpoints = {std::move(*endpoint)},
      .num_requests = num_requests,
      .max_errors = 1,
      .ignores_eos = true,
      .seed = another_seed(),
      .limits = {.stall_s = run.seams().patience_s, .total_s = 4 * run.seams().patience_s}};
  auto bench = ServeBench::prepare(options, g_never);
  if (!bench) return fail(std::move(bench.error()));
  auto outcome = (*bench)->run(test);
  if (!outcome) return fail(std::move(outcome.error()));
  ServeFigures figures = std::move(outcome->figures.front());
  std::string fault = outcome->stopped;
  for (const auto& [kind, message] : figures.first_message)
    fault = fmt::format("{}: {}", kind, message);
  const auto answered = static_cast<int32_t>(figures.requests.size());
  run.check(fmt::format("{} requests, {}", num_requests, test.name()),
            figures.num_errors() == 0 && answered == num_requests,
            fault.empty() ? fmt::format("{} answered", answered) : fault, "all answered");
  return Streams{std::move(figures), (*bench)->endpoints().front().num_template_tokens};
}

}  // namespace

Status run_smoke_by_url(Validation& run) {
  auto server = Questioner::make(run.options());
  if (!server) return fail(std::move(server.error()));
  const auto model = server->model();
  if (!model) return fail(model.error());
  run.report().conditions.model = (*model)["id"].get<std::string>();
  run.report().conditions.url = shown_address(run.options().url);
  run.report().conditions.max_model_len = static_cast<int32_t>(
      std::clamp<int64_t>(model->contains("max_model_len") && (*model)["max_model_len"].is_number()
                              ? (*model)["max_model_len"].get<int64_t>()
                              : 0,
                          0, INT32_MAX));
  run.report().weights.model = run.report().conditions.model;
  run.check("lists a model", true, run.report().conditions.model, "one at least");
  const auto text = answer_text(*server, 0, 0);
  if (!text) return fail(text.error());
  run.check("answers a conversation", !text->empty(), fmt::format("{} bytes of text", text->size()),
            "some text");
  return {};
}

Status run_path_by_url(Validation& run) {
  auto server = Questioner::make(run.options());
  if (!server) return fail(std::move(server.error()));
  const auto before = server->kernels();
  if (!before) {
    run.report().invalid_because.push_back("level 1.5: " + before.error().message());
    return fail(before.error());
  }
  if (auto text = answer_text(*server, 0, 0); !text) return fail(text.error());
  const auto after = server->kernels();
  if (!after) return fail(after.error());
  const RowLaunches rows = risen(*before, *after);
  for (const auto& [key, launches] : rows)
    run.report().kernel_path.push_back({key.first, key.second, launches});
  check_steps(run, rows);
  check_named_rows(run, rows);
  run.omit("rows that ran are those planned", "the sizes of a server's launches are not told");
  return {};
}

Status run_correctness_by_url(Validation& run) {
  auto server = Questioner::make(run.options());
  if (!server) return fail(std::move(server.error()));
  for (const auto& [name, seed, temperature] :
       {std::tuple("same text, greedy, asked again", uint64_t{0}, 0.0),
        std::tuple("same text, from a seed, asked again", uint64_t{7}, 1.0)}) {
    Json whole;
    const auto first = answer_text(*server, seed, temperature, &whole);
    const auto again = answer_text(*server, seed, temperature);
    if (!first) return fail(first.error());
    if (!again) return fail(again.error());
    run.check(name, *first == *again,
              *first == *again ? fmt::format("{} bytes", first->size()) : "the texts differ",
              "equal texts");
    const Json tokens = whole.value(Json::json_pointer("/choices/0/logprobs/content"), Json());
    size_t num_bad = 0;
    for (const Json& token : tokens) {
      const bool is_fine = token.is_object() && token.contains("logprob") &&
                           token["logprob"].is_number() &&
                           std::isfinite(token["logprob"].get<double>());
      num_bad += is_fine ? 0 : 1;
    }
    run.check(fmt::format("finite log-probabilities, temperature {}", temperature),
              tokens.is_array() && !tokens.empty() && num_bad == 0,
              fmt::format("{} of {} tokens without", num_bad, tokens.size()), "none");
  }
  run.omit("KL and perplexity against the reference", "the model is not in this process");
  return {};
}

Status run_stress_by_url(Validation& run) {
  const bool is_quick = run.options().quick;
  constexpr int32_t kPrompt = 128, kTokens = 8;
  const std::pair<int32_t, int32_t> rounds[] = {
      {1, is_quick ? 40 : 100}, {2, is_quick ? 12 : 40}, {kValidateStreams, is_quick ? 12 : 40}};
  for (const auto& [concurrency, count] : rounds) {
    const auto ran = run_streams(
        run, {.n_prompt = kPrompt, .n_gen = kTokens, .concurrency = concurrency}, count);
    if (!ran) return fail(ran.error());
  }
  const int32_t longest = run.report().conditions.max_model_len - 2 * kTokens;
  if (longest < kLongContext) {
    run.omit(fmt::format("a context of {} tokens", kLongContext),
             longest > 0 ? fmt::format("the server's longest is {}", longest)
                         : "the server does not tell its longest");
  }
  if (const int32_t length = std::min(longest, is_quick ? 2048 : kLongContext); length > kPrompt) {
    const auto ran = run_streams(run, {.n_prompt = length, .n_gen = kTokens}, 1);
    if (!ran) return fail(ran.error());
  }
  run.omit("growth of memory", "not told from outside");
  return {};
}

Status run_benchmark_by_url(Validation& run) {
  auto server = Questioner::make(run.options());
  if (!server) return fail(std::move(server.error()));
  const auto before = server->kernels();
  if (!before) return fail(before.error());
  const bool is_quick = run.options().quick;
  const int32_t context = run.report().conditions.max_model_len;
  int64_t num_cached = 0, of_templates = 0;
  for (const int32_t depth : {0, 2048, 8192}) {
    for (const int32_t n_prompt : {512, 2048, 8192}) {
      for (const int32_t concurrency : {1, kValidateStreams}) {
        const ServeTest test{
            .n_prompt = n_prompt, .n_gen = 32, .depth = depth, .concurrency = concurrency};
        if (n_prompt + depth + 64 > context) {
          run.omit(test.name(), fmt::format("the server's context has {} tokens", context));
          continue;
        }
        if (is_quick && (depth > 0 || n_prompt > 512)) {
          run.omit(test.name(), "--quick");
          continue;
        }
        const auto ran = run_streams(run, test, is_quick ? 4 : 8);
        if (!ran) return fail(ran.error());
        num_cached += ran->figures.num_cached();
        of_templates +=
            ran->num_template_tokens * static_cast<int64_t>(ran->figures.requests.size());
        for (const ServeSeries& series : ran->figures.series()) {
          if (series.samples.empty()) continue;
          run.figure({.name = fmt::format("{} {}", test.name(), series.name),
                      .unit = series.unit,
                      .samples = series.samples,
                      .better = series.lower_is_better ? Better::kLower : Better::kHigher});
        }
      }
    }
  }
  run.check({.name = "prompts were computed",
             .passed = num_cached <= of_templates,
             .value = fmt::format("{} tokens found in the prefix cache", num_cached),
             .bar = fmt::format("at most the {} of the template: the rest of every prompt is new",
                                of_templates),
             .number = static_cast<double>(num_cached)});
  const auto after = server->kernels();
  if (!after) return fail(after.error());
  check_steps(run, risen(*before, *after));
  check_named_rows(run, risen(*before, *after));
  return {};
}

}  // namespace moxie
