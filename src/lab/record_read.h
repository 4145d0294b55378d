// Reads records back, strictly: a record that was cut off, edited or made by others is refused with
// the place of its fault, so that no figure is compared that is not what was measured.
#pragma once

#include <string>
#include <string_view>

#include "lab/record.h"

namespace moxie {

/// A record's file, or a document of a command that holds one under "record" (`moxie bench
/// --json`). The fault names the file and the JSON pointer of the place.
Result<Record> read_record(const std::string& path);

/// The same from text; `where` names it in faults.
Result<Record> parse_record(std::string_view text, const std::string& where);

}  // namespace moxie
