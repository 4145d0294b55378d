#include "lab/eval.h"

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// One question at one effort.
struct Task {
  const EvalQuestion* question;
  const std::string* effort;
  std::string request, hash;
  std::optional<EvalSample> sample;
};

// What the threads of a run share.
class Run {
 public:
  Run(std::vector<Task>& tasks, const EvalOptions& options, const Ask& ask, EvalSamples* samples,
      const std::atomic<bool>& stop, const OnEvalProgress& on_progress)
      : tasks_(tasks),
        options_(options),
        ask_(ask),
        samples_(samples),
        stop_(stop),
        on_progress_(on_progress) {
    for (const Task& task : tasks_)
      if (task.sample) count(*task.sample);
  }

  Status run() {
    const auto num_threads =
        std::min(tasks_.size(), static_cast<size_t>(std::max(1, options_.concurrency)));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < num_threads; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (failure_) return fail(std::move(*failure_));
    if (num_done_ < tasks_.size())
      return fail(std::to_string(num_done_) + " of " + std::to_string(tasks_.size()) +
                      " questions are answered",
                  "interrupted");
    return {};
  }

 private:
  void work() {
    while (!stop_.load() && !ended_.load()) {
      const size_t i = next_.fetch_add(1);
      if (i >= tasks_.size()) return;
      Task& task = tasks_[i];
      if (task.sample) continue;
      auto reply = ask_(task.request);
      if (stop_.load()) return;  // the reply may be cut
      const std::lock_guard lock(mutex_);
      if (!reply) return end(std::move(reply.error()));
      task.sample = EvalSample{.variant = options_.variant,
                               .effort = *task.effort,
                               .task = task.question->task,
                               .id = task.question->id,
                               .request_hash = task.hash,
                               .reply = std::move(*reply),
                               .judgement = {}};
      task.sample->judgement = judge(*task.question, task.sample->reply);
      if (auto status = samples_->add(*task.sample); !status) return end(std::move(status.error()));
      count(*task.sample);
      if (on_progress_) on_progress_(num_done_, tasks_.size(), num_right_);
    }
  }
  void end(Error error) {
    if (!failure_) failure_ = std::move(error);
    ended_ = true;
  }
  void count(const EvalSample& sample) {
    ++num_done_;
    num_right_ += sample.judgement.verdict == EvalVerdict::kRight;
  }

  std::vector<Task>& tasks_;
  const EvalOptions& options_;
  const Ask& ask_;
  EvalSamples* samples_;
  const std::atomic<bool>& stop_;
  const OnEvalProgress& on_progress_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> ended_{false};
  std::mutex mutex_;  // of all below, and of calls to samples_
  size_t num_done_ = 0, num_right_ = 0;
  std::optional<Error> failure_;
};

void add(const EvalSample& sample, EvalCounts* counts) {
  ++counts->total;
  counts->right += sample.judgement.verdict == EvalVerdict::kRight;
  counts->invalid += sample.judgement.verdict == EvalVerdict::kInvalid;
  counts->prompt_tokens += sample.reply.prompt_tokens;
  counts->completion_tokens += sample.reply.completion_tokens;
}

}  // namespace

std::string eval_request(const EvalOptions& options, const EvalQuestion& question, size_t idx,
                         const std::string& effort) {
  Json body = Json::parse(question.chat, nullptr, false);
  CHECK(body.is_object(), "made when the set was read");
  body["reasoning_effort"] = effort;
  body["temperature"] = options.temperature;
  if (options.temperature > 0) {
    body["top_p"] = options.top_p;
    body["seed"] = options.seed + idx;
  }
  if (options.max_tokens > 0) body["max_tokens"] = options.max_tokens;
  return body.dump();
}

Result<std::vector<EvalSample>> run_eval(const std::vector<EvalQuestion>& questions,
                                         const EvalOptions& options, const Ask& ask,
                                         EvalSamples* samples, const std::atomic<bool>& stop,
                                         const OnEvalProgress& on_progress) {
  std::vector<Task> tasks;
  for (const std::string& effort : options.efforts) {
    for (size_t i = 0; i < questions.size(); ++i) {
      const EvalQuestion& question = questions[i];
      Task task{.question = &question,
                .effort = &effort,
                .request = eval_request(options, question, i, effort),
                .hash = {},
                .sample = {}};
      task.hash = request_hash_of(task.request);
      if (const EvalSample* found =
              samples->find(options.variant, effort, question.task, question.id, task.hash)) {
        task.sample = *found;
        task.sample->judgement = judge(question, found->reply);
      }
      tasks.push_back(std::move(task));
    }
  }
  if (auto status = Run(tasks, options, ask, samples, stop, on_progress).run(); !status)
    return fail(std::move(status.error()));
  std::vector<EvalSample> all;
  for (Task& task : tasks) all.push_back(std::move(*task.sample));
  return all;
}

std::vector<EvalCounts> count_samples(const std::vector<EvalSample>& samples) {
  std::vector<std::string> tasks, efforts;
  const auto keep = [](std::vector<std::string>* names, const std::string& name) {
    if (std::find(names->begin(), names->end(), name) == names->end()) names->push_back(name);
  };
  std::map<std::pair<std::string, std::string>, EvalCounts> found;
  for (const EvalSample& sample : samples) {
    keep(&tasks, sample.task);
    keep(&efforts, sample.effort);
    add(sample, &found[{sample.task, sample.effort}]);
    add(sample, &found[{"", sample.effort}]);
  }
  if (tasks.size() > 1) tasks.emplace_back();  // the sum over all
  std::vector<EvalCounts> list;
  for (const std::string& task : tasks) {
    for (const std::string& effort : efforts) {
      const auto counts = found.find({task, effort});
      if (counts == found.end()) continue;
      list.push_back(counts->second);
      list.back().task = task;
      list.back().effort = effort;
    }
  }
  return list;
}

PairedCounts pair_samples(const std::vector<EvalSample>& a, const std::vector<EvalSample>& b) {
  std::map<std::array<std::string, 3>, bool> right_in_a;
  for (const EvalSample& sample : a)
    right_in_a[{sample.effort, sample.task, sample.id}] =
        sample.judgement.verdict == EvalVerdict::kRight;
  PairedCounts counts;
  for (const EvalSample& sample : b) {
    const auto found = right_in_a.find({sample.effort, sample.task, sample.id});
    if (found == right_in_a.end()) continue;
    const bool is_right = sample.judgement.verdict == EvalVerdict::kRight;
    ++counts.total;
    counts.only_a += found->second && !is_right;
    counts.only_b += !found->second && is_right;
  }
  return counts;
}

Json to_json(const EvalCounts& counts) {
  const Interval interval = counts.interval();
  return {{"task", counts.task.empty() ? Json() : Json(counts.task)},
          {"effort", counts.effort},
          {"questions", counts.total},
          {"right", counts.right},
          {"invalid", counts.invalid},
          {"accuracy", counts.accuracy()},
          {"interval_95", {interval.low, interval.high}},
          {"prompt_tokens", counts.prompt_tokens},
          {"completion_tokens", counts.completion_tokens}};
}

}  // namespace moxie
