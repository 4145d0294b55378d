// moxie op: operations outside of a model. `list` and `run`; `make-tree` writes a tree of
// workloads; op_bench.cpp and op_trace.cpp have the rest.
#include "apps/op.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "apps/output.h"
#include "apps/shown_device.h"
#include "kernels/features.h"
#include "lab/moe_fp8_inputs.h"
#include "lab/trace_tree.h"
#include "weights/safetensors_write.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// ---- list ---------------------------------------------------------------------------------------

int list(bool as_json) {
  Json rows = Json::array();
  if (!as_json) fmt::print("{}\n", Op<MoeFp8Params>::info.name);
  for (const auto& row : Op<MoeFp8Params>::rows()) {
    const bool on_cpu = row.device == DeviceKind::kCpu;
    const Features missing = on_cpu ? row.needs & ~cpu_features() : 0;
    rows.push_back({{"name", row.name},
                    {"device", on_cpu ? "cpu" : "cuda"},
                    {"needs", feature_names(row.needs)},
                    {"missing", feature_names(missing)},
                    {"supports", row.supports},
                    {"limits", row.limits},
                    {"ran_on", row.ran_on}});
    const std::string where = !on_cpu ? "for a GPU"
                              : missing != 0
                                  ? "needs " + feature_names(missing) + ", which this CPU lacks"
                                  : "runs here";
    if (!as_json)
      fmt::print("  {:<48} {}\n  {:<48} {}; {}; ran on: {}\n", row.name, where, "", row.supports,
                 row.limits, row.ran_on);
  }
  const Json operation = {{"name", Op<MoeFp8Params>::info.name}, {"rows", std::move(rows)}};
  if (as_json) print_document(Json{{"operations", Json::array({operation})}});
  return kExitDone;
}

Command list_command() {
  auto as_json = std::make_shared<bool>(false);
  return {
      .name = "list",
      .summary = "The operations and their rows",
      .example = "moxie op list",
      .declare =
          [=](Flags& flags) { flags.toggle("--json", as_json.get(), "print one JSON document"); },
      .run = [=](const Flags&) { return list(*as_json); }};
}

// ---- run ----------------------------------------------------------------------------------------

struct RunFlags {
  std::vector<std::string> names;
  std::string inputs, output, kernel = "auto";
  OpDevice on;
  bool json = false;
};

int run(const RunFlags& o) {
  if (auto known = check_op_name(o.names); !known) return usage(known.error().message());
  if (o.inputs.empty() || o.output.empty()) return usage("op run needs --inputs and --output");
  auto inputs = MoeFp8Inputs::open(o.inputs);
  if (!inputs) return report(inputs.error());
  auto runner = open_runner(o.on);
  if (!runner) return report(runner.error());
  auto row = runner->row_for(inputs->params(), o.kernel);
  if (!row) return report(row.error());
  if (auto ran = runner->run(**row, inputs->params()); !ran) return report(ran.error());
  const MoeFp8Params& p = inputs->params();
  const auto written =
      write_safetensors(o.output, {{"output",
                                    "BF16",
                                    {p.num_tokens, p.hidden},
                                    reinterpret_cast<const std::byte*>(inputs->output())}});
  if (!written) return report(written.error());
  if (o.json)
    print_document(Json{{"operation", Op<MoeFp8Params>::info.name},
                        {"kernel", (*row)->name},
                        {"tokens", p.num_tokens},
                        {"output", o.output}});
  else
    fmt::print("{}: {} tokens, {}\n", (*row)->name, p.num_tokens, o.output);
  return kExitDone;
}

Command op_run_command() {
  auto o = std::make_shared<RunFlags>();
  return {.name = "run",
          .summary = "Run an operation on tensors of a file",
          .example =
              "moxie op run moe_fp8_block_scale --inputs in.safetensors --output "
              "out.safetensors --kernel reference",
          .declare =
              [o](Flags& flags) {
                flags.positional("name", &o->names, "the operation: moxie op list", true);
                flags.text("--inputs", &o->inputs,
                           "a safetensors file with the tensors by the definition's names; scalars "
                           "as tensors of one element");
                flags.text("--output", &o->output, "the safetensors file to write: output");
                flags.text("--kernel", &o->kernel, "a row's name, reference or auto");
                declare_op_device(flags, &o->on);
                flags.toggle("--json", &o->json, "print one JSON document");
              },
          .run = [o](const Flags&) { return run(*o); }};
}

// ---- make-tree ----------------------------------------------------------------------------------

struct MakeTreeFlags {
  std::vector<std::string> folders;
  TreeOptions tree;
};

int make_tree(const MakeTreeFlags& o) {
  if (o.folders.size() != 1) return usage("op make-tree takes one folder");
  auto runner = open_runner({.device = "cpu"});
  if (!runner) return report(runner.error());
  auto made = make_trace_tree(o.folders[0], o.tree, runner->pool());
  if (!made) return report(made.error());
  fmt::print("{}: {} workloads; routing from seed {}, not captured from a model\n", o.folders[0],
             *made, o.tree.seed);
  return kExitDone;
}

Command make_tree_command() {
  auto o = std::make_shared<MakeTreeFlags>();
  return {
      .name = "make-tree",
      .summary = "Write a flashinfer-trace tree with routing from a seed",
      .example = "moxie op make-tree trace --seed 1",
      .declare =
          [o](Flags& flags) {
            flags.positional("folder", &o->folders, "the tree's root: new, or empty", true);
            flags.unsigned64("--seed", &o->tree.seed, {0, UINT32_MAX}, "of the routing");
            flags.integer("--experts", &o->tree.num_experts, {8, kMoeFp8MaxExperts}, "all experts");
            flags.integer("--local-experts", &o->tree.num_local_experts, {1, kMoeFp8MaxExperts},
                          "experts with weights");
            flags.integer("--hidden", &o->tree.hidden, {kFp8Block, 1 << 20}, "a multiple of 128");
            flags.integer("--intermediate", &o->tree.intermediate, {kFp8Block, 1 << 20},
                          "a multiple of 128");
            flags.integer("--max-tokens", &o->tree.max_tokens, kFromOne,
                          "leave out workloads of more tokens");
          },
      .run = [o](const Flags&) { return make_tree(*o); }};
}

}  // namespace

Status check_op_name(const std::vector<std::string>& names) {
  const std::string known = Op<MoeFp8Params>::info.name;
  if (names.size() != 1) return fail("expected one operation", "op");
  if (names[0] != known)
    return fail("unknown operation '" + names[0] + "'", "op", "known: " + known);
  return {};
}

void declare_op_device(Flags& flags, OpDevice* o) {
  flags.text("--device", &o->device, "cpu, cuda, cuda:N or auto");
  flags.check("--device", check_device);
  flags.integer("--threads", &o->threads, kFromZero, "of the host; 0: one a usable core");
}

Result<MoeFp8Runner> open_runner(const OpDevice& o) {
  auto device = open_device(o.device, o.threads);
  if (!device) return fail(device.error());
  return MoeFp8Runner::make(std::move(*device), o.threads);
}

Command op_command() {
  return {.name = "op",
          .summary = "Run, time and judge operations outside of a model",
          .example = "moxie op bench moe_fp8_block_scale -T 1,7,32 --local-experts 8",
          .subcommands = {list_command(), op_run_command(), op_bench_command(), op_trace_command(),
                          make_tree_command()}};
}

}  // namespace moxie
