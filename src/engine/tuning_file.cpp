#include "engine/tuning_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/whole_file.h"
#include "text/harmony_json.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kForm = "moxie tuning 1";
constexpr size_t kMaxTunings = 64, kMaxLaunches = 256, kMaxRows = 4096, kMaxTextBytes = 4096;
constexpr int64_t kMostTokens = 1 << 22, kMostLayers = 1 << 16, kMostThreads = 1 << 16;
constexpr double kMostUs = 1e12;

struct Member {
  const char* name;
  std::string TuningKey::*field;
  bool is_compared = true;
};
constexpr Member kMembers[] = {{"device", &TuningKey::device},      {"driver", &TuningKey::driver},
                               {"features", &TuningKey::features},  {"commit", &TuningKey::commit},
                               {"model", &TuningKey::model, false}, {"shapes", &TuningKey::shapes},
                               {"switches", &TuningKey::switches}};

// Reads members of one object; keeps the first fault. Every member must be read.
class Reader {
 public:
  Reader(const Json& object, std::string at) : object_(object), at_(std::move(at)) {
    if (!object.is_object()) say("", "is no object");
  }

  std::string text(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return {};
    if (!value->is_string() || value->get_ref<const std::string&>().size() > kMaxTextBytes)
      return say(name, "is no short text"), std::string();
    return value->get<std::string>();
  }
  int32_t integer(const char* name, int64_t least, int64_t most) {
    const Json* value = find(name);
    if (value == nullptr) return static_cast<int32_t>(least);
    const bool is_one = value->is_number_integer() &&
                        !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
    if (!is_one || value->get<int64_t>() < least || value->get<int64_t>() > most)
      return say(name, fmt::format("is no whole number from {} to {}", least, most)),
             static_cast<int32_t>(least);
    return static_cast<int32_t>(value->get<int64_t>());
  }
  double microseconds(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return 0;
    const double us = value->is_number() ? value->get<double>() : -1;
    if (!(us >= 0 && us <= kMostUs)) return say(name, "is no time in microseconds"), 0.0;
    return us;
  }
  bool boolean(const char* name) {
    const Json* value = find(name);
    if (value == nullptr) return false;
    if (!value->is_boolean()) return say(name, "is neither true nor false"), false;
    return value->get<bool>();
  }
  /// Calls visit(entry, its place) for each of a list's entries, until there is a fault.
  template <typename Visit>
  void list(const char* name, size_t most, Visit&& visit) {
    const Json* value = find(name);
    if (value == nullptr) return;
    if (!value->is_array() || value->size() > most)
      return say(name, fmt::format("is no list of at most {} entries", most));
    for (size_t i = 0; i < value->size() && fault_.empty(); ++i)
      visit((*value)[i], fmt::format("{}/{}/{}", at_, name, i));
  }
  /// An object's place, and the object.
  const Json& member(const char* name) {
    const Json* value = find(name);
    static const Json kNothing;
    return value == nullptr ? kNothing : *value;
  }
  std::string place(const char* name) const { return at_ + "/" + name; }
  void take(const std::string& fault) {
    if (fault_.empty()) fault_ = fault;
  }
  void say(const char* name, const std::string& what) {
    take(fmt::format("{} {}", *name == '\0' ? (at_.empty() ? "the document" : at_) : place(name),
                     what));
  }
  /// The first fault, or a member that nobody has read; empty: none.
  std::string end() {
    if (fault_.empty() && object_.size() != num_read_) {
      for (const auto& [name, value] : object_.items()) {
        if (std::find(read_.begin(), read_.end(), name) == read_.end())
          say("", "has an unknown member '" + name.substr(0, 100) + "'");
      }
    }
    return fault_;
  }

 private:
  const Json* find(const char* name) {
    if (!fault_.empty()) return nullptr;
    const auto found = object_.find(name);
    if (found == object_.end()) return say(name, "is missing"), nullptr;
    read_.emplace_back(name);
    ++num_read_;
    return &*found;
  }

  const Json& object_;
  std::string at_, fault_;
  std::vector<std::string> read_;
  size_t num_read_ = 0;
};

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
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  if (!std::filesystem::is_regular_file(path, error))
    return fail("is no regular file", path, "name a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail("cannot be opened", path, "check its permissions");
  std::string text;
  std::vector<char> block(1 << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > kMaxTuningFileBytes)
      return fail(fmt::format("is longer than {} bytes", kMaxTuningFileBytes), path,
                  "it is no file of tunings");
  }
  auto tunings = parse_tunings(text, path);
  if (!tunings) return fail(std::move(tunings.error()));
  return std::optional(std::move(*tunings));
}

Status write_tunings(const std::string& path, const std::vector<Tuning>& tunings) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  return write_whole_file(path, tunings_text(tunings), "tuning");
}

void replace_tuning(std::vector<Tuning>* tunings, Tuning tuning) {
  std::erase_if(*tunings, [&](const Tuning& other) {
    return other.key.device == tuning.key.device && other.key.shapes == tuning.key.shapes &&
           other.key.switches == tuning.key.switches && other.key.threads == tuning.key.threads;
  });
  tunings->insert(tunings->begin(), std::move(tuning));
  if (tunings->size() > kMaxTunings) tunings->resize(kMaxTunings);
}

std::string default_tuning_path() {
  const auto folder = [](const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? std::string() : std::string(value);
  };
  std::string cache = folder("XDG_CACHE_HOME");
  if (cache.empty() || cache.front() != '/') {
    cache = folder("HOME");
    if (cache.empty()) return {};
    cache += "/.cache";
  }
  return cache + "/moxie/tuning.json";
}

}  // namespace moxie
