// Writes beside the path and renames, which is one act for those who look.
#include "core/whole_file.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace moxie {

Status write_whole_file(const std::string& path, std::string_view bytes, const std::string& what) {
  const std::string partial = path + "." + std::to_string(::getpid()) + ".partial";
  std::ofstream file(partial, std::ios::binary);
  file << bytes;
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    std::remove(partial.c_str());
    return fail("cannot write the " + what, path, "does the folder exist, and is there room?");
  }
  return {};
}

}  // namespace moxie
