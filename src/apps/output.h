// What commands write: one JSON document on stdout, whether all of the output was written, and
// files, which are tried before anything is measured.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "core/base.h"
#include "core/json_text.h"

namespace moxie {

/// Prints the document and a newline.
template <typename Json>
void print_document(const Json& document, int indent = 2) {
  fmt::print("{}\n", json_text(document, indent));
}

/// Before a command measures: whether a file can be written at `path`; nothing is asked of an empty
/// one.
Status check_output(const std::string& path);

/// Gives 0, 1 and 2 to /dev/null where they are closed, so that no file of a command is taken for
/// stdout. What is written to 1 then fails.
void hold_standard_streams();

/// At the end of a command: writes what is buffered for stdout. Where some of the output could not
/// be written, says so on stderr (of a pipe that nobody reads, nothing), and returns kExitFailed
/// for kExitDone. `reason`: of a write that failed before, where known.
int finish_output(int exit_code, std::error_code reason = {});

}  // namespace moxie
