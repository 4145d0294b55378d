// A record is written beside its place and renamed, so the folder must take a new file.
#include "apps/record_flags.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>

#include "apps/switches.h"
#include "core/json_text.h"
#include "core/shown_address.h"
#include "core/whole_file.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

// Not to be kept anywhere.
constexpr const char* kSecretSwitches[] = {"--api-key"};

bool is_secret(const std::string& name) {
  return std::find(std::begin(kSecretSwitches), std::end(kSecretSwitches), name) !=
         std::end(kSecretSwitches);
}

std::string absolute_if_there(const std::string& path) {
  std::error_code error;
  if (path.empty() || !fs::exists(path, error)) return path;
  return fs::absolute(path, error).lexically_normal().string();
}

// The value of a switch that names a model or a file, as any folder understands it.
std::string anywhere(const std::string& name, const std::string& value) {
  constexpr std::string_view kSynthetic = "synthetic:";
  const Takes takes = takes_of(name);
  if (takes == Takes::kModel && value.starts_with(kSynthetic))
    return std::string(kSynthetic) + absolute_if_there(value.substr(kSynthetic.size()));
  if (takes == Takes::kModel && value == "embedded") return value;
  const bool is_path = takes == Takes::kModel || takes == Takes::kFile || takes == Takes::kFolder;
  return is_path ? absolute_if_there(value) : value;
}

Status check_writable(const std::string& path) { return try_whole_file(path, "record"); }

// Where a record is that could not be kept at its place.
std::string rescue(const Record& record) {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  const std::string path =
      (folder / ("moxie-record-" + std::to_string(::getpid()) + ".json")).string();
  if (!error && write_record(record, path)) return "the record is in " + path;
  const auto text = json_text(to_json(record));
  std::fprintf(stderr, "%s\n", text.c_str());
  return "the record is above";
}

}  // namespace

void declare_record_flags(Flags& flags, RecordFlags* o) {
  flags.text("--record", &o->record,
             "write the record of the run to this file: figures with all that they depend on");
  flags.text("--history", &o->history,
             "add the record to this file, made if it is not there (SQLite): moxie bench history");
}

void describe_command(const std::string& kind, const std::string& name, const Flags& flags,
                      Record* record) {
  record->kind = kind;
  record->command.name = name;
  record->command.arguments.clear();
  for (const std::string& word : flags.arguments()) {
    const size_t equals = word.starts_with("-") ? word.find('=') : std::string::npos;
    const std::string flag = word.substr(0, equals);
    if (is_switch_of_output(flag) || is_secret(flag)) continue;
    record->command.arguments.push_back(shown_address(
        equals == std::string::npos ? word : flag + "=" + anywhere(flag, word.substr(equals + 1))));
  }
  record->configuration.clear();
  for (const auto& setting : flags.settings()) {
    const bool is_hidden = is_secret(setting.name) && !setting.value.empty();
    record->configuration.push_back(
        {setting.name, is_hidden ? "(hidden)" : shown_address(setting.value), setting.source});
  }
}

Result<RecordKeeper> RecordKeeper::open(const RecordFlags& o) {
  RecordKeeper keeper;
  keeper.path_ = o.record;
  if (!o.record.empty()) {
    if (auto status = check_writable(o.record); !status) return fail(std::move(status.error()));
  }
  if (!o.history.empty()) {
    auto history = History::open_to_add(o.history);
    if (!history) return fail(std::move(history.error()));
    keeper.history_ = std::move(*history);
  }
  return keeper;
}

void RecordKeeper::keep_so_far(const Record& record) const {
  if (!path_.empty()) static_cast<void>(write_record(record, path_));
}

Status RecordKeeper::keep(const Record& record) {
  Status written, added;
  if (!path_.empty()) written = write_record(record, path_);
  if (history_) added = history_->add(record);
  if (written && added) return {};
  Error fault = written ? added.error() : written.error();
  const bool is_in_file = written.has_value() && !path_.empty();
  const std::string where = is_in_file ? "the record is in " + path_ : rescue(record);
  fault.hint = fault.hint.empty() ? where : fault.hint + "; " + where;
  return fail(std::move(fault));
}

int keep_and_exit(RecordKeeper& keeper, const Record& record, int exit_code) {
  auto status = keeper.keep(record);
  return status ? exit_code : report(status.error());
}

}  // namespace moxie
