#include "engine/tuning.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fstream>
#include <limits>
#include <map>

#include "engine/engine.h"

namespace moxie {
namespace {

// The best tile of a row in its place, and the cost with it.
struct BestTile {
  double cost = std::numeric_limits<double>::infinity();
  int32_t columns = 0;
};
using Costs = std::map<std::tuple<int32_t, std::string, std::string>, BestTile>;

BestTile best_in(const Costs& costs, const PlannedRow& row) {
  const auto found =
      costs.find({static_cast<int32_t>(row.layer), row.row.name, forms_text(row.forms)});
  return found != costs.end() ? found->second : BestTile{};
}

std::string shapes_of(const GptOssConfig& c, const ModelWeights& formats) {
  std::string text = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {}", c.num_layers, c.hidden,
                                 c.intermediate, c.num_heads, c.num_kv_heads, c.head_dim,
                                 c.num_experts, c.top_k, c.vocab, c.sliding_window,
                                 static_cast<int>(c.activation), c.attention_sinks, c.mlp_router);
  const auto add = [&](const PackedMatrix& matrix) {
    text += fmt::format(" {}:{}x{}x{}", static_cast<int>(matrix.format), matrix.num_experts,
                        matrix.rows, matrix.cols);
  };
  for (size_t l = 0; l < formats.layers.size(); ++l) {
    const LayerWeights& layer = formats.layers[l];
    text += c.is_window[l] ? " window" : " full";
    for (const PackedMatrix* matrix :
         {&layer.qkv, &layer.out, &layer.router, &layer.gate_up, &layer.down})
      add(*matrix);
  }
  add(formats.head_of(c));
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

const Tuning* best_of(const std::vector<Tuning>& tunings, const TuningKey& key, std::string* why) {
  for (const Tuning& tuning : tunings) {
    const std::string reason = why_unfit(tuning.key, key);
    if (reason.empty()) return &tuning;
    // Of tunings for this model's shapes the reason counts; others are none of ours.
    if (why->empty() && tuning.key.shapes == key.shapes) *why = reason;
  }
  return nullptr;
}

}  // namespace

// The version that the kernel module states: "NVRM version: NVIDIA UNIX ...  580.95.05  ...".
std::string device_driver(DeviceKind kind) {
  if (kind == DeviceKind::kCpu) return "none";
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    const bool is_version = word.find('.') != std::string::npos &&
                            word.find_first_not_of("0123456789.") == std::string::npos;
    if (is_version) return word;
  }
  return "unknown";
}

std::string TuningUse::text() const {
  switch (state) {
    case State::kOff:
      return why.empty() ? "off" : "off: " + why;
    case State::kNone:
      return file.empty() ? "none" : fmt::format("none in {}", file);
    case State::kUsed:
      return fmt::format("used, {} ({} launch sizes)", file, tuning->launches.size());
    default:
      return fmt::format("not used: {}: {}", file, why);
  }
}

TuningKey tuning_key(const EngineOptions& options, const DeviceProperties& device,
                     const KernelChooser& kernels, const GptOssConfig& config,
                     const ModelWeights& formats, DType kv_dtype) {
  const bool on_cpu = kernels.device() == DeviceKind::kCpu;
  std::string switches =
      fmt::format("kv-dtype {} activation {} tile {} sinks {}", dtype_name(kv_dtype),
                  options.activation, options.tile, options.sinks ? "on" : "off");
  for (const std::string& kernel : options.kernels) switches += " kernel " + kernel;
  return {.device = device.name,
          .driver = device_driver(kernels.device()),
          .features = feature_names(kernels.features()),
          .threads = on_cpu ? device.num_units : 0,
          .commit = options.tuning.commit,
          .model = options.model,
          .shapes = shapes_of(config, formats),
          .switches = std::move(switches)};
}

Result<TuningUse> find_tuning(const EngineOptions& options, const TuningKey& key) {
  using State = TuningUse::State;
  const std::string& asked = options.tuning.file;
  if (asked == "off") return TuningUse{};
  if (options.batch_invariant == "on")
    return TuningUse{.why = "--batch-invariant on has one plan for all launches"};
  TuningUse use{.state = State::kNone, .file = asked == "auto" ? default_tuning_path() : asked};
  if (use.file.empty()) return use;
  auto tunings = read_tunings(use.file);
  if (!tunings) {
    log_warn("the tuning is not used: " + tunings.error().message());
    use.state = State::kBroken;
    use.why = tunings.error().what;
    return use;
  }
  if (!*tunings) {
    if (asked == "auto") return use;
    return fail("there is no such file", "--tuning " + asked, "`moxie tune` writes one");
  }
  const Tuning* found = best_of(**tunings, key, &use.why);
  if (found != nullptr) {
    use.state = State::kUsed;
    use.why.clear();
    use.tuning = std::make_shared<const Tuning>(*found);
  } else if (!use.why.empty()) {
    use.state = State::kUnfit;
    log_info("the tuning is not used: " + use.file + ": " + use.why);
  } else if (asked != "auto") {
    log_warn("the tuning is not used: " + use.file + ": it has none for this model's shapes");
  }
  return use;
}

std::string forms_text(const Forms& f) {
  const auto name = [](const auto& names, auto form) { return names[static_cast<size_t>(form)]; };
  return fmt::format("x={} q={} a={} router={} t={} l1={}", name(kXFormNames, f.x),
                     name(kQFormNames, f.q), name(kAFormNames, f.a),
                     name(kRouterFormNames, f.router), name(kTFormNames, f.t),
                     name(kL1FormNames, f.l1));
}

const TunedLaunch* find_launch(const Tuning& tuning, const Bracket& bracket) {
  const TunedLaunch* found = nullptr;
  for (const TunedLaunch& launch : tuning.launches) {
    if (launch.num_tokens != bracket.num_tokens || launch.num_seqs != bracket.num_seqs) continue;
    if (found == nullptr || launch.num_logit_rows == bracket.num_logit_rows) found = &launch;
  }
  return found;
}

GptOss::RowCosts row_costs(std::shared_ptr<const Tuning> tuning) {
  return [tuning](const Bracket& bracket) -> GptOss::MeasuredRows {
    const TunedLaunch* launch = find_launch(*tuning, bracket);
    if (launch == nullptr) return {};
    auto costs = std::make_shared<Costs>();
    for (const TunedRow& row : launch->rows) {
      const double cost = row.measured_us + (row.is_planned ? 0 : row.noise_us);
      BestTile& best = (*costs)[{row.layer, row.name, row.forms}];
      if (cost < best.cost) best = {cost, row.tile_columns};
    }
    const bool predicts_unembed = launch->num_logit_rows != bracket.num_logit_rows;
    const auto cost = [costs, predicts_unembed](const PlannedRow& row) {
      const OpInfo& op = row.row.op();
      // Taps are in no tuned launch.
      const bool is_predicted =
          &op == &Op<TapParams>::info || (predicts_unembed && &op == &Op<UnembedParams>::info);
      return is_predicted ? row.predicted_us : best_in(*costs, row).cost;
    };
    return {.cost = cost, .tile_columns = [costs](const PlannedRow& row) {
              return best_in(*costs, row).columns;
            }};
  };
}

}  // namespace moxie
