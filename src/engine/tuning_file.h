// The file of tunings: times of rows as `moxie tune` measured them on a device, for the shapes of a
// model. docs/tuning.md describes it.
//
// A file comes from outside: its reader accepts the form that the writer makes and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie {

/// Where an engine looks for a tuning.
struct TuningOptions {
  std::string file = "off";  ///< off, auto (default_tuning_path()), or a path
  std::string commit;        ///< of this program's sources: TuningKey::commit
};

/// What a tuning depends on. It is used only where every member is equal.
struct TuningKey {
  std::string device;    ///< "NVIDIA H200", "AMD EPYC ..."
  std::string driver;    ///< of the device; "none" on the CPU
  std::string features;  ///< feature_names()
  int32_t threads = 0;   ///< CPU; else 0
  std::string commit;    ///< of the sources; with "+changes" if they differed from it
  std::string model;     ///< as it was named, for people; not compared
  std::string shapes;    ///< hash of the model's sizes and of its weights' formats
  std::string switches;  ///< those that decide which rows may run
};

/// Why a tuning of key `found` is not one of `key`: the first member that differs, with both
/// values; empty if it is.
std::string why_unfit(const TuningKey& found, const TuningKey& key);

/// One row in its place in the plan of a launch.
struct TunedRow {
  int32_t layer = 0;  ///< the first of its kind; 0 before the layers and behind them
  std::string name, forms;
  int32_t tile_columns = 0;  ///< 0: as the tile model says, or the row takes none
  double predicted_us = 0, measured_us = 0;
  double noise_us = 0;      ///< a difference within it says nothing
  bool is_planned = false;  ///< in the plan by predicted times
};

/// Every row that the plan of such launches may have.
struct TunedLaunch {
  int32_t num_tokens = 1, num_seqs = 1, num_logit_rows = 1;
  std::vector<TunedRow> rows;
};

struct Tuning {
  TuningKey key;
  std::vector<TunedLaunch> launches;
};

/// A larger file is no file of tunings.
inline constexpr uint64_t kMaxTuningFileBytes = uint64_t{16} << 20;

/// `where` names the file in errors, which name the member at fault.
Result<std::vector<Tuning>> parse_tunings(std::string_view text, const std::string& where);
std::string tunings_text(const std::vector<Tuning>& tunings);

/// Nothing if there is no such file.
Result<std::optional<std::vector<Tuning>>> read_tunings(const std::string& path);
/// Writes the file, complete or not at all, and makes its folders.
Status write_tunings(const std::string& path, const std::vector<Tuning>& tunings);

/// Puts a tuning in front of the others, in place of one for the same device, shapes, threads and
/// switches, and drops the last beyond what a file may have.
void replace_tuning(std::vector<Tuning>* tunings, Tuning tuning);

/// $XDG_CACHE_HOME/moxie/tuning.json, else ~/.cache/moxie/tuning.json; empty if nothing says where.
std::string default_tuning_path();

}  // namespace moxie
