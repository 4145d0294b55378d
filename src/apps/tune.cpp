// moxie tune: times the rows that plans may have on this device, and keeps the times for plans.
#include "lab/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_flags.h"
#include "apps/cli.h"
#include "apps/output.h"
#include "apps/record_flags.h"
#include "core/add_once.h"
#include "engine/tuning.h"
#include "kernels/gemm/tile_model.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// A prediction that is off by more is told.
constexpr double kPoorPrediction = 0.2;

struct TuneFlags {
  EngineOptions engine;
  std::vector<int32_t> prompts{32, 128, 512}, streams{1, 2, 4, 8, 16};
  TuneOptions options;
  float filter = 2;
  RecordFlags record;
  bool json = false, dry_run = false;
};

bool is_poor(const TimedRow& timed) {
  return std::abs(timed.summary.median - timed.row.predicted_us) >
         kPoorPrediction * timed.summary.median;
}

std::string name_of(const TimedRow& timed) {
  std::string name = timed.row.row.name;
  if (timed.row.tile_columns != 0) name += " " + gemm::tile_name(timed.row.tile());
  return name;
}

Json to_json(const TunedPlans& plans) {
  Json rows = Json::array();
  for (const TimedRow& timed : plans.rows) {
    Json covers = Json::array();
    for (const OpInfo* op : timed.row.row.ops) covers.push_back(op->name);
    rows.push_back({{"name", timed.row.row.name},
                    {"covers", std::move(covers)},
                    {"layer", timed.row.layer},
                    {"forms", forms_text(timed.row.forms)},
                    {"tile", timed.row.tile_columns},
                    {"predicted_us", timed.row.predicted_us},
                    {"measured_us", timed.summary.median},
                    {"noise_us", timed.noise_us},
                    {"samples_us", timed.us},
                    {"planned", timed.is_planned},
                    {"chosen", timed.is_chosen},
                    {"prediction_is_off", is_poor(timed)}});
  }
  return {{"launch", plans.launch.name()},
          {"tokens", plans.bracket.num_tokens},
          {"sequences", plans.bracket.num_seqs},
          {"planned_us", plans.planned_us},
          {"chosen_us", plans.chosen_us},
          {"changes_plan", plans.differs},
          {"rows", std::move(rows)}};
}

// Whether the same row hands its values over in other forms in less time: of those that no plan has
// the best is shown.
bool is_beaten(const TimedRow& timed, const std::vector<TimedRow>& rows) {
  return std::any_of(rows.begin(), rows.end(), [&](const TimedRow& other) {
    return other.row.layer == timed.row.layer && other.row.entry == timed.row.entry &&
           other.row.tile_columns == timed.row.tile_columns &&
           (other.is_chosen || other.is_planned || other.summary.median < timed.summary.median);
  });
}

void print(const TunedPlans& plans, const GptOssConfig& config) {
  fmt::print("{}: {:.0f} us a pass by the plan of predicted times", plans.launch.name(),
             plans.planned_us);
  if (plans.differs)
    fmt::print(", {:.0f} us by measured times ({:+.1f}%)\n", plans.chosen_us,
               100 * (plans.chosen_us / plans.planned_us - 1));
  else
    fmt::print("; measured times choose the same rows\n");
  for (const TimedRow& timed : plans.rows) {
    if (!timed.is_chosen && !timed.is_planned && is_beaten(timed, plans.rows)) continue;
    const bool is_layer = timed.row.row.op().name != std::string_view("embed") &&
                          timed.row.row.op().name != std::string_view("unembed");
    fmt::print("  {} {:<44} {:<6} {:>9.1f} us, predicted {:>9.1f} ({:+.0f}%){}{}\n",
               timed.is_chosen ? "*" : " ", name_of(timed),
               !is_layer                           ? ""
               : config.is_window[timed.row.layer] ? "window"
                                                   : "full",
               timed.summary.median, timed.row.predicted_us,
               100 * (timed.row.predicted_us / timed.summary.median - 1),
               is_poor(timed) ? " prediction off by more than 20%" : "",
               timed.is_planned ? ", planned" : fmt::format(", noise {:.1f}", timed.noise_us));
  }
  if (plans.num_unreached > 0)
    fmt::print("  {} more rows are in no chain of these\n", plans.num_unreached);
  fmt::print("\n");
  std::fflush(stdout);
}

std::vector<TuneLaunch> launches_of(const TuneFlags& o) {
  std::vector<TuneLaunch> launches;
  // Several sizes may be of one bracket.
  const auto add = [&launches](const TuneLaunch& launch) { add_once(launches, launch); };
  for (const int32_t n : o.streams)
    if (n > 0) add({.num_tokens = bracket_floor(n), .is_decode = true});
  for (const int32_t n : o.prompts)
    if (n > 1) add({.num_tokens = bracket_floor(n), .is_decode = false});
  return launches;
}

void fit_engine(const TuneFlags& o, EngineOptions* options) {
  int32_t tokens = 1, seqs = 1;
  for (const TuneLaunch& launch : o.options.launches) {
    tokens = std::max(tokens, launch.num_tokens);
    seqs = std::max(seqs, launch.num_seqs());
  }
  options->max_num_seqs = 2 * seqs;  // the filled ones, and the forks that run
  options->max_logit_rows = seqs;
  if (options->max_model_len == 0) options->max_model_len = o.options.depth + tokens;
  options->max_batch_tokens = std::max(tokens, options->max_batch_tokens);
  options->tuning.file = "off";
}

// Other tunings of the file stay.
Status keep(const std::string& path, Tuning tuning) {
  auto read = read_tunings(path);
  std::vector<Tuning> tunings;
  if (!read)
    log_warn("the file is written anew: " + read.error().message());
  else if (*read)
    tunings = std::move(**read);
  replace_tuning(&tunings, std::move(tuning));
  return write_tunings(path, tunings);
}

Record make_record(Engine& engine, const Flags& flags, const std::vector<TunedPlans>& all) {
  Record record = record_of("tune", engine, {}, flags);
  for (const TunedPlans& plans : all) {
    for (const TimedRow& timed : plans.rows) {
      record.results.push_back(
          {.name = fmt::format("{} {}@{} {}", plans.launch.name(), name_of(timed), timed.row.layer,
                               forms_text(timed.row.forms)),
           .unit = "us",
           .samples = timed.us,
           .better = Better::kLower});
    }
  }
  return record;
}

int run(TuneFlags& o, const Flags& flags) {
  const std::string asked = o.engine.tuning.file;
  const std::string path = asked == "auto" ? default_tuning_path() : asked;
  if (path == "off" && !o.dry_run)
    return usage("tune: --tuning off names no file; --dry-run writes none");
  if (path.empty())
    return report({"no folder for the file", "--tuning", "set HOME, or name a file"});
  if (o.engine.batch_invariant == "on")
    return usage("tune: --batch-invariant on has one plan for all launches: nothing to tune");
  if (!o.options.step.empty() && op_named(o.options.step) == nullptr)
    return usage("tune: '" + o.options.step + "' is no step: see `moxie kernels`");
  o.options.filter = o.filter;
  o.options.launches = launches_of(o);
  if (o.options.launches.empty()) return usage("tune: nothing to do; give -p or -b");
  o.engine.show_progress = o.engine.show_progress && !o.json;
  fit_engine(o, &o.engine);
  auto keeper = RecordKeeper::open(o.record);
  if (!keeper) return report(keeper.error());
  if (!o.dry_run) {
    std::error_code error;  // a folder that cannot be made takes no file either
    if (const auto folder = std::filesystem::path(path).parent_path(); !folder.empty())
      std::filesystem::create_directories(folder, error);
    if (auto status = check_output(path); !status) return report(status.error());
  }
  auto engine = Engine::load(o.engine);
  if (!engine) return report(engine.error());
  Engine& e = **engine;
  Tuning tuning{.key = tuning_key(e.options(), e.device().properties(), e.kernels(), e.config(),
                                  e.weights(), e.kv_dtype()),
                .launches = {}};
  std::vector<TunedPlans> all;
  for (const TuneLaunch& launch : o.options.launches) {
    auto plans =
        tune_launch(e, launch, o.options, [](const std::string& line) { log_debug(line); });
    if (!plans) return report(plans.error());
    log_info(fmt::format("{}: {} rows timed", launch.name(), plans->rows.size()));
    tuning.launches.push_back(to_tuned(*plans));
    if (!o.json) print(*plans, e.config());
    all.push_back(std::move(*plans));
  }
  if (o.json) {
    Json list = Json::array();
    for (const TunedPlans& plans : all) list.push_back(to_json(plans));
    print_document(Json{{"model", o.engine.model},
                        {"device", tuning.key.device},
                        {"driver", tuning.key.driver},
                        {"commit", tuning.key.commit},
                        {"file", o.dry_run ? Json() : Json(path)},
                        {"launches", std::move(list)}});
  }
  const auto end = [&](int exit_code) {
    if (!keeper->is_asked()) return exit_code;
    return keep_and_exit(*keeper, make_record(e, flags, all), exit_code);
  };
  if (o.dry_run) return end(kExitDone);
  if (auto status = keep(path, std::move(tuning)); !status) return end(report(status.error()));
  if (!o.json) fmt::print("kept in {}\n", path);
  return end(kExitDone);
}

}  // namespace

Command tune_command() {
  auto o = std::make_shared<TuneFlags>();
  return {
      .name = "tune",
      .summary = "Times rows on this device, so that plans follow what was measured",
      .example = "moxie tune --model openai/gpt-oss-20b -p 512,2048 -b 1,8",
      .declare =
          [o](Flags& flags) {
            declare_model_flags(flags, &o->engine);
            flags.integers("-p,--n-prompt", &o->prompts, {0, kMostBatchTokens},
                           "tokens of a launch of one prompt; 0: none");
            flags.integers("-b,--streams", &o->streams, {0, kMostSeqs},
                           "sequences of a launch of one token each; 0: none");
            flags.integer("-d,--n-depth", &o->options.depth, {0, 1 << 20},
                          "tokens before those of a launch");
            flags.integer("-r,--repetitions", &o->options.repetitions, {3, 1000},
                          "samples of a row");
            flags.number("--factor", &o->filter, {1, 1000},
                         "rows that are predicted to take so many times the plan's are left "
                         "out");
            flags.text("--filter", &o->options.step, "only rows of this step are candidates");
            flags.unsigned64("--seed", &o->engine.seed, {0, UINT64_MAX}, "of synthetic weights");
            declare_record_flags(flags, &o->record);
            flags.toggle("--dry-run", &o->dry_run, "write no tuning");
            flags.toggle("--json", &o->json, "print one JSON document");
          },
      .run = [o](const Flags& flags) { return run(*o, flags); }};
}

}  // namespace moxie
