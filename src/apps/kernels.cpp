// moxie kernels: the tables of rows, and the rows that this machine would choose for a model.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/output.h"
#include "apps/shown_device.h"
#include "apps/shown_tuning.h"
#include "core/clock.h"
#include "engine/plan.h"
#include "kernels/gemm/tile_model.h"
#include "model/gpt_oss.h"
#include "model/loader.h"
#include "model/shard.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct KernelsFlags {
  EngineOptions engine;
  int32_t tokens = 1;
  std::vector<int32_t> of_plans = {1, 8, 2048};
  bool json = false, markdown = false, plan = false;
};

const char* device_word(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

// Writes docs/kernels.md: only facts of the tables, nothing about this machine.
void print_markdown() {
  fmt::print(
      "# Kernels\n\nWritten by `moxie kernels --markdown`; the tables in src/kernels are "
      "the source.\n\n*Invariant*: a token's result does not depend on the batch "
      "(`--batch-invariant on`).\n\n"
      "| step | row | device | needs | supports | limits | invariant | ran on |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const RowInfo& row : all_rows()) {
    fmt::print("| {} | `{}` | {} | {} | {} | {} | {} | {} |\n", row.op().name, row.name,
               device_word(row.device), feature_names(row.needs), row.supports, row.limits,
               row.is_batch_invariant ? "yes" : "no", row.ran_on);
  }
}

void print_table(const std::vector<Verdict>& verdicts, const ShownDevice& device) {
  fmt::print("{}: {}\n\n", device.name.empty() ? "this machine" : device.name,
             feature_names(device.features));
  std::string step;
  for (const Verdict& v : verdicts) {
    if (step != v.row.op().name) {
      step = v.row.op().name;
      fmt::print("{}\n", step);
    }
    fmt::print("  {} {:<40} needs {:<14} {}\n", v.chosen ? "*" : " ", v.row.name,
               feature_names(v.row.needs), v.reason);
    fmt::print("    {:<40} {}; {}; ran on: {}\n", "", v.row.supports, v.row.limits, v.row.ran_on);
  }
}

Json forms_json(const PlannedRow& row, bool reads) {
  Json list = Json::object();
  for (const auto& [value, form] : forms_at(row, reads)) list[value] = form;
  return list;
}

// A row of a plan, and the number of layers that it runs in (0: before or after the layers).
struct ShownRow {
  const PlannedRow* row;
  std::string of_layers;
  int64_t num_layers;
};

std::vector<ShownRow> shown_rows(const PassPlan& plan, const GptOssConfig& config) {
  std::vector<ShownRow> shown = {{&plan.embed, "", 0}};
  for (size_t c = 0; c < plan.chains.size(); ++c) {
    const auto& chains = plan.chain_of_layer;
    const auto first = std::find(chains.begin(), chains.end(), c) - chains.begin();
    const char* kind = config.is_window[static_cast<size_t>(first)] ? "window" : "full";
    const auto count = std::count(chains.begin(), chains.end(), c);
    for (const PlannedRow& row : plan.chains[c]) shown.push_back({&row, kind, count});
  }
  shown.push_back({&plan.unembed, "", 0});
  for (const PlannedRow& row : plan.behind) shown.push_back({&row, "", 0});
  return shown;
}

// The time of the cheapest plan without a row; nothing if there is no such plan.
std::optional<double> us_without(const PlannedRow& row, int32_t tokens, const GptOss& model,
                                 const KernelChooser& kernels, DType kv_dtype) {
  KernelChoice choice = kernels.choice();
  choice.exclude(row.row.name);
  KernelChooser others(kernels.device(), kernels.features(), choice, kernels.rates());
  const GptOss without(model.config(), model.weights(), {}, others);
  const auto plan = without.plan_for(bracket_of(tokens, 1, 1), kv_dtype);
  return plan && (*plan)->predicted_us < kNeverUs ? std::optional((*plan)->predicted_us)
                                                  : std::nullopt;
}

// The chains of rows for launches of one sequence, and the cost of each chain without each row.
int print_plans(const KernelsFlags& o, const GptOss& model, const KernelChooser& kernels,
                DType kv_dtype, const TuningUse& tuning, const SelfTestUse& self_test) {
  Json plans = Json::array();
  if (!o.json) fmt::print("tuning: {}\nself-test: {}\n\n", tuning.text(), self_test.text());
  for (const int32_t tokens : o.of_plans) {
    const auto start = Clock::now();
    const auto plan = model.plan_for(bracket_of(tokens, 1, 1), kv_dtype);
    const double plan_ms = 1e3 * std::chrono::duration<double>(Clock::now() - start).count();
    if (!plan) return report(plan.error());
    Json rows = Json::array();
    if (!o.json)
      fmt::print("{} token{}: {:.0f} us predicted, planned in {:.2f} ms{}\n", tokens,
                 tokens == 1 ? "" : "s", (*plan)->predicted_us, plan_ms,
                 (*plan)->is_tuned ? ", by measured times" : "");
    std::string shown_layers;
    for (const ShownRow& shown : shown_rows(**plan, model.config())) {
      const PlannedRow& row = *shown.row;
      const auto without = us_without(row, tokens, model, kernels, kv_dtype);
      Json covers = Json::array();
      for (const OpInfo* op : row.row.ops) covers.push_back(op->name);
      Json entry = {{"name", row.row.name},
                    {"covers", covers},
                    {"reads", forms_json(row, true)},
                    {"writes", forms_json(row, false)},
                    {"predicted_us", row.predicted_us},
                    {"limit_us", row.limit_us},
                    {"plan_us_without", without ? Json(*without) : Json()}};
      const std::string tile = row.tile_columns != 0 ? gemm::tile_name(row.tile()) : std::string();
      if (!tile.empty()) entry["tile"] = tile;
      const auto proven = self_test.proven(row.row.name);
      if (proven) entry["proven"] = *proven;
      if (shown.num_layers > 0)
        entry["layers"] = shown.num_layers, entry["attention"] = shown.of_layers;
      if (!o.json) {
        if (shown.of_layers != shown_layers && shown.num_layers > 0)
          fmt::print("  {} layers, {} attention\n", shown.num_layers, shown.of_layers);
        shown_layers = shown.of_layers;
        fmt::print(
            "    {:<44} {:>8.1f} us, limit {:>7.1f}; reads {} writes {}; without it {}{}{}\n",
            row.row.name, row.predicted_us, row.limit_us, entry["reads"].dump(),
            entry["writes"].dump(),
            without ? fmt::format("{:.0f} us", *without) : std::string("no chain"),
            tile.empty() ? tile : "; tile " + tile + " as tuned",
            !proven.has_value() ? ""
            : *proven           ? "; proven on this machine"
                                : "; not proven on this machine");
      }
      rows.push_back(std::move(entry));
    }
    if (!o.json) fmt::print("\n");
    plans.push_back({{"tokens", tokens},
                     {"predicted_us", (*plan)->predicted_us},
                     {"plan_ms", plan_ms},
                     {"tuned", (*plan)->is_tuned},
                     {"rows", rows}});
  }
  if (o.json)
    print_document(Json{{"model", o.engine.model},
                        {"tuning", tuning.text()},
                        {"self_test", self_test.text()},
                        {"plans", plans}});
  return kExitDone;
}

int run(KernelsFlags& o) {
  if (o.markdown) {
    print_markdown();
    return kExitDone;
  }
  auto checkpoint = open_checkpoint(o.engine.model);
  if (!checkpoint) return report(checkpoint.error());
  auto mxfp4 = DenseLayers::parse(o.engine.mxfp4_layers);
  if (!mxfp4) return report(mxfp4.error());
  auto mxfp8 = DenseLayers::parse(o.engine.mxfp8_layers, "--mxfp8-layers");
  if (!mxfp8) return report(mxfp8.error());
  auto device = shown_device(o.engine.device);
  if (!device) return report(device.error());
  if (!device->why_not.empty()) log_warn("the rows of the CPU: " + device->why_not);
  auto choice = kernel_choice(o.engine, device->features);
  if (!choice) return report(choice.error());
  KernelChooser kernels(device->kind, device->features, std::move(*choice),
                        rates_of(device->kind, device->properties));
  auto kv_dtype = choose_kv_dtype(o.engine.kv_dtype, (*checkpoint)->config(), kernels,
                                  o.engine.max_model_len, o.engine.max_num_seqs);
  if (!kv_dtype) return report(kv_dtype.error());
  if (auto ranks = gpus_of_ranks(&o.engine); !ranks) return usage(ranks.error().message());
  LoadOptions load{.mxfp4_layers = *mxfp4, .mxfp8_layers = *mxfp8, .device = device->kind};
  if (auto fine = check_load_options(load, device->kind); !fine) return report(fine.error());
  load.ranks = {.size = o.engine.tensor_parallel,
                .splits_experts = o.engine.expert_parallel,
                .link = link_between(device->kind)};
  const auto config = config_of_rank((*checkpoint)->config(), load.ranks, load.rank);
  if (!config) return report(config.error());
  const ModelWeights layout = (*checkpoint)->layout(load);
  const GptOss model(*config, layout, {}, kernels);
  auto tuning = shown_tuning(o.engine, *device, kernels, *config, layout, *kv_dtype);
  if (!tuning) return report(tuning.error());
  if (tuning->tuning != nullptr) model.set_row_costs(row_costs(tuning->tuning));
  if (o.plan) {
    load.ranks = {};  // the test is of the whole model's rows
    const ModelWeights whole = (*checkpoint)->layout(load);
    auto tested = shown_self_test(o.engine, *device, kernels, (*checkpoint)->config(), whole,
                                  *kv_dtype, *tuning);
    if (!tested) return report(tested.error());
    // As an engine plans: without the rows that failed.
    KernelChooser sound(device->kind, device->features, tested->choice,
                        rates_of(device->kind, device->properties));
    const GptOss planned(*config, layout, {}, sound);
    if (tuning->tuning != nullptr) planned.set_row_costs(row_costs(tuning->tuning));
    return print_plans(o, planned, sound, *kv_dtype, *tuning, tested->use);
  }
  const auto verdicts = model.explain(*kv_dtype, std::max(1, o.tokens));
  if (o.json) {
    Json rows = Json::array();
    for (const Verdict& v : verdicts) {
      rows.push_back({{"step", v.row.op().name},
                      {"name", v.row.name},
                      {"device", device_word(v.row.device)},
                      {"needs", feature_names(v.row.needs)},
                      {"supports", v.row.supports},
                      {"limits", v.row.limits},
                      {"batch_invariant", v.row.is_batch_invariant},
                      {"ran_on", v.row.ran_on},
                      {"chosen", v.chosen},
                      {"reason", v.reason}});
    }
    print_document(Json{{"model", o.engine.model},
                        {"device", device->kind == DeviceKind::kCpu ? "cpu" : device->name},
                        {"features", feature_names(device->features)},
                        {"tokens", o.tokens},
                        {"kernels", rows}});
  } else {
    print_table(verdicts, *device);
  }
  // A forced row that cannot run here is a failure, with its reason.
  if (auto status = model.check_rows(*kv_dtype); !status) return report(status.error());
  return kExitDone;
}

}  // namespace

Command kernels_command() {
  auto o = std::make_shared<KernelsFlags>();
  return {.name = "kernels",
          .summary = "Every implementation of every step, and what this machine would choose",
          .example = "moxie kernels --model synthetic:gpt-oss-20b --kernel experts=reference",
          .declare =
              [o](Flags& flags) {
                declare_model_flags(flags, &o->engine);
                flags.integer("--tokens", &o->tokens, kFromOne, "tokens a launch to choose for");
                flags.toggle(
                    "--plan", &o->plan,
                    "the chains of rows: forms, predicted times, and the best without each");
                flags.integers("-n,--plan-tokens", &o->of_plans, {1, kMostBatchTokens},
                               "with --plan: tokens a launch, of one sequence");
                flags.toggle("--json", &o->json, "print one JSON document");
                flags.toggle("--markdown", &o->markdown, "print docs/kernels.md");
              },
          .run = [o](const Flags&) { return run(*o); }};
}

}  // namespace moxie
