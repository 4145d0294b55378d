// SQLite's faults are translated to what a person can do about them.
#include "lab/history.h"

#include <sqlite3.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/json_text.h"
#include "lab/stats.h"

namespace moxie {
namespace {

constexpr int kWaitMs = 5000;                   // for another process that adds a record
constexpr int64_t kApplicationId = 0x4d4f5849;  // "MOXI"
constexpr int64_t kVersion = 1;

constexpr const char* kTables = R"sql(
  CREATE TABLE record(id INTEGER PRIMARY KEY, time_utc TEXT NOT NULL, kind TEXT NOT NULL,
    model TEXT NOT NULL, commit_id TEXT NOT NULL, dirty INTEGER NOT NULL, machine TEXT NOT NULL,
    json TEXT NOT NULL);
  CREATE TABLE series(record INTEGER NOT NULL REFERENCES record(id), name TEXT NOT NULL,
    unit TEXT NOT NULL, better TEXT NOT NULL, median REAL NOT NULL, mad REAL NOT NULL,
    samples INTEGER NOT NULL);
  CREATE INDEX series_name ON series(name, record);
  PRAGMA application_id = 1297045577;
  PRAGMA user_version = 1;
)sql";
static_assert(kApplicationId == 1297045577 && kVersion == 1);

// One prepared statement.
class Statement {
 public:
  Statement(sqlite3* database, const char* sql) {
    sqlite3_prepare_v2(database, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& bind(const std::string& text) {
    sqlite3_bind_text64(statement_, ++bound_, text.data(), text.size(), SQLITE_TRANSIENT,
                        SQLITE_UTF8);
    return *this;
  }
  Statement& bind(int64_t value) {
    sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  Statement& bind(double value) {
    sqlite3_bind_double(statement_, ++bound_, value);
    return *this;
  }
  // SQLITE_ROW, SQLITE_DONE, or a fault.
  int step() { return statement_ == nullptr ? SQLITE_ERROR : sqlite3_step(statement_); }
  std::string text(int column) const {
    const auto* bytes = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
    return bytes == nullptr
               ? ""
               : std::string(bytes, static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
  }
  int64_t integer(int column) const { return sqlite3_column_int64(statement_, column); }
  double number(int column) const { return sqlite3_column_double(statement_, column); }

 private:
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

Error explained(int code, const char* message, const std::string& path) {
  switch (code & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return {"the history is locked by another process", path, "try again when that is done"};
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
      return {"is damaged, or no SQLite database", path,
              "move it away: a new one is made; `sqlite3 FILE .recover` may save what is left"};
    case SQLITE_READONLY:
    case SQLITE_PERM:
      return {"cannot be written", path, "check the permissions of the file and its folder"};
    case SQLITE_CANTOPEN:
      return {"cannot be opened", path, "does the folder exist, with permission to write?"};
    case SQLITE_FULL:
      return {"the disk is full", path, ""};
    default:
      return {std::string("SQLite: ") + message, path, ""};
  }
}

// Of a record's configuration. What the name of a series holds, how often it was measured and what
// was printed of it is left out.
std::string given_switches(const std::string& configuration) {
  static const std::set<std::string> kOfTest = {"--model",   "--n-prompt", "--n-gen",
                                                "--n-depth", "--streams",  "--repetitions",
                                                "--warm-up", "--tokens",   "--verbose"};
  std::string text;
  const auto json = nlohmann::json::parse(configuration, nullptr, false);
  if (!json.is_object()) return text;
  for (const auto& [name, setting] : json.items()) {
    if (is_switch_of_output(name) || kOfTest.contains(name)) continue;
    const auto part = [&](const char* key) {
      const auto at = setting.is_object() ? setting.find(key) : setting.end();
      return at != setting.end() && at->is_string() ? at->get<std::string>() : "";
    };
    if (const std::string source = part("source"); source.empty() || source == "default") continue;
    text += (text.empty() ? "" : " ") + name + " " + part("value");
  }
  return text;
}

}  // namespace

void History::Close::operator()(sqlite3* database) const { sqlite3_close(database); }

tl::unexpected<Error> History::fault() const {
  return fail(explained(sqlite3_errcode(database_.get()), sqlite3_errmsg(database_.get()), path_));
}

Status History::run(const char* sql) const {
  if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK) return fault();
  return {};
}

Result<int64_t> History::number(const char* sql) const {
  Statement statement(database_.get(), sql);
  if (statement.step() != SQLITE_ROW) return fault();
  return statement.integer(0);
}

Result<History> History::open(const std::string& path, int flags) {
  sqlite3* opened = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &opened, flags, nullptr);
  History history(opened, path);
  if (code != SQLITE_OK)
    return fail(explained(code, opened == nullptr ? "no memory" : sqlite3_errmsg(opened), path));
  sqlite3_busy_timeout(opened, kWaitMs);
  return history;
}

Status History::check_owner() const {
  const auto id = number("PRAGMA application_id");
  if (!id) return fail(id.error());
  const auto version = number("PRAGMA user_version");
  if (!version) return fail(version.error());
  if (*id != kApplicationId)
    return fail("is a database of another program", path_, "name another file");
  if (*version != kVersion)
    return fail("is of version " + std::to_string(*version) + ", this program reads " +
                    std::to_string(kVersion),
                path_);
  return {};
}

Result<History> History::open_to_add(const std::string& path) {
  auto history = open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (!history) return history;
  if (sqlite3_db_readonly(history->database_.get(), "main") == 1)
    return fail(explained(SQLITE_READONLY, "", path));
  if (auto status = history->run("BEGIN IMMEDIATE"); !status) return fail(status.error());
  const auto num_tables = history->number("SELECT count(*) FROM sqlite_master");
  if (!num_tables) return fail(num_tables.error());
  Status status = *num_tables == 0 ? history->run(kTables) : history->check_owner();
  if (status) status = history->run("COMMIT");
  if (!status) return fail(status.error());
  return history;
}

Result<History> History::open_to_read(const std::string& path) {
  auto history = open(path, SQLITE_OPEN_READONLY);
  if (!history) return history;
  if (auto status = history->check_owner(); !status) return fail(status.error());
  return history;
}

Status History::add(const Record& record) {
  if (auto status = run("BEGIN IMMEDIATE"); !status) return status;
  const auto undo = [&] {
    auto error = fault();  // before the rollback replaces it
    static_cast<void>(run("ROLLBACK"));
    return error;
  };
  const Environment& e = record.environment;
  Statement head(database_.get(),
                 "INSERT INTO record(time_utc, kind, model, commit_id, dirty, machine, json) "
                 "VALUES(?, ?, ?, ?, ?, ?, ?)");
  const std::string machine = e.gpus.empty() ? e.cpu : e.gpus.front().name;
  const std::string json = json_text(to_json(record));
  head.bind(e.time_utc).bind(record.kind).bind(record.weights.model).bind(e.commit);
  head.bind(int64_t{e.dirty}).bind(machine).bind(json);
  if (head.step() != SQLITE_DONE) return undo();
  const int64_t id = sqlite3_last_insert_rowid(database_.get());
  for (const Series& one : record.results) {
    const Summary summary = summarize(one.samples);
    Statement row(database_.get(),
                  "INSERT INTO series(record, name, unit, better, median, mad, samples) "
                  "VALUES(?, ?, ?, ?, ?, ?, ?)");
    row.bind(id).bind(one.name).bind(one.unit);
    row.bind(std::string(better_name(one.better)));
    row.bind(summary.median).bind(summary.mad).bind(summary.count);
    if (row.step() != SQLITE_DONE) return undo();
  }
  if (!run("COMMIT")) return undo();
  return {};
}

Result<std::vector<HistoryPoint>> History::points(const HistoryFilter& filter) const {
  Statement rows(database_.get(),
                 "SELECT time_utc, kind, model, commit_id, machine, name, unit, better, dirty, "
                 "median, mad, samples, json_extract(json, '$.configuration') "
                 "FROM record JOIN series ON series.record = record.id "
                 "WHERE (?1 = '' OR name = ?1) AND (?2 = '' OR kind = ?2) "
                 "AND (?3 = '' OR instr(model, ?3) > 0) "
                 "AND (?4 = '' OR substr(commit_id, 1, length(?4)) = ?4) "
                 "ORDER BY record.id, series.rowid");
  rows.bind(filter.series).bind(filter.kind).bind(filter.model).bind(filter.commit);
  std::vector<HistoryPoint> points;
  std::string configuration, switches;  // of the record whose series come one after another
  int code = rows.step();
  for (; code == SQLITE_ROW; code = rows.step()) {
    if (std::string text = rows.text(12); text != configuration) {
      switches = given_switches(text);
      configuration = std::move(text);
    }
    points.push_back({.time_utc = rows.text(0),
                      .kind = rows.text(1),
                      .model = rows.text(2),
                      .commit = rows.text(3),
                      .machine = rows.text(4),
                      .series = rows.text(5),
                      .unit = rows.text(6),
                      .better = rows.text(7),
                      .switches = switches,
                      .dirty = rows.integer(8) != 0,
                      .median = rows.number(9),
                      .mad = rows.number(10),
                      .samples = rows.integer(11)});
  }
  if (code != SQLITE_DONE) return fault();
  return points;
}

}  // namespace moxie
