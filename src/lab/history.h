// Records over time, in one SQLite file: each record whole, and its series in a table that can be
// asked by name, model and commit.
//
// Tables: record(id, time_utc, kind, model, commit_id, dirty, machine, json) and series(record,
// name, unit, better, median, mad, samples). The file's application id tells it from other
// programs' databases.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lab/record.h"

struct sqlite3;

namespace moxie {

/// Empty texts match everything.
struct HistoryFilter {
  std::string series, kind;  ///< whole names
  std::string model;         ///< a part of the name
  std::string commit;        ///< its first digits
};

/// One series of one record.
struct HistoryPoint {
  std::string time_utc, kind, model, commit, machine, series, unit, better;
  std::string switches;  ///< as given, "NAME VALUE ..."; without those of a series' name
  bool dirty = false;
  double median = 0, mad = 0;
  int64_t samples = 0;
};

class History {
 public:
  /// For adding records: makes the file if there is none, and takes its lock once, so that a file
  /// that is locked, damaged, read-only or another program's is found before anything is measured.
  static Result<History> open_to_add(const std::string& path);
  /// For reading; fails if there is no such file.
  static Result<History> open_to_read(const std::string& path);

  /// Adds the record, whole or not at all.
  Status add(const Record& record);
  /// In the order in which they were added.
  Result<std::vector<HistoryPoint>> points(const HistoryFilter& filter) const;

 private:
  struct Close {
    void operator()(sqlite3* database) const;
  };
  History(sqlite3* database, std::string path) : database_(database), path_(std::move(path)) {}
  static Result<History> open(const std::string& path, int flags);
  Status check_owner() const;
  Status run(const char* sql) const;
  Result<int64_t> number(const char* sql) const;
  tl::unexpected<Error> fault() const;

  std::unique_ptr<sqlite3, Close> database_;
  std::string path_;
};

}  // namespace moxie
