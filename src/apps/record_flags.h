// --record and --history: how every command that measures keeps its record. A command
//   1. opens a RecordKeeper before it loads or measures anything,
//   2. describes itself in a Record (describe_command, or record_of in bench_flags.h),
//   3. hands over the record after each part (keep_so_far), and at its end (keep).
#pragma once

#include <optional>
#include <string>

#include "apps/cli.h"
#include "lab/history.h"
#include "lab/record.h"

namespace moxie {

struct RecordFlags {
  std::string record, history;
};
void declare_record_flags(Flags& flags, RecordFlags* o);

/// Sets kind, command and configuration. `name` is the command's, "op bench". Paths of files that
/// exist are made absolute, so that the command can be run from any folder. Switches of output are
/// left out, so that running it again writes nothing over, and keys (--api-key).
void describe_command(const std::string& kind, const std::string& name, const Flags& flags,
                      Record* record);

class RecordKeeper {
 public:
  /// Fails if a record could not be kept where the switches say.
  static Result<RecordKeeper> open(const RecordFlags& o);

  /// Whether a switch asks for the record.
  bool is_asked() const { return !path_.empty() || history_.has_value(); }
  /// Writes the record of a run that goes on, over the one before: what was measured outlives a run
  /// that is ended or fails. Faults are told by keep().
  void keep_so_far(const Record& record) const;
  /// Writes the finished record and adds it to the history. If one of them fails, the record is
  /// kept in the folder of temporary files, or printed to stderr; the fault says where it is.
  Status keep(const Record& record);

 private:
  std::string path_;  ///< empty: not asked for
  std::optional<History> history_;
};

/// At the end of a command: keeps the record, prints a fault, and returns kExitFailed for it, else
/// `exit_code`.
int keep_and_exit(RecordKeeper& keeper, const Record& record, int exit_code);

}  // namespace moxie
