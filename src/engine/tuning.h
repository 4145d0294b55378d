// Which tuning an engine uses, if any, and how the plans of its model follow from it.
#pragma once

#include <memory>
#include <string>

#include "engine/tuning_file.h"
#include "kernels/registry.h"
#include "model/gpt_oss.h"

namespace moxie {

struct EngineOptions;

/// What became of `--tuning`.
struct TuningUse {
  enum class State : uint8_t {
    kOff,     ///< as asked, or with --batch-invariant on
    kNone,    ///< there is no file, or none for this model and device
    kUnfit,   ///< the file has a tuning for another commit, driver or the like
    kBroken,  ///< the file cannot be read
    kUsed,
  };
  State state = State::kOff;
  std::string file;
  std::string why;  ///< not used: the reason
  std::shared_ptr<const Tuning> tuning;

  /// One line for people: "used, FILE", "off", "not used: FILE: its commit is ...".
  std::string text() const;
};

/// The version of a GPU's driver, "unknown"; of a CPU "none".
std::string device_driver(DeviceKind kind);

/// The key of a tuning for this device and model.
TuningKey tuning_key(const EngineOptions& options, const DeviceProperties& device,
                     const KernelChooser& kernels, const GptOssConfig& config,
                     const ModelWeights& formats, DType kv_dtype);

/// Looks for the tuning that EngineOptions::tuning asks for. Fails only if a file was named that
/// does not exist. A broken file is a warning.
Result<TuningUse> find_tuning(const EngineOptions& options, const TuningKey& key);

/// The costs that decide the plans of a model with this tuning, for GptOss::set_row_costs(). A
/// launch that was not tuned has none. A row that was not timed is not in the plan; a timed one
/// costs what was measured, and what differs from the plan by predicted times costs the noise
/// besides. Where the number of rows of logits is another than in the tuned launch, the rows of
/// unembed cost what is predicted.
GptOss::RowCosts row_costs(std::shared_ptr<const Tuning> tuning);

/// "x=f32 q=f32 ...": forms as a tuning names them.
std::string forms_text(const Forms& forms);

/// The tuned launch for a bracket, or null.
const TunedLaunch* find_launch(const Tuning& tuning, const Bracket& bracket);

}  // namespace moxie
