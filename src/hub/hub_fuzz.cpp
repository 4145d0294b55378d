// Any bytes as what a hub sends: a listing, a commit, headers, names. No crash, and what is
// accepted cannot leave its folder.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "hub/http.h"
#include "hub/listing.h"
#include "hub/names.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moxie;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<hub::RepoFile> files;
  if (hub::parse_tree_page(text, &files)) {
    if (const auto chosen = hub::choose_files(files, {"*"})) {
      for (const hub::RepoFile& file : *chosen) {
        const std::string inside = "/" + file.path + "/";
        CHECK(inside.find("/../") == std::string::npos && inside.find("//") == std::string::npos);
        CHECK(hub::is_commit(file.etag) || hub::is_sha256(file.etag));
      }
    }
    (void)hub::choose_files(files, {});
  }
  if (const auto commit = hub::parse_commit(text)) CHECK(hub::is_commit(*commit));
  std::string name, value;
  hub::split_header(text, &name, &value);
  CHECK(hub::next_link(text).size() <= size);
  CHECK(hub::normalized_etag(text).find('/') == std::string::npos);
  CHECK(hub::printable_line(text).find('\x1b') == std::string::npos);
  const size_t half = size / 2;
  hub::matches(text.substr(0, half), text.substr(half));
  (void)hub::check_repo(std::string(text));
  CHECK(hub::url_quoted(text, false).find('/') == std::string::npos);
  return 0;
}
