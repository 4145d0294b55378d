// moxie kernels: the table of implementations, and what this machine would choose for a model.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/shown_device.h"
#include "engine/plan.h"
#include "model/loader.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct KernelsFlags {
  EngineOptions engine;
  int32_t tokens = 1;
  bool json = false, markdown = false;
};

const char* device_word(DeviceKind kind) { return kind == DeviceKind::kCpu ? "cpu" : "cuda"; }

// The generated docs/kernels.md: facts of the table alone, nothing of this machine.
void print_markdown() {
  fmt::print(
      "# Kernels\n\nWritten by `moxie kernels --markdown`; the tables in src/kernels are "
      "the source.\n\n| step | row | device | needs | supports | limits | ran on |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const RowInfo& row : all_rows()) {
    fmt::print("| {} | `{}` | {} | {} | {} | {} | {} |\n", step_name(row.step), row.name,
               device_word(row.device), feature_names(row.needs), row.supports, row.limits,
               row.ran_on);
  }
}

void print_table(const std::vector<Verdict>& verdicts, const ShownDevice& device) {
  fmt::print("{}: {}\n\n", device.name.empty() ? "this machine" : device.name,
             feature_names(device.features));
  std::string step;
  for (const Verdict& v : verdicts) {
    if (step != step_name(v.row.step)) {
      step = step_name(v.row.step);
      fmt::print("{}\n", step);
    }
    fmt::print("  {} {:<40} needs {:<14} {}\n", v.chosen ? "*" : " ", v.row.name,
               feature_names(v.row.needs), v.reason);
    fmt::print("    {:<40} {}; {}; ran on: {}\n", "", v.row.supports, v.row.limits, v.row.ran_on);
  }
}

int run(KernelsFlags& o) {
  if (o.markdown) {
    print_markdown();
    return kExitDone;
  }
  KernelChoice choice;
  for (const std::string& assignment : o.engine.kernels) {
    if (auto status = choice.add(assignment); !status) return report(status.error());
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
  KernelChooser kernels(device->kind, device->features, choice);
  auto kv_dtype = choose_kv_dtype(o.engine.kv_dtype, (*checkpoint)->config(), kernels,
                                  o.engine.max_model_len, o.engine.max_num_seqs);
  if (!kv_dtype) return report(kv_dtype.error());
  const LoadOptions load{.mxfp4_layers = *mxfp4, .mxfp8_layers = *mxfp8, .device = device->kind};
  if (auto fine = check_load_options(load, device->kind); !fine) return report(fine.error());
  const ModelWeights layout = (*checkpoint)->layout(load);
  const GptOss model((*checkpoint)->config(), layout, {}, kernels);
  const auto verdicts = model.explain(*kv_dtype, std::max(1, o.tokens));
  if (o.json) {
    Json rows = Json::array();
    for (const Verdict& v : verdicts) {
      rows.push_back({{"step", step_name(v.row.step)},
                      {"name", v.row.name},
                      {"device", device_word(v.row.device)},
                      {"needs", feature_names(v.row.needs)},
                      {"supports", v.row.supports},
                      {"limits", v.row.limits},
                      {"ran_on", v.row.ran_on},
                      {"chosen", v.chosen},
                      {"reason", v.reason}});
    }
    fmt::print("{}\n", Json{{"model", o.engine.model},
                            {"device", device->kind == DeviceKind::kCpu ? "cpu" : device->name},
                            {"features", feature_names(device->features)},
                            {"tokens", o.tokens},
                            {"kernels", rows}}
                           .dump(2));
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
                flags.integer("--tokens", &o->tokens, "tokens a launch to choose for");
                flags.toggle("--json", &o->json, "print one JSON document");
                flags.toggle("--markdown", &o->markdown, "print docs/kernels.md");
              },
          .run = [o](const Flags&) { return run(*o); }};
}

}  // namespace moxie
