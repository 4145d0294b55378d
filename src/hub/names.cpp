#include "hub/names.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace moxie::hub {
namespace {

constexpr size_t kMaxPathBytes = 1024, kMaxPartBytes = 255, kMaxRepoBytes = 96;

bool is_hex(std::string_view text, size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Control characters of ASCII, and those of Latin-1 in UTF-8 (U+0080 to U+009F), which terminals
// obey.
bool has_control(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) return true;
    if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0)
      return true;
  }
  return false;
}

std::vector<std::string_view> parts_of(std::string_view path) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t slash = path.find('/');
    parts.push_back(path.substr(0, slash));
    if (slash == std::string_view::npos) return parts;
    path.remove_prefix(slash + 1);
  }
}

// Why a path cannot be one below a folder; empty if it can.
const char* fault_of_path(std::string_view path) {
  if (path.empty()) return "is empty";
  if (path.size() > kMaxPathBytes) return "is too long";
  if (has_control(path)) return "holds control characters";
  if (path.find('\\') != std::string_view::npos) return "holds a backslash";
  if (path.front() == '/') return "is absolute";
  for (const std::string_view part : parts_of(path)) {
    if (part.empty()) return "has an empty part";
    if (part == "." || part == "..") return "holds '.' or '..'";
    if (part.size() > kMaxPartBytes) return "is too long";
  }
  return "";
}

// Matches one [set] at the head of `pattern`; how many characters the set takes, 0 if it has no
// end.
size_t set_matches(std::string_view pattern, char c, bool* is_in) {
  size_t at = 1;
  const bool is_negated = at < pattern.size() && pattern[at] == '!';
  if (is_negated) ++at;
  const size_t first = at;
  bool found = false;
  for (; at < pattern.size() && (pattern[at] != ']' || at == first); ++at) {
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' && pattern[at + 2] != ']') {
      found |= pattern[at] <= c && c <= pattern[at + 2];
      at += 2;
    } else {
      found |= pattern[at] == c;
    }
  }
  if (at >= pattern.size()) return 0;
  *is_in = found != is_negated;
  return at + 1;
}

// How many characters of the pattern match `c`; 0 if it does not.
size_t one_matches(std::string_view pattern, char c) {
  if (pattern.empty()) return 0;
  if (pattern[0] == '?') return 1;
  if (pattern[0] == '[') {
    bool is_in = false;
    const size_t size = set_matches(pattern, c, &is_in);
    if (size > 0) return is_in ? size : 0;
  }
  return pattern[0] == c ? 1 : 0;
}

}  // namespace

Status check_repo(const std::string& repo) {
  const auto refuse = [&](const char* what) {
    return fail(std::string("is no repo id: it ") + what, printable_line(repo),
                "a repo id is org/name, such as openai/gpt-oss-20b");
  };
  if (repo.empty() || repo.size() > kMaxRepoBytes) return refuse("must have 1 to 96 characters");
  if (std::count(repo.begin(), repo.end(), '/') > 1) return refuse("has more than one '/'");
  for (const std::string_view part : parts_of(repo)) {
    if (part.empty()) return refuse("has an empty part");
    if (part.front() == '-' || part.front() == '.' || part.back() == '-' || part.back() == '.')
      return refuse("has a part that begins or ends with '-' or '.'");
  }
  if (!std::all_of(repo.begin(), repo.end(), [](char c) {
        return is_alnum(c) || c == '/' || c == '-' || c == '_' || c == '.';
      }))
    return refuse("may hold letters, digits, '-', '_' and '.' only");
  if (repo.find("--") != std::string::npos || repo.find("..") != std::string::npos)
    return refuse("may not hold '--' or '..'");
  return {};
}

Status check_revision(const std::string& revision) {
  const std::string fault = fault_of_path(revision);
  if (!fault.empty()) {
    return fail("is no revision: it " + fault, printable_line(revision),
                "a revision is a branch, a tag or a commit");
  }
  return {};
}

Status check_file_path(const std::string& path) {
  const std::string fault = fault_of_path(path);
  if (!fault.empty()) {
    return fail("the hub lists a file whose name " + fault, printable_line(path),
                "nothing is written: such a name could lie outside the cache");
  }
  return {};
}

bool is_commit(std::string_view text) { return is_hex(text, 40); }
bool is_sha256(std::string_view text) { return is_hex(text, 64); }

std::string normalized_etag(std::string_view etag) {
  while (!etag.empty() && (etag.front() == 'W' || etag.front() == '/')) etag.remove_prefix(1);
  while (!etag.empty() && etag.front() == '"') etag.remove_prefix(1);
  while (!etag.empty() && etag.back() == '"') etag.remove_suffix(1);
  const bool is_name = std::all_of(etag.begin(), etag.end(),
                                   [](char c) { return is_alnum(c) || c == '-' || c == '_'; });
  return is_name && etag.size() <= kMaxPartBytes ? std::string(etag) : "";
}

bool matches(std::string_view pattern, std::string_view path) {
  std::string folder;
  if (pattern.ends_with('/')) folder = std::string(pattern) + "*", pattern = folder;
  size_t p = 0, c = 0, star = std::string_view::npos, starred = 0;
  while (c < path.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      starred = c;
    } else if (const size_t taken =
                   one_matches(pattern.substr(std::min(p, pattern.size())), path[c]);
               taken > 0) {
      p += taken;
      ++c;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      c = ++starred;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::string url_quoted(std::string_view text, bool keeps_slashes) {
  constexpr std::array kDigits = {'0', '1', '2', '3', '4', '5', '6', '7',
                                  '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'};
  std::string out;
  for (const char c : text) {
    if (is_alnum(c) || c == '-' || c == '.' || c == '_' || c == '~' ||
        (c == '/' && keeps_slashes)) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return out;
}

std::string next_link(std::string_view link) {
  while (!link.empty()) {
    const size_t open = link.find('<');
    if (open == std::string_view::npos) break;
    const size_t close = link.find('>', open);
    if (close == std::string_view::npos) break;
    const std::string_view url = link.substr(open + 1, close - open - 1);
    const size_t end = link.find('<', close);  // the next link, whose comma does no harm here
    const std::string_view parameters = link.substr(close, end - close);
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos)
      return std::string(url);
    link = end == std::string_view::npos ? std::string_view() : link.substr(end);
  }
  return "";
}

std::string printable_line(std::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t i = 0; i < text.size() && out.size() < max_bytes; ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool is_c1 =
        c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (is_c1) ++i;
    out += c < 0x20 || c == 0x7f || is_c1 ? '?' : text[i];
  }
  return out;
}

}  // namespace moxie::hub
