#include "core/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace moxie {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string joined(const std::string& folder, const char* name) {
  return folder.empty() ? "" : folder + (folder.ends_with('/') ? "" : "/") + name;
}

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

std::string expand_path(const std::string& path) {
  std::string text = path;
  if (text == "~" || text.starts_with("~/")) {
    const std::string user = variable("HOME");
    if (!user.empty()) text = user + text.substr(1);
  }
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '$') {
      const bool is_braced = i + 1 < text.size() && text[i + 1] == '{';
      const size_t begin = i + (is_braced ? 2 : 1);
      size_t end = begin;
      while (end < text.size() && is_name(text[end])) ++end;
      const bool is_whole = end > begin && (!is_braced || (end < text.size() && text[end] == '}'));
      const char* value = is_whole ? std::getenv(text.substr(begin, end - begin).c_str()) : nullptr;
      if (value != nullptr) {
        out += value;
        i = is_braced ? end : end - 1;
        continue;
      }
    }
    out += text[i];
  }
  return out;
}

std::string hub_home() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return expand_path(home);
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return joined(expand_path(cache), "huggingface");
  return joined(variable("HOME"), ".cache/huggingface");
}

std::vector<std::string> hub_caches() {
  std::vector<std::string> folders;
  const auto add = [&](const std::string& folder) {
    if (!folder.empty() && std::find(folders.begin(), folders.end(), folder) == folders.end())
      folders.push_back(folder);
  };
  add(expand_path(variable("HF_HUB_CACHE")));
  add(expand_path(variable("HUGGINGFACE_HUB_CACHE")));
  add(joined(hub_home(), "hub"));
  add(joined(expand_path(variable("XDG_CACHE_HOME")), "huggingface/hub"));
  add(joined(variable("HOME"), ".cache/huggingface/hub"));
  return folders;
}

std::string hub_cache() {
  const std::vector<std::string> folders = hub_caches();
  return folders.empty() ? "" : folders.front();
}

std::string hub_repo_folder(std::string repo) {
  for (size_t at = repo.find('/'); at != std::string::npos; at = repo.find('/', at + 2))
    repo.replace(at, 1, "--");
  return "models--" + repo;
}

}  // namespace moxie
