// moxie score: a model's likelihood of given token ids, and its logits for comparison.
#include "apps/score.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/bench_flags.h"
#include "apps/kernels_json.h"
#include "apps/output.h"
#include "apps/speculation_flags.h"
#include "lab/energy.h"
#include "lab/logit_distance.h"
#include "lab/run_watch.h"
#include "lab/stats.h"
#include "weights/safetensors_write.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct ScoreFlags {
  EngineOptions engine;
  std::vector<int32_t> ids;
  SpeculationFlags speculation;
  std::string ids_file, logits, draft_logits, sinks = "on";
  int32_t chunk = 128;
  RecordFlags record;
  bool json = true, compare_switches = false;
};

// A JSON list of lists of ids.
Result<std::vector<std::vector<int32_t>>> read_lists(const std::string& path) {
  auto text = read_text(path);
  if (!text) return fail(std::move(text.error()));
  const Json document = Json::parse(*text, nullptr, false);
  const auto refuse = [&] { return fail("expected a JSON list of lists of token ids", path); };
  if (!document.is_array()) return refuse();
  std::vector<std::vector<int32_t>> lists;
  for (const Json& entry : document) {
    if (!entry.is_array()) return refuse();
    std::vector<int32_t> ids;
    for (const Json& id : entry) {
      if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
        return refuse();
      }
      ids.push_back(id.get<int32_t>());
    }
    lists.push_back(std::move(ids));
  }
  return lists;
}

// Tells the ids of one run from those of another.
std::string name_of(const std::vector<std::vector<int32_t>>& lists) {
  uint64_t hash = lists.size();
  for (const auto& ids : lists)
    hash = XXH3_64bits_withSeed(ids.data(), ids.size() * sizeof ids[0], hash);
  return fmt::format("given ids, XXH3 {:016x}", hash);
}

// The record of a run: values that are computed, not timed.
Record make_record(Engine& engine, const Flags& flags, std::vector<double> nll, double perplexity) {
  // Nothing is timed, so nothing is measured of the machine.
  const MachineLimits limits{.cpu = make_cpu_device(1)->properties().name};
  Record record = record_of("score", engine, limits, flags);
  record.workload.num_warm_ups = 0;
  record.workload.num_prompt_tokens = static_cast<int64_t>(nll.size());
  add_rows(engine.kernels().counts(), "", engine.self_test(), &record);
  if (nll.empty()) return record;  // one id predicts none
  record.results.push_back({.name = "nll",
                            .unit = "nats",
                            .samples = std::move(nll),
                            .better = Better::kLower,
                            .is_exact = true});
  record.results.push_back({.name = "perplexity",
                            .unit = "",
                            .samples = {perplexity},
                            .better = Better::kLower,
                            .is_exact = true});
  return record;
}

int run(ScoreFlags& o, const Flags& flags) {
  std::vector<std::vector<int32_t>> lists;
  const bool single = flags.given("--ids");
  const bool from_file = flags.given("--ids-file");
  if (single && from_file) return usage("score: give --ids or --ids-file, not both");
  if (!single && !from_file && !o.compare_switches) {
    return usage("score: give --ids or --ids-file");
  }
  if (o.compare_switches && !o.logits.empty()) {
    return usage("score: --compare-switches writes no --logits");
  }
  if (o.compare_switches && !(o.record.record.empty() && o.record.history.empty())) {
    return usage("score: --compare-switches keeps no record");
  }
  if (auto status = o.speculation.complete(flags); !status) return usage(status.error().message());
  SpeculationOptions& speculation = o.speculation.options;
  const bool has_head = takes_head(speculation.method);
  if (has_head != !o.draft_logits.empty())
    return usage("score: --draft-logits and --spec eagle3 or dflash go together");
  for (const std::string& file : {o.logits, o.draft_logits})
    if (auto status = check_output(file); !status) return report(status.error());
  if (single) {
    lists.push_back(o.ids);
  } else if (from_file) {
    auto read = read_lists(o.ids_file);
    if (!read) return report(read.error());
    lists = std::move(*read);
  }
  size_t longest = 1;
  for (const auto& ids : lists) {
    if (ids.empty()) return report({"an empty list of ids", single ? "--ids" : o.ids_file, ""});
    longest = std::max(longest, ids.size());
  }
  if (longest > (1u << 20)) return report({"more than a million ids in one list", "score", ""});
  o.engine.sinks = o.sinks == "on";
  if (o.compare_switches) {
    o.engine.max_batch_tokens = o.engine.max_logit_rows = o.chunk;
    return compare_switches(o.engine, lists, flags.given("--json"));
  }
  o.engine.max_batch_tokens = std::min(o.chunk, static_cast<int32_t>(longest));
  o.engine.max_logit_rows = o.engine.max_batch_tokens;
  if (o.engine.max_model_len == 0) o.engine.max_model_len = static_cast<int32_t>(longest);
  if (has_head) {
    // The head itself is looked at, so that its weights are kept as they are stored.
    if (speculation.dtype == "auto") speculation.dtype = "bf16";
    o.engine.speculation = speculation;
    ++o.engine.max_model_len;
  }
  auto keeper = RecordKeeper::open(o.record);
  if (!keeper) return report(keeper.error());
  auto engine = Engine::load(o.engine);
  if (!engine) return report(engine.error());
  if (has_head) {
    if (auto status = write_draft_logits(**engine, lists, o.draft_logits); !status)
      return report(status.error());
  }

  RunWatch watch((*engine)->device(), counts_all_energy(**engine));
  Json nll = Json::array();
  std::vector<double> all_nll;
  std::vector<std::vector<float>> all_logits(lists.size());
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < lists.size(); ++i) {
    auto values = score_ids(**engine, lists[i], o.logits.empty() ? nullptr : &all_logits[i]);
    if (!values) return report(values.error());
    all_nll.insert(all_nll.end(), values->begin(), values->end());
    if (single)
      nll = *values;
    else
      nll.push_back(*values);
    if (!o.logits.empty()) {
      tensors.push_back({fmt::format("logits.{}", i),
                         "F32",
                         {static_cast<int64_t>(lists[i].size()), (*engine)->config().vocab},
                         reinterpret_cast<const std::byte*>(all_logits[i].data())});
    }
  }
  if (!o.logits.empty()) {
    if (auto status = write_safetensors(o.logits, tensors); !status) return report(status.error());
  }
  const double mean_nll = mean(all_nll);
  const bool is_scored = !all_nll.empty();  // else there is no mean
  print_document(Json{{"nll", nll},
                      {"mean_nll", is_scored ? Json(mean_nll) : Json()},
                      {"perplexity", is_scored ? Json(std::exp(mean_nll)) : Json()},
                      {"num_scored", all_nll.size()},
                      {"kernels", kernels_json((*engine)->kernels().counts())}},
                 -1);
  if (!keeper->is_asked()) return kExitDone;
  Record record = make_record(**engine, flags, std::move(all_nll), std::exp(mean_nll));
  record.workload.sampling = name_of(lists);
  watch.finish(&record);
  return keep_and_exit(*keeper, record, kExitDone);
}

}  // namespace

Result<std::vector<double>> score_ids(Engine& engine, const std::vector<int32_t>& ids,
                                      std::vector<float>* logits) {
  struct Guard {
    KvCache& kv;
    SeqId seq;
    ~Guard() { kv.free_sequence(seq); }
  } guard{engine.kv(), engine.kv().add_sequence()};
  return score_ids(engine, guard.seq, ids, logits);
}

Result<std::vector<double>> score_ids(Engine& engine, SeqId seq, const std::vector<int32_t>& ids,
                                      std::vector<float>* logits) {
  const int32_t vocab = engine.config().vocab;
  std::vector<double> nll;
  const int32_t chunk = engine.options().max_batch_tokens;
  const bool on_cpu = engine.device().kind() == DeviceKind::kCpu;
  std::vector<float> block;  // a launch's logits, if they are on a GPU
  for (size_t at = 0; at < ids.size(); at += static_cast<size_t>(chunk)) {
    const size_t count = std::min(ids.size() - at, static_cast<size_t>(chunk));
    const Chunk part{seq, std::span(ids).subspan(at, count), Logits::kAll};
    auto rows = engine.step({&part, 1});
    if (!rows) return fail(std::move(rows.error()));
    if (!on_cpu) {
      block.resize(count * static_cast<size_t>(vocab));
      if (auto status = engine.read_logits(block); !status) return fail(std::move(status.error()));
      *rows = block.data();
    }
    if (logits) logits->insert(logits->end(), *rows, *rows + count * static_cast<size_t>(vocab));
    for (size_t i = 0; i < count && at + i + 1 < ids.size(); ++i) {
      const int32_t next = ids[at + i + 1];
      if (next < 0 || next >= vocab) {
        return fail(fmt::format("token id {}, vocabulary of {}", next, vocab), "input");
      }
      const float* row = *rows + i * static_cast<size_t>(vocab);
      nll.push_back(log_sum_exp(row, vocab) - row[next]);
    }
  }
  return nll;
}

Command score_command() {
  auto o = std::make_shared<ScoreFlags>();
  return {
      .name = "score",
      .summary = "Negative log-likelihoods and logits of given token ids",
      .example = "moxie score --model DIR --ids 1,2,3 --logits out.safetensors",
      .declare =
          [o](Flags& flags) {
            declare_model_flags(flags, &o->engine);
            flags.unsigned64("--seed", &o->engine.seed, {0, UINT64_MAX}, "of synthetic weights");
            flags.integers("--ids", &o->ids, {0, INT32_MAX}, "token ids: 1,2,3");
            flags.text("--ids-file", &o->ids_file, "JSON list of lists of ids");
            flags.text("--logits", &o->logits,
                       "write logits.0, logits.1, ... (F32 [n, vocab]) to this safetensors file");
            flags.integer("--chunk", &o->chunk, kFromOne,
                          "tokens a launch; changes nothing but rounding");
            flags.integer("--max-num-batched-tokens", &o->chunk, kFromOne, "the same as --chunk");
            o->speculation.declare(flags);
            flags.text("--draft-logits", &o->draft_logits,
                       "with --spec eagle3 or dflash: write draft_logits.0, draft_ids.0, ... to "
                       "this safetensors file");
            flags.choice("--sinks", &o->sinks, {"on", "off"}, "test switch");
            flags.toggle("--compare-switches", &o->compare_switches,
                         "print what each switch that saves bytes costs: change of perplexity, "
                         "mean KL; without ids on what the model answers to a few questions");
            declare_record_flags(flags, &o->record);
            flags.toggle("--json", &o->json,
                         "JSON is the only form of output but for --compare-switches");
          },
      .run = [o](const Flags& flags) { return run(*o, flags); }};
}

}  // namespace moxie
