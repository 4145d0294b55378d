// moxie doctor: the machine's devices, what would be chosen, faults and how to mend them.
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/cli.h"
#include "apps/output.h"
#include "apps/shown_device.h"
#include "apps/shown_tuning.h"
#include "core/clock.h"
#include "core/numa.h"
#include "engine/plan.h"
#include "engine/self_test_rows.h"
#include "lab/machine.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct DoctorFlags {
  EngineOptions engine;
  bool json = false, self_test = false;
};

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

struct Finding {
  std::string what, mend;
};

std::vector<Finding> findings(const Device& device, const std::string& cuda_reason) {
  std::vector<Finding> list;
#if defined(__x86_64__)
  if (!(cpu_features() & kAvx2)) {
    list.push_back({"this CPU has no AVX2: only portable rows run", "a CPU of 2013 or later"});
  }
#elif defined(__aarch64__)
  if (!(cpu_features() & kNeonDot)) {
    list.push_back({"this CPU has no dot products of bytes: MXFP4 takes portable rows",
                    "a CPU with FEAT_DotProd, as most since 2018 have"});
  }
#endif
  double load[1] = {0};
  const int num_cores = num_usable_cores();
  if (getloadavg(load, 1) == 1 && load[0] > 0.5 * num_cores) {
    list.push_back({fmt::format("load average {:.1f} on {} cores: speeds will be low and noisy",
                                load[0], num_cores),
                    "stop other work before measuring"});
  }
  const std::string governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (!governor.empty() && governor != "performance") {
    list.push_back({"the CPU's frequency governor is '" + governor + "'",
                    "cpupower frequency-set -g performance"});
  }
  const std::string huge = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (huge.find("[never]") != std::string::npos) {
    list.push_back({"transparent huge pages are off: reads of weights miss the TLB",
                    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"});
  }
  const auto& properties = device.properties();
  if (properties.available_bytes < (uint64_t{2} << 30)) {
    list.push_back(
        {fmt::format("only {} of memory is free", format_bytes(properties.available_bytes)),
         "close other programs"});
  }
  if (!cuda_reason.empty()) list.push_back({"no CUDA device: " + cuda_reason, "the CPU is used"});
  return list;
}

// Every row on its own: a table, or JSON.
int run_self_test_of_rows(const DoctorFlags& o) {
  auto device = open_device(o.engine.device, o.engine.threads);
  if (!device) return report(device.error());
  auto checkpoint = open_checkpoint(o.engine.model);
  if (!checkpoint) return report(checkpoint.error());
  const DeviceKind kind = (*device)->kind();
  const DeviceProperties& properties = (*device)->properties();
  const Features features =
      kind == DeviceKind::kCpu ? cpu_features() : cuda_features(properties.compute_capability);
  auto choice = kernel_choice(o.engine, features);
  if (!choice) return report(choice.error());
  const KernelChooser kernels(kind, features, std::move(*choice), rates_of(kind, properties));
  const GptOssConfig& config = (*checkpoint)->config();
  auto kv_dtype = choose_kv_dtype(o.engine.kv_dtype, config, kernels, o.engine.max_model_len,
                                  o.engine.max_num_seqs);
  if (!kv_dtype) return report(kv_dtype.error());
  const ModelWeights layout = (*checkpoint)->layout({.device = kind});
  const auto start = Clock::now();
  auto rows = test_all_rows({.device = device->get(),
                             .properties = properties,
                             .kernels = kernels,
                             .config = config,
                             .formats = layout,
                             .kv_dtype = *kv_dtype,
                             .use_sinks = o.engine.sinks});
  if (!rows) return report(rows.error());
  const double seconds = seconds_since(start);
  bool all_sound = true;
  Json list = Json::array();
  if (!o.json)
    fmt::print("{}\n\n{:<8} {:<44} {:<8} {:<10} {}\n", properties.name, "step", "row", "result",
               "tolerance", "launches");
  for (const RowTested& row : *rows) {
    const bool ran = row.not_run.empty(), is_sound = row.fault.empty();
    all_sound = all_sound && is_sound;
    const char* const result = !is_sound ? "FAILED" : ran ? "proven" : "-";
    if (o.json) {
      list.push_back({{"step", row.row.op().name},
                      {"name", row.row.name},
                      {"result", !is_sound ? "failed"
                                 : ran     ? "proven"
                                           : "not run"},
                      {"share_of_tolerance", ran ? Json(row.share) : Json()},
                      {"launches", row.launches},
                      {"why", !is_sound ? row.fault : row.not_run}});
      continue;
    }
    fmt::print("{:<8} {:<44} {:<8} {:<10} {}\n", row.row.op().name, row.row.name, result,
               ran ? fmt::format("{:.2f}", row.share) : "-",
               ran && is_sound ? fmt::format("{}", fmt::join(row.launches, ", "))
               : is_sound      ? row.not_run
                               : row.fault);
  }
  if (o.json)
    print_document(Json{{"device", properties.name},
                        {"driver", device_driver(kind)},
                        {"features", feature_names(features)},
                        {"version", MOXIE_VERSION},
                        {"commit", o.engine.self_test.commit},
                        {"model", o.engine.model},
                        {"seconds", seconds},
                        {"rows", list}});
  else
    fmt::print("\n{} in {:.1f} s; tolerance: the worst share of it that a row took\n",
               all_sound ? "nothing wrong" : "a row FAILED", seconds);
  return all_sound ? kExitDone : kExitFailed;
}

int run(DoctorFlags& o) {
  if (o.self_test) return run_self_test_of_rows(o);
  auto device = make_cpu_device(o.engine.threads);
  std::string cuda_reason;
  const int num_gpus = num_cuda_devices(&cuda_reason);
  if (num_gpus > 0) cuda_reason.clear();
  auto limits = measure_machine(*device);
  std::string why_no_read;
  if (!limits) {  // no memory for the buffer: the arithmetic needs none
    why_no_read = limits.error().what;
    limits = measure_machine(*device, {.read_buffer_bytes = 1 << 21, .read_passes = 1});
  }
  if (!limits) return report(limits.error());
  auto shown = shown_device(o.engine.device);
  if (!shown) return report(shown.error());
  if (!shown->why_not.empty()) cuda_reason = shown->why_not;
  auto problems = findings(*device, cuda_reason);
  if (!why_no_read.empty())
    problems.push_back({"the memory's bandwidth was not measured: " + why_no_read,
                        "close other programs, or allow this one more memory (ulimit -v)"});

  KernelChooser kernels(shown->kind, shown->features, {}, rates_of(shown->kind, shown->properties));
  TuningUse tuning;
  std::vector<Verdict> verdicts;
  std::string model_error;
  if (auto checkpoint = open_checkpoint(o.engine.model)) {
    const ModelWeights layout = (*checkpoint)->layout({.device = shown->kind});
    const GptOssConfig& config = (*checkpoint)->config();
    auto kv_dtype = choose_kv_dtype(o.engine.kv_dtype, config, kernels, o.engine.max_model_len,
                                    o.engine.max_num_seqs);
    if (!kv_dtype) return report(kv_dtype.error());
    auto found = shown_tuning(o.engine, *shown, kernels, config, layout, *kv_dtype);
    if (!found) return report(found.error());
    tuning = std::move(*found);
    const GptOss model(config, layout, {}, kernels);
    if (tuning.tuning != nullptr) model.set_row_costs(row_costs(tuning.tuning));
    verdicts = model.explain(*kv_dtype, 1);
    using State = TuningUse::State;
    if (tuning.state == State::kUnfit || tuning.state == State::kBroken)
      problems.push_back({"the tuning is not used: " + tuning.file + ": " + tuning.why,
                          "`moxie tune --model " + o.engine.model + "` makes another"});
    if (!(*checkpoint)->faults().empty()) model_error = (*checkpoint)->faults().front().message();
  } else {
    model_error = checkpoint.error().message();
  }

  const auto& properties = device->properties();
  if (o.json) {
    Json chosen = Json::object(), list = Json::array();
    for (const Verdict& v : verdicts) {
      if (v.chosen) chosen[v.row.op().name] = v.row.name;
    }
    for (const Finding& f : problems) list.push_back({{"what", f.what}, {"mend", f.mend}});
    if (!model_error.empty()) list.push_back({{"what", model_error}, {"mend", "moxie inspect"}});
    Json machine = to_json(*limits);
    if (!why_no_read.empty()) machine["read_gb_s"] = nullptr;
    print_document(Json{{"machine", std::move(machine)},
                        {"memory_bytes", properties.memory_bytes},
                        {"available_bytes", properties.available_bytes},
                        {"cuda_devices", num_gpus},
                        {"device", shown->name.empty() ? "cpu" : shown->name},
                        {"model", o.engine.model},
                        {"tuning", tuning.text()},
                        {"kernels", chosen},
                        {"findings", list}});
    return model_error.empty() ? kExitDone : kExitFailed;
  }
  const std::vector<UsableCore> cores = usable_cores();
  std::set<int> nodes;
  for (const UsableCore& core : cores) nodes.insert(core.node);
  fmt::print("cpu       {}\ncores     {} usable on {} NUMA node{}, {} threads\nfeatures  {}\n",
             properties.name, cores.size(), nodes.size(), nodes.size() == 1 ? "" : "s",
             properties.num_units, feature_names(cpu_features()));
  fmt::print("memory    {} free of {}\n", format_bytes(properties.available_bytes),
             format_bytes(properties.memory_bytes));
  if (why_no_read.empty())
    fmt::print("read      {:.1f} GB/s ({})\n", limits->read_gb_s, limits->read_instruction);
  else
    fmt::print("read      not measured\n");
  fmt::print("peak      fp32 {:.0f} GFLOP/s ({}), bf16 {:.0f} ({}), int8 {:.0f} ({})\n",
             limits->fp32.rate, limits->fp32.instruction, limits->bf16.rate,
             limits->bf16.instruction, limits->int8.rate, limits->int8.instruction);
  fmt::print("gpus      {}\n", num_gpus > 0 ? std::to_string(num_gpus) : "none: " + cuda_reason);
  fmt::print("tuning    {}\n", tuning.text());
  fmt::print("\nchosen for {} on {}:\n", o.engine.model,
             shown->name.empty() ? "the CPU" : shown->name);
  for (const Verdict& v : verdicts) {
    if (v.chosen) fmt::print("  {:<8} {}\n", v.row.op().name, v.row.name);
  }
  fmt::print("\n");
  if (!model_error.empty()) fmt::print("! {}\n", model_error);
  for (const Finding& f : problems) fmt::print("! {}\n  {}\n", f.what, f.mend);
  if (model_error.empty() && problems.empty()) fmt::print("nothing wrong\n");
  return model_error.empty() ? kExitDone : kExitFailed;
}

}  // namespace

Command doctor_command() {
  auto o = std::make_shared<DoctorFlags>();
  return {.name = "doctor",
          .summary = "What this machine has, what will be chosen, what is wrong",
          .example = "moxie doctor",
          .declare =
              [o](Flags& flags) {
                declare_untested_model_flags(flags, &o->engine);
                flags.toggle("--self-test", &o->self_test,
                             "compare every kernel that this machine can run with the reference");
                flags.toggle("--json", &o->json, "print one JSON document");
              },
          .run = [o](const Flags&) { return run(*o); }};
}

}  // namespace moxie
