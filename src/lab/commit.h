// The source this binary was built from; the definitions are written at each build
// (cmake/write_commit.cmake).
#pragma once

namespace moxie {

extern const char* const kCommit;  ///< 40 hexadecimal digits, or "unknown"
extern const bool kCommitDirty;    ///< tracked files differed from that commit

}  // namespace moxie
