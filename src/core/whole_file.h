// Files that are there complete or not at all.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

#include "core/base.h"

namespace moxie {

/// Writes to a temporary file beside the path, which close() renames. A file that was at the path
/// stays as it was until then; a symbolic link stays, and what it names is replaced. What exists
/// and is no regular file (a device, a pipe) is written directly, and never removed.
class WholeFile {
 public:
  /// `what`: for the message of a fault, "record".
  WholeFile(const std::string& path, std::string what);
  ~WholeFile();  ///< without close() before it, removes the temporary file
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  /// Writes after a fault do nothing; status() and close() say that there was one.
  std::ostream& out() { return out_; }
  Status status() const;
  Status close();

 private:
  std::string path_, what_;
  std::string target_;   // behind symbolic links; empty: the path is written directly
  std::string written_;  // until it is renamed
  std::ofstream out_;
};

Status write_whole_file(const std::string& path, std::string_view bytes, const std::string& what);

/// Whether a WholeFile can be written, tried without a change of the file at the path.
Status try_whole_file(const std::string& path, const std::string& what);

}  // namespace moxie
