// moxie eval: accuracy on sets of questions, through the engine or an endpoint, and what switches
// change in it.
#include "lab/eval.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/changed_switches.h"
#include "apps/cli.h"
#include "apps/eval_endpoint.h"
#include "apps/eval_engine.h"
#include "apps/eval_print.h"
#include "apps/output.h"
#include "apps/prediction_loss.h"
#include "apps/record_flags.h"
#include "apps/stop_signal.h"
#include "core/clock.h"
#include "core/shown_address.h"
#include "lab/record.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// Tokens a launch when texts are scored, too: each has a row of logits.
constexpr int32_t kScoreTokens = 128;
constexpr double kProgressS = 2;

struct EvalFlags {
  EngineOptions engine;
  std::vector<std::string> sets, compared;
  std::string url, api_key, efforts = "low,medium,high", samples, record, tokenizer;
  EvalOptions options{.max_tokens = 2048, .concurrency = 8};
  int32_t timeout_s = 600, limit = 0;
  bool json = false;
};

// Ends an engine's requests when the run is interrupted, so that nobody waits for them.
class StopWatch {
 public:
  explicit StopWatch(EvalEngine& engine)
      : thread_([this, &engine] {
          while (!done_.load()) {
            if (stop_asked().load()) return engine.stop();
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
          }
        }) {}
  ~StopWatch() {
    done_ = true;
    thread_.join();
  }
  StopWatch(const StopWatch&) = delete;
  StopWatch& operator=(const StopWatch&) = delete;

 private:
  std::atomic<bool> done_{false};
  std::thread thread_;
};

Status complete(EvalFlags* o) {
  if (o->sets.empty()) return fail("no set; give a file of questions, one JSON object a line");
  o->options.efforts.clear();
  for (size_t at = 0; at <= o->efforts.size();) {
    const size_t end = std::min(o->efforts.find(',', at), o->efforts.size());
    const std::string name = o->efforts.substr(at, end - at);
    if (!harmony::effort_from_name(name))
      return fail("'" + name + "' is no effort", "--reasoning-effort", "low, medium or high");
    const auto& known = o->options.efforts;
    if (std::find(known.begin(), known.end(), name) != known.end())
      return fail("'" + name + "' is named twice", "--reasoning-effort");
    o->options.efforts.push_back(name);
    at = end + 1;
  }
  if (!o->url.empty() && !o->compared.empty())
    return fail("an endpoint's switches cannot be changed", "--compare-switches",
                "leave out --url");
  for (const std::string& text : o->compared) {
    if (auto options = with_switches(o->engine, text, "--compare-switches"); !options)
      return fail(std::move(options.error()));
  }
  return {};
}

Result<std::vector<EvalQuestion>> read_sets(const EvalFlags& o) {
  std::vector<EvalQuestion> all;
  std::map<std::pair<std::string, std::string>, std::string> set_of;
  for (const std::string& path : o.sets) {
    auto text = read_text(path);
    if (!text) return fail(std::move(text.error()));
    const std::string name = path == "-" ? "stdin" : std::filesystem::path(path).stem().string();
    auto questions = parse_eval_set(*text, path, name);
    if (!questions) return fail(std::move(questions.error()));
    for (EvalQuestion& question : *questions) {
      const auto [known, is_first] = set_of.try_emplace({question.task, question.id}, path);
      if (!is_first)
        return fail(fmt::format("question '{}' of task '{}' is in {} too", question.id,
                                question.task, known->second),
                    path, "give each set once");
      all.push_back(std::move(question));
    }
  }
  if (o.limit == 0) return all;
  std::map<std::string, int32_t> taken;  // of each task
  std::erase_if(all, [&](const EvalQuestion& q) { return ++taken[q.task] > o.limit; });
  return all;
}

// What the answers depend on besides a question: the model and the switches that were given.
std::string origin_of(const EvalFlags& o, const Flags& flags, const std::string& model) {
  constexpr const char* kNotOfAnswers[] = {"--samples",          "--record",  "--json",
                                           "--concurrency",      "--timeout", "--compare-switches",
                                           "--reasoning-effort", "--limit",   "--threads",
                                           "--api-key",          "--model",   "--url"};
  std::string origin =
      o.url.empty() ? "model " + model : "model " + model + " at " + shown_address(o.url);
  for (const auto& setting : flags.settings()) {
    const bool is_left_out = std::find(std::begin(kNotOfAnswers), std::end(kNotOfAnswers),
                                       setting.name) != std::end(kNotOfAnswers);
    if (setting.source != "default" && !is_left_out)
      origin += " " + setting.name + " " + setting.value;
  }
  return origin;
}

OnEvalProgress progress_line(const std::string& variant) {
  return [variant, last = Clock::now()](size_t done, size_t asked, size_t right) mutable {
    if (seconds_since(last) < kProgressS && done < asked) return;
    last = Clock::now();
    log_info(fmt::format("eval{}: {} of {} answered, {:.1f}% right",
                         variant.empty() ? "" : " with " + variant, done, asked,
                         100.0 * static_cast<double>(right) / static_cast<double>(done)));
  };
}

Result<std::vector<EvalSample>> run_engine(EvalEngine& engine,
                                           const std::vector<EvalQuestion>& questions,
                                           const EvalOptions& options, EvalSamples* samples) {
  const StopWatch watch(engine);
  return run_eval(
      questions, options, [&](const std::string& request) { return engine.ask(request); }, samples,
      stop_asked(), progress_line(options.variant));
}

// The unchanged engine and each with its switches, one after another.
Status compare(const EvalFlags& o, const std::vector<EvalQuestion>& questions, EvalSamples* samples,
               std::unique_ptr<EvalEngine> base, EvalReport* out) {
  Engine& engine = base->release_engine();
  auto texts = own_texts(engine, base->tokenizer());
  if (!texts) return fail(std::move(texts.error()));
  if (auto status = check_texts(*texts, engine.config().vocab); !status) return status;
  std::vector<std::vector<float>> logits;
  auto loss = measure_loss(engine, *texts, &logits);
  if (!loss) return fail(std::move(loss.error()));
  out->loss = *loss;
  base.reset();  // its memory is needed
  for (const std::string& text : o.compared) {
    auto options = with_switches(o.engine, text, "--compare-switches");
    if (!options) return fail(std::move(options.error()));
    auto changed = EvalEngine::load(*options, o.tokenizer, o.options.concurrency);
    if (!changed) return fail(std::move(changed.error()));
    EvalOptions of_variant = o.options;
    of_variant.variant = text;
    auto found = run_engine(**changed, questions, of_variant, samples);
    if (!found) return fail(std::move(found.error()));
    auto moved = measure_loss((*changed)->release_engine(), *texts, &logits);
    if (!moved) return fail(std::move(moved.error()));
    out->switches.push_back({.text = text,
                             .pairs = pair_samples(out->samples, *found),
                             .counts = count_samples(*found),
                             .loss = *moved});
  }
  return {};
}

Record record_of(const EvalReport& report, const Flags& flags) {
  Record record{.environment = collect_environment()};
  describe_command("eval", "eval", flags, &record);
  record.weights.model = report.model;
  record.kernel_path = report.kernel_path;
  record.workload.sampling = report.sampling;
  record.memory_peak_bytes = peak_memory_bytes();
  for (const EvalCounts& counts : report.counts) {
    if (counts.task.empty() && report.counts.size() > 1) continue;
    Series series{.name = counts.task + "@" + counts.effort, .unit = kAnswerUnit, .samples = {}};
    for (const EvalSample& sample : report.samples) {
      if (sample.task == counts.task && sample.effort == counts.effort)
        series.samples.push_back(sample.judgement.verdict == EvalVerdict::kRight ? 1 : 0);
    }
    record.results.push_back(std::move(series));
  }
  return record;
}

Status evaluate(EvalFlags& o, const Flags& flags, EvalReport* out) {
  auto questions = read_sets(o);
  if (!questions) return fail(std::move(questions.error()));
  std::unique_ptr<EvalEngine> engine;
  std::unique_ptr<EvalEndpoint> endpoint;
  if (o.url.empty()) {
    if (!o.compared.empty()) {
      o.engine.max_batch_tokens = std::max(kScoreTokens, 2 * o.options.concurrency);
      o.engine.max_logit_rows = o.engine.max_batch_tokens;
    }
    auto loaded = EvalEngine::load(o.engine, o.tokenizer, o.options.concurrency);
    if (!loaded) return fail(std::move(loaded.error()));
    engine = std::move(*loaded);
    out->model = engine->engine().checkpoint().path();
    out->device = engine->engine().device().kind() == DeviceKind::kCuda ? "cuda" : "cpu";
  } else {
    auto opened = EvalEndpoint::open(o.url, flags.given("--model") ? o.engine.model : "", o.api_key,
                                     o.timeout_s, stop_asked());
    if (!opened) return fail(std::move(opened.error()));
    endpoint = std::move(*opened);
    out->model = endpoint->model();
    out->url = shown_address(o.url);
  }
  std::unique_ptr<EvalSamples> samples = std::make_unique<EvalSamples>();
  if (!o.samples.empty()) {
    auto opened = EvalSamples::open(o.samples, origin_of(o, flags, out->model));
    if (!opened) return fail(std::move(opened.error()));
    samples = std::move(*opened);
    if (samples->num_read() > 0)
      log_info(fmt::format("{}: {} answers are there already", o.samples, samples->num_read()));
  }
  const auto start = Clock::now();
  auto found = engine ? run_engine(*engine, *questions, o.options, samples.get())
                      : run_eval(
                            *questions, o.options,
                            [&](const std::string& request) { return endpoint->ask(request); },
                            samples.get(), stop_asked(), progress_line(""));
  if (!found) return fail(std::move(found.error()));
  out->seconds = seconds_since(start);
  out->samples = std::move(*found);
  out->counts = count_samples(out->samples);
  if (engine) {
    for (const auto& count : engine->engine().kernels().counts())
      out->kernel_path.push_back({count.op->name, count.name, count.launches, "",
                                  engine->engine().self_test().proven(count.name)});
  }
  if (o.compared.empty()) return {};
  return compare(o, *questions, samples.get(), std::move(engine), out);
}

int run(EvalFlags& o, const Flags& flags) {
  if (auto status = complete(&o); !status) return usage("eval: " + status.error().message());
  auto keeper = RecordKeeper::open({.record = o.record, .history = {}});
  if (!keeper) return moxie::report(keeper.error());
  o.engine.show_progress = o.engine.show_progress && !o.json;
  stop_at({SIGINT});  // ends the run at once, with the answers so far kept in --samples
  EvalReport found;
  found.efforts = o.options.efforts;
  found.sampling = o.options.temperature > 0
                       ? fmt::format("temperature {:g}, top_p {:g}, seed {}", o.options.temperature,
                                     o.options.top_p, o.options.seed)
                       : "greedy";
  if (auto status = evaluate(o, flags, &found); !status) {
    Error error = std::move(status.error());
    if (error.hint.empty() && !o.samples.empty())
      error.hint = "the same command goes on from the answers in " + o.samples;
    return moxie::report(error);
  }
  if (o.json) {
    print_document(to_json(found));
  } else {
    print(found);
  }
  return keeper->is_asked() ? keep_and_exit(*keeper, record_of(found, flags), kExitDone)
                            : kExitDone;
}

void declare(Flags& flags, EvalFlags* o) {
  flags.positional("SET", &o->sets, "files of questions, one JSON object a line; - reads stdin",
                   false);
  declare_model_flags(flags, &o->engine);
  flags.text("--url", &o->url,
             "ask an endpoint with OpenAI's chat completions instead: http://host:8000; --model "
             "then names one of its models (default: its first)");
  flags.text("--api-key", &o->api_key, "of the endpoint");
  flags.integer("--timeout", &o->timeout_s, {1, 86400}, "seconds for an endpoint's answer");
  flags.text("--tokenizer", &o->tokenizer, "of another model or file than --model's");
  flags.text("--reasoning-effort", &o->efforts, "low, medium, high: some or all, comma-separated");
  flags.integer("--max-tokens", &o->options.max_tokens, kFromZero,
                "of an answer with its reasoning; 0: to the context's end");
  flags.number("--temperature", &o->options.temperature, {0, 2}, "0 is greedy");
  flags.number("--top-p", &o->options.top_p, {0, 1}, "nucleus; 1: off");
  flags.unsigned64("--seed", &o->options.seed, {0, UINT64_MAX >> 1},
                   "of the first question; the next has the next");
  flags.integer("--concurrency", &o->options.concurrency, {1, 1024}, "questions at once");
  flags.integer("--limit", &o->limit, kFromZero, "the first questions of each task; 0: all");
  flags.text("--samples", &o->samples,
             "keep every answer in this file, and go on from the answers that it has");
  flags.texts("--compare-switches", &o->compared,
              "also run with these switches of the model, such as \"--kv-dtype fp8_e4m3\", and "
              "print what they change; repeatable");
  flags.text("--record", &o->record, "write the record of the run to this file");
  flags.toggle("--json", &o->json, "print one JSON document");
}

}  // namespace

Command eval_command() {
  auto o = std::make_shared<EvalFlags>();
  return {.name = "eval",
          .summary = "Accuracy on questions with known answers, and what switches change in it",
          .example =
              "moxie eval models/tiny/eval.jsonl --reasoning-effort low,high --samples "
              "answers.jsonl",
          .declare = [o](Flags& flags) { declare(flags, o.get()); },
          .run = [o](const Flags& flags) { return run(*o, flags); }};
}

}  // namespace moxie
