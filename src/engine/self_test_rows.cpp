#include "engine/self_test_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/device_cpu.h"
#include "kernels/row_rounding.h"

namespace moxie {
namespace {

class Rows {
 public:
  Rows(const SelfTestRequest& request, KernelChoice choice)
      : request_(request),
        choice_(std::move(choice)),
        kernels_(request.kernels.device(), request.kernels.features(), choice_,
                 request.kernels.rates()),
        model_(request.config, request.formats, {}, kernels_, request.use_sinks),
        is_cpu_(request.kernels.device() == DeviceKind::kCpu),
        host_(is_cpu_ ? nullptr : make_cpu_device()) {}

  Result<std::vector<RowTested>> run() {
    for (const RowInfo& row : all_rows()) {
      if (row.device != kernels_.device() || !is_tested(row.op())) continue;
      RowTested tested{.row = row};
      if ((row.needs & kernels_.features()) != row.needs)
        tested.not_run = kernels_.missing(row.needs);
      else
        tested.not_run = "refuses the test's launches of this model";
      rows_.push_back(std::move(tested));
    }
    for (const TestSizes sizes : {TestSizes::kNarrow, TestSizes::kWide}) {
      auto test = SelfTest::create({.device = *request_.device,
                                    .features = kernels_.features(),
                                    .choice = choice_,
                                    .config = request_.config,
                                    .formats = request_.formats,
                                    .kv_dtype = request_.kv_dtype,
                                    .use_sinks = request_.use_sinks,
                                    .sizes = sizes,
                                    .max_tokens = kSelfTestGroupTokens},
                                   is_cpu_ ? *request_.device : *host_);
      if (!test) return fail(std::move(test.error()));
      const int32_t many = is_cpu_ ? kSelfTestTokens : kSelfTestCudaTokens;
      for (const SelfTestLaunch& launch :
           {SelfTestLaunch{1, 1}, SelfTestLaunch{5, 1}, SelfTestLaunch{5, 5},
            SelfTestLaunch{many, 1}, SelfTestLaunch{many, many},
            SelfTestLaunch{kSelfTestGroupTokens, 1}}) {
        if (auto done = run_launch(**test, launch); !done) return fail(std::move(done.error()));
      }
      if (sizes != TestSizes::kNarrow) break;
      if (auto done = draw(**test); !done) return fail(std::move(done.error()));
      // Wide sizes are for rows that take no others.
      const auto is_left = [&](const RowTested& row) {
        return row.launches.empty() && (row.row.needs & kernels_.features()) == row.row.needs;
      };
      if (std::ranges::none_of(rows_, is_left)) break;
    }
    return std::move(rows_);
  }

 private:
  static bool is_tested(const OpInfo& op) {
    for (const OpInfo* own :
         {&Op<EmbedParams>::info, &Op<QkvParams>::info, &Op<AttendParams>::info,
          &Op<OutParams>::info, &Op<RouteParams>::info, &Op<ExpertsParams>::info,
          &Op<UnembedParams>::info, &Op<SampleParams>::info})
      if (own == &op) return true;
    return false;
  }
  RowTested* find(const std::string& name) {
    const auto at =
        std::ranges::find_if(rows_, [&](const RowTested& one) { return one.row.name == name; });
    return at == rows_.end() ? nullptr : &*at;
  }

  // A plan in which the row stands wherever it can, beside rows that round as little as can be.
  Result<PassPlan> plan_with(const PlannedRow& row, const Bracket& bracket) const {
    const auto cost = [&](const PlannedRow& other) {
      if (other.entry == row.entry) return other.forms == row.forms ? 0.0 : 0.5;
      const bool shares_step =
          std::ranges::find_first_of(other.row.ops, row.row.ops) != other.row.ops.end();
      return activation_rounding(other.row.name) + 0x1p-10 + (shares_step ? 1e6 : 0);
    };
    return model_.plan_by(bracket, request_.kv_dtype, {.cost = cost});
  }
  static bool has_row(const PassPlan& plan, const void* entry) {
    if (plan.embed.entry == entry || plan.unembed.entry == entry) return true;
    return std::ranges::any_of(plan.chains, [&](const auto& chain) {
      return std::ranges::any_of(chain, [&](const PlannedRow& one) { return one.entry == entry; });
    });
  }

  Status run_launch(SelfTest& test, const SelfTestLaunch& launch) {
    const Bracket bracket = bracket_of(launch.num_tokens, launch.num_seqs, launch.num_seqs);
    std::map<const void*, PlannedRow> candidates;
    for (const size_t kind : kinds_of_layers(request_.config, request_.formats))
      for (PlannedRow& row : model_.candidates(bracket, request_.kv_dtype, kind))
        candidates.try_emplace(row.entry, std::move(row));
    for (RowTested& tested : rows_) {
      const auto at = std::ranges::find_if(
          candidates, [&](const auto& one) { return one.second.row.name == tested.row.name; });
      if (at == candidates.end() ||
          std::ranges::find(tested.launches, launch.text()) != tested.launches.end())
        continue;
      // The largest launches are for rows that ran in no other.
      if (launch.num_tokens == kSelfTestGroupTokens && !tested.launches.empty()) continue;
      const auto plan = plan_with(at->second, bracket);
      if (!plan || !has_row(*plan, at->first)) continue;
      const auto outcome = test.run(*plan, launch);
      if (!outcome) return fail(outcome.error());
      if (!outcome->refusal.empty()) {
        tested.not_run = outcome->refusal;
        continue;
      }
      if (auto done = note(tested, launch.text(), *outcome); !done) return done;
    }
    return {};
  }

  Status note(RowTested& tested, const std::string& launch, const SelfTestOutcome& outcome) {
    if (const auto& fault = outcome.fault; fault) {
      if (fault->breaks_device)
        return fail(fmt::format("{} has broken the device: {}", fault->rows.back(), fault->what),
                    launch, "--kernel forces another row");
      for (const std::string& name : fault->rows)
        if (RowTested* row = find(name); row != nullptr && row->fault.empty())
          row->fault = launch + ": " + fault->what;
    }
    if (const auto share = outcome.shares.find(tested.row.name); share != outcome.shares.end()) {
      tested.launches.push_back(launch);
      tested.not_run.clear();
      tested.share = std::max(tested.share, share->second);
    }
    return {};
  }

  Status draw(SelfTest& test) {
    for (const Row<SampleParams>& row : Op<SampleParams>::rows()) {
      RowTested* const tested = find(row.name);
      if (tested == nullptr || (row.needs & kernels_.features()) != row.needs) continue;
      for (const bool all_plain : {false, true}) {
        const auto outcome = test.draw(row, std::min(request_.config.vocab, 1003), all_plain);
        if (!outcome) return fail(outcome.error());
        const char* const launch = all_plain ? "plain draws" : "draws of all kinds";
        if (!outcome->refusal.empty())
          tested->not_run = outcome->refusal;
        else if (auto done = note(*tested, launch, *outcome); !done)
          return done;
      }
    }
    return {};
  }

  const SelfTestRequest& request_;
  KernelChoice choice_;
  KernelChooser kernels_;
  GptOss model_;
  bool is_cpu_;
  std::unique_ptr<Device> host_;  // of the reference rows, beside a GPU
  std::vector<RowTested> rows_;
};

}  // namespace

Result<std::vector<RowTested>> test_all_rows(const SelfTestRequest& request) {
  KernelChoice choice = request.kernels.choice();
  // Rows that run only if they are asked for are rows, too.
  if ((request.kernels.features() & kInt8Features) != 0) {
    if (auto set = choice.set_activation("int8"); !set) return fail(std::move(set.error()));
  }
  return Rows(request, std::move(choice)).run();
}

}  // namespace moxie
