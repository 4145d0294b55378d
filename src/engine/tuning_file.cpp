#include "engine/tuning_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/kept_file.h"
#include "engine/strict_json.h"
#include "text/harmony_json.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;
using Reader = StrictReader;

constexpr const char* kForm = "moxie tuning 1";
constexpr size_t kMaxTunings = 64, kMaxLaunches = 256, kMaxRows = 4096;
constexpr int64_t kMostTokens = 1 << 22, kMostLayers = 1 << 16, kMostThreads = 1 << 16;

struct Member {
  const char* name;
  std::string TuningKey::*field;
  bool is_compared = true;
};
constexpr Member kMembers[] = {{"device", &TuningKey::device},      {"driver", &TuningKey::driver},
                               {"features", &TuningKey::features},  {"commit", &TuningKey::commit},
                               {"model", &TuningKey::model, false}, {"shapes", &TuningKey::shapes},
                               {"switches", &TuningKey::switches}};

std::string read_key(const Json& object, const std::string& at, TuningKey* key) {
  Reader reader(object, at);
  for (const Member& member : kMembers) key->*member.field = reader.text(member.name);
  key->threads = reader.integer("threads", 0, kMostThreads);
  return reader.end();
}

std::string read_row(const Json& object, const std::string& at, TunedRow* row) {
  Reader reader(object, at);
  row->layer = reader.integer("layer", 0, kMostLayers);
  row->name = reader.text("name");
  row->forms = reader.text("forms");
  row->tile_columns = reader.integer("tile", 0, kMostTokens);
  row->predicted_us = reader.microseconds("predicted_us");
  row->measured_us = reader.microseconds("measured_us");
  row->noise_us = reader.microseconds("noise_us");
  row->is_planned = reader.boolean("planned");
  return reader.end();
}

std::string read_launch(const Json& object, const std::string& at, TunedLaunch* launch) {
  Reader reader(object, at);
  launch->num_tokens = reader.integer("tokens", 1, kMostTokens);
  launch->num_seqs = reader.integer("sequences", 1, kMostTokens);
  launch->num_logit_rows = reader.integer("logit_rows", 0, kMostTokens);
  reader.list("rows", kMaxRows, [&](const Json& entry, const std::string& place) {
    reader.take(read_row(entry, place, &launch->rows.emplace_back()));
  });
  for (const TunedRow& row : launch->rows) {
    const auto is_same = [&](const TunedRow& other) {
      return other.layer == row.layer && other.name == row.name && other.forms == row.forms &&
             other.tile_columns == row.tile_columns;
    };
    if (std::count_if(launch->rows.begin(), launch->rows.end(), is_same) > 1)
      reader.say("rows", "has a row twice");
  }
  return reader.end();
}

std::string read_tuning(const Json& object, const std::string& at, Tuning* tuning) {
  Reader reader(object, at);
  reader.take(read_key(reader.member("key"), reader.place("key"), &tuning->key));
  reader.list("launches", kMaxLaunches, [&](const Json& entry, const std::string& place) {
    reader.take(read_launch(entry, place, &tuning->launches.emplace_back()));
  });
  return reader.end();
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
  constexpr const char* kMend = "remove the file; `moxie tune` writes another";
  const auto parsed = harmony::parse_json_bounded(text, where);
  if (!parsed) return fail("is no JSON: " + parsed.error().what, where, kMend);
  Reader reader(**parsed, "");
  const std::string form = reader.text("form");
  if (form != kForm) reader.take(fmt::format("/form is not \"{}\"", kForm));
  std::vector<Tuning> tunings;
  reader.list("tunings", kMaxTunings, [&](const Json& entry, const std::string& place) {
    reader.take(read_tuning(entry, place, &tunings.emplace_back()));
  });
  if (std::string fault = reader.end(); !fault.empty()) return fail(std::move(fault), where, kMend);
  return tunings;
}

std::string tunings_text(const std::vector<Tuning>& tunings) {
  Json list = Json::array();
  for (const Tuning& tuning : tunings) list.push_back(to_json(tuning));
  return Json{{"form", kForm}, {"tunings", std::move(list)}}.dump(1, ' ', false,
                                                                  Json::error_handler_t::replace) +
         "\n";
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
