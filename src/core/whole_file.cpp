// Writes beside the path and renames, which is one act for those who look.
#include "core/whole_file.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <utility>

namespace moxie {
namespace {

namespace fs = std::filesystem;

bool is_written_directly(const std::string& path) {
  std::error_code error;
  const fs::file_status found = fs::status(path, error);
  return fs::exists(found) && !fs::is_regular_file(found);
}

// The file that symbolic links name; it need not exist.
std::string behind_links(fs::path path) {
  constexpr int kMostLinks = 40;  // as Linux follows
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(path, error)); ++i)
    path = path.parent_path() / fs::read_symlink(path, error);
  return path.string();
}

}  // namespace

WholeFile::WholeFile(const std::string& path, std::string what)
    : path_(path), what_(std::move(what)) {
  if (!is_written_directly(path)) target_ = behind_links(path);
  written_ = target_.empty() ? path : target_ + "." + std::to_string(::getpid()) + ".partial";
  out_.open(written_, std::ios::binary);
}

WholeFile::~WholeFile() {
  out_.close();
  if (!target_.empty() && !written_.empty()) std::remove(written_.c_str());
}

Status WholeFile::status() const {
  if (out_) return {};
  return fail("cannot write the " + what_, path_, "does the folder exist, and is there room?");
}

Status WholeFile::close() {
  out_.close();
  if (!out_ || target_.empty()) return status();
  std::error_code error;
  const fs::file_status before = fs::status(target_, error);
  if (fs::exists(before)) fs::permissions(written_, before.permissions(), error);
  if (std::rename(written_.c_str(), target_.c_str()) == 0)
    written_.clear();
  else
    out_.setstate(std::ios::failbit);
  return status();
}

Status write_whole_file(const std::string& path, std::string_view bytes, const std::string& what) {
  WholeFile file(path, what);
  file.out() << bytes;
  return file.close();
}

Status try_whole_file(const std::string& path, const std::string& what) {
  if (is_written_directly(path)) {  // to open a pipe would await its reader
    if (fs::is_directory(path)) return fail("is a folder", path, "name a file in it");
    if (::access(path.c_str(), W_OK) == 0) return {};
    return fail("cannot write the " + what, path, "check its permissions");
  }
  WholeFile file(path, what);
  file.out() << "{}\n" << std::flush;
  return file.status();
}

}  // namespace moxie
