#include "apps/eval_print.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

std::string percent(double share) { return fmt::format("{:.1f}%", 100 * share); }
std::string percent(const Interval& interval) {
  return fmt::format("{:.1f} to {:.1f}%", 100 * interval.low, 100 * interval.high);
}

Json to_json(const SwitchReport& report, const PredictionLoss& base) {
  const Interval interval = paired_difference_interval(report.pairs);
  Json results = Json::array();
  for (const EvalCounts& counts : report.counts) results.push_back(to_json(counts));
  return {{"switch", report.text},
          {"accuracy_change", paired_difference(report.pairs)},
          {"accuracy_change_interval_95", {interval.low, interval.high}},
          {"newly_right", report.pairs.only_b},
          {"newly_wrong", report.pairs.only_a},
          {"mcnemar_p", mcnemar_p(report.pairs)},
          {"perplexity", report.loss.perplexity()},
          {"perplexity_change", report.loss.perplexity() - base.perplexity()},
          {"mean_kl", report.loss.mean_kl()},
          {"best_token_equal", report.loss.agreement()},
          {"results", std::move(results)}};
}

void print_switches(const EvalReport& report) {
  fmt::print("\nperplexity {:.5f} on {} predictions of the model's own answers\n\n",
             report.loss->perplexity(), report.loss->count);
  fmt::print(
      "| {:<28} | {:>8} | {:>18} | {:>11} | {:>9} | {:>10} | {:>8} |\n"
      "|{:-<30}|{:->10}|{:->20}|{:->13}|{:->11}|{:->12}|{:->10}|\n",
      "switches", "accuracy", "change, 95%", "right/wrong", "McNemar p", "perplexity", "mean KL",
      "", ":", ":", ":", ":", ":", ":");
  for (const SwitchReport& one : report.switches) {
    const Interval interval = paired_difference_interval(one.pairs);
    int64_t right = 0;
    for (const EvalSample& sample : report.samples)
      right += sample.judgement.verdict == EvalVerdict::kRight;
    right += one.pairs.only_b - one.pairs.only_a;
    fmt::print("| {:<28} | {:>8} | {:>18} | {:>11} | {:>9.3f} | {:>+10.5f} | {:>8.1e} |\n",
               one.text, percent(static_cast<double>(right) / static_cast<double>(one.pairs.total)),
               fmt::format("{:+.1f} to {:+.1f}%", 100 * interval.low, 100 * interval.high),
               fmt::format("+{} -{}", one.pairs.only_b, one.pairs.only_a), mcnemar_p(one.pairs),
               one.loss.perplexity() - report.loss->perplexity(), one.loss.mean_kl());
  }
}

}  // namespace

Json to_json(const EvalReport& report) {
  Json results = Json::array(), kernels = Json::array(), switches = Json::array();
  for (const EvalCounts& counts : report.counts) results.push_back(to_json(counts));
  for (const KernelLaunches& one : report.kernel_path)
    kernels.push_back({{"step", one.step}, {"name", one.name}, {"launches", one.launches}});
  for (const SwitchReport& one : report.switches) switches.push_back(to_json(one, *report.loss));
  Json json = {{"model", report.model},
               {"device", report.device.empty() ? Json() : Json(report.device)},
               {"url", report.url.empty() ? Json() : Json(report.url)},
               {"efforts", report.efforts},
               {"sampling", report.sampling},
               {"seconds", report.seconds},
               {"results", std::move(results)},
               {"kernel_path", std::move(kernels)}};
  if (report.loss) {
    json["perplexity"] = report.loss->perplexity();
    json["switches"] = std::move(switches);
  }
  return json;
}

void print(const EvalReport& report) {
  fmt::print("{}{}: {} questions at {} effort{}, {}\n\n", report.model,
             report.url.empty() ? " on " + report.device : " at " + report.url,
             report.samples.size() / report.efforts.size(), fmt::join(report.efforts, ", "),
             report.efforts.size() == 1 ? "" : "s", report.sampling);
  fmt::print(
      "| {:<28} | {:<6} | {:>11} | {:>8} | {:>16} | {:>7} | {:>10} | {:>12} |\n"
      "|{:-<30}|{:-<8}|{:->13}|{:->10}|{:->18}|{:->9}|{:->12}|{:->14}|\n",
      "task", "effort", "right", "accuracy", "95% interval", "invalid", "tokens in", "tokens out",
      "", "", ":", ":", ":", ":", ":", ":");
  for (const EvalCounts& counts : report.counts) {
    fmt::print("| {:<28} | {:<6} | {:>11} | {:>8} | {:>16} | {:>7} | {:>10} | {:>12} |\n",
               counts.task.empty() ? "all" : counts.task, counts.effort,
               fmt::format("{} of {}", counts.right, counts.total), percent(counts.accuracy()),
               percent(counts.interval()), counts.invalid, counts.prompt_tokens,
               counts.completion_tokens);
  }
  if (report.loss) print_switches(report);
}

}  // namespace moxie
