#include "engine/tuning_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/kept_file.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTunings = 64, kMaxLaunches = 256, kMaxRows = 4096;
constexpr double kMostUs = 1e12;
constexpr int64_t kMostTokens = 1 << 22, kMostLayers = 1 << 16, kMostThreads = 1 << 16;

constexpr KeptForm kForm{"moxie tuning 1", "tunings", kMaxTunings,
                         "remove the file; `moxie tune` writes another"};

struct Member {
  const char* name;
  std::string TuningKey::*field;
  bool is_compared = true;
};
constexpr Member kMembers[] = {{"device", &TuningKey::device},      {"driver", &TuningKey::driver},
                               {"features", &TuningKey::features},  {"commit", &TuningKey::commit},
                               {"model", &TuningKey::model, false}, {"shapes", &TuningKey::shapes},
                               {"switches", &TuningKey::switches}};

TuningKey read_key(JsonFields fields) {
  TuningKey key;
  for (const Member& member : kMembers) key.*member.field = fields.text(member.name, kMostKeptText);
  key.threads = static_cast<int32_t>(fields.integer("threads", 0, kMostThreads));
  fields.done();
  return key;
}

double read_us(JsonFields& fields, const char* name) {
  const double us = fields.number(name);
  if (!(us >= 0 && us <= kMostUs)) fields.refuse(name, "is no time in microseconds");
  return us;
}

TunedRow read_row(JsonFields& fields) {
  TunedRow row;
  row.layer = static_cast<int32_t>(fields.integer("layer", 0, kMostLayers));
  row.name = fields.text("name", kMostKeptText);
  row.forms = fields.text("forms", kMostKeptText);
  row.tile_columns = static_cast<int32_t>(fields.integer("tile", 0, kMostTokens));
  row.predicted_us = read_us(fields, "predicted_us");
  row.measured_us = read_us(fields, "measured_us");
  row.noise_us = read_us(fields, "noise_us");
  row.is_planned = fields.boolean("planned");
  fields.done();
  return row;
}

TunedLaunch read_launch(JsonFields& fields) {
  TunedLaunch launch;
  launch.num_tokens = static_cast<int32_t>(fields.integer("tokens", 1, kMostTokens));
  launch.num_seqs = static_cast<int32_t>(fields.integer("sequences", 1, kMostTokens));
  launch.num_logit_rows = static_cast<int32_t>(fields.integer("logit_rows", 0, kMostTokens));
  fields.objects(
      "rows", [&](JsonFields& entry) { launch.rows.push_back(read_row(entry)); }, kMaxRows);
  for (const TunedRow& row : launch.rows) {
    const auto is_same = [&](const TunedRow& other) {
      return other.layer == row.layer && other.name == row.name && other.forms == row.forms &&
             other.tile_columns == row.tile_columns;
    };
    if (std::count_if(launch.rows.begin(), launch.rows.end(), is_same) > 1)
      fields.refuse("rows", "has a row twice");
  }
  fields.done();
  return launch;
}

Tuning read_tuning(JsonFields& fields) {
  Tuning tuning{.key = read_key(fields.object("key"))};
  fields.objects(
      "launches", [&](JsonFields& entry) { tuning.launches.push_back(read_launch(entry)); },
      kMaxLaunches);
  fields.done();
  return tuning;
}

Json to_json(const Tuning& tuning) {
  Json key = Json::object(), launches = Json::array();
  for (const Member& member : kMembers) key[member.name] = tuning.key.*member.field;
  key["threads"] = tuning.key.threads;
  for (const TunedLaunch& launch : tuning.launches) {
    Json rows = Json::array();
    for (const TunedRow& row : launch.rows) {
      rows.push_back({{"layer", row.layer},
                      {"name", row.name},
                      {"forms", row.forms},
                      {"tile", row.tile_columns},
                      {"predicted_us", row.predicted_us},
                      {"measured_us", row.measured_us},
                      {"noise_us", row.noise_us},
                      {"planned", row.is_planned}});
    }
    launches.push_back({{"tokens", launch.num_tokens},
                        {"sequences", launch.num_seqs},
                        {"logit_rows", launch.num_logit_rows},
                        {"rows", std::move(rows)}});
  }
  return {{"key", std::move(key)}, {"launches", std::move(launches)}};
}

}  // namespace

std::string why_unfit(const TuningKey& found, const TuningKey& key) {
  for (const Member& member : kMembers) {
    const std::string &theirs = found.*member.field, &ours = key.*member.field;
    if (member.is_compared && theirs != ours)
      return fmt::format("its {} is '{}', here it is '{}'", member.name, theirs, ours);
  }
  if (found.threads != key.threads)
    return fmt::format("it is for {} threads, here there are {}", found.threads, key.threads);
  return {};
}

Result<std::vector<Tuning>> parse_tunings(std::string_view text, const std::string& where) {
  std::vector<Tuning> tunings;
  auto parsed = parse_kept(text, where, kForm,
                           [&](JsonFields& entry) { tunings.push_back(read_tuning(entry)); });
  if (!parsed) return fail(std::move(parsed.error()));
  return tunings;
}

std::string tunings_text(const std::vector<Tuning>& tunings) {
  Json list = Json::array();
  for (const Tuning& tuning : tunings) list.push_back(to_json(tuning));
  return kept_text(kForm, std::move(list));
}

Result<std::optional<std::vector<Tuning>>> read_tunings(const std::string& path) {
  const auto text = read_kept_file(path, kMaxTuningFileBytes, "tunings");
  if (!text) return fail(text.error());
  if (!*text) return std::nullopt;
  auto tunings = parse_tunings(**text, path);
  if (!tunings) return fail(std::move(tunings.error()));
  return std::optional(std::move(*tunings));
}

Status write_tunings(const std::string& path, const std::vector<Tuning>& tunings) {
  return write_kept_file(path, tunings_text(tunings), "tuning");
}

void replace_tuning(std::vector<Tuning>* tunings, Tuning tuning) {
  std::erase_if(*tunings, [&](const Tuning& other) {
    return other.key.device == tuning.key.device && other.key.shapes == tuning.key.shapes &&
           other.key.switches == tuning.key.switches && other.key.threads == tuning.key.threads;
  });
  tunings->insert(tunings->begin(), std::move(tuning));
  if (tunings->size() > kMaxTunings) tunings->resize(kMaxTunings);
}

std::string default_tuning_path() { return kept_file_path("tuning.json"); }

}  // namespace moxie
