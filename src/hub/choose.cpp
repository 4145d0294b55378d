// Which files of a repository are fetched.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>

#include "hub/listing.h"
#include "hub/names.h"

namespace moxie::hub {
namespace {

using Files = std::vector<RepoFile>;

bool matches_any(const std::vector<std::string>& patterns, std::string_view path) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return matches(pattern, path); });
}

Files matching(const Files& files, const std::vector<std::string>& patterns) {
  Files chosen;
  for (const RepoFile& file : files) {
    if (matches_any(patterns, file.path)) chosen.push_back(file);
  }
  return chosen;
}

// What Moxie reads of one folder, by the names below it.
Files readable_in(const Files& files, const std::string& folder) {
  const std::vector<std::string> patterns = {"*.safetensors", "*.json", "*.tiktoken", "tokenizer*"};
  Files chosen;
  for (const RepoFile& file : files) {
    if (!file.path.starts_with(folder)) continue;
    const std::string_view name = std::string_view(file.path).substr(folder.size());
    if (name.find('/') == std::string_view::npos && matches_any(patterns, name))
      chosen.push_back(file);
  }
  return chosen;
}

bool has_weights(const Files& files) {
  return std::any_of(files.begin(), files.end(),
                     [](const RepoFile& file) { return file.path.ends_with(".safetensors"); });
}

// "x-00001-of-00003.gguf" is a part of the model "x".
std::string gguf_model(const std::string& path) {
  std::string name = path.substr(0, path.size() - std::string_view(".gguf").size());
  constexpr size_t kSuffix = std::string_view("-00001-of-00003").size();
  if (name.size() > kSuffix && matches("-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]",
                                       std::string_view(name).substr(name.size() - kSuffix)))
    name.resize(name.size() - kSuffix);
  return name;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// The only model in GGUF, or the only one in MXFP4: the others would be the same weights again.
Result<Files> choose_gguf(const Files& files) {
  std::map<std::string, Files> models;
  for (const RepoFile& file : files) {
    if (file.path.ends_with(".gguf") && !matches("*mmproj*", file.path) &&
        !matches("*imatrix*", file.path))
      models[gguf_model(file.path)].push_back(file);
  }
  if (models.size() == 1) return models.begin()->second;
  std::string names;
  std::vector<std::string> in_mxfp4;
  for (const auto& [name, parts] : models) {
    if (lower(name).find("mxfp4") != std::string::npos) in_mxfp4.push_back(name);
    names += (names.empty() ? "" : ", ") + printable_line(parts.front().path);
  }
  if (in_mxfp4.size() == 1) return models[in_mxfp4.front()];
  if (models.empty())
    return fail("holds no safetensors and no GGUF", "", "name files by --include GLOB");
  return fail(fmt::format("holds {} models in GGUF: {}", models.size(), names), "",
              "name one by --include GLOB");
}

// Chosen files alone are looked at: nothing else is written anywhere.
Status check_paths(const Files& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    if (Status status = check_file_path(files[i].path); !status) return status;
    if (i > 0 && files[i].path == files[i - 1].path)
      return fail("the hub lists this file twice", files[i].path, "check HF_ENDPOINT");
  }
  return {};
}

}  // namespace

Result<Files> choose_files(const Files& files, const std::vector<std::string>& include) {
  Files chosen;
  if (!include.empty()) {
    chosen = matching(files, include);
    if (chosen.empty())
      return fail("no file matches", "--include", "see what there is by --include '*' --dry-run");
  } else {
    chosen = readable_in(files, "");
    if (!has_weights(chosen)) chosen = readable_in(files, "original/");
    if (!has_weights(chosen)) {
      Result<Files> gguf = choose_gguf(files);
      if (!gguf) return gguf;
      chosen = std::move(*gguf);
    }
  }
  if (Status status = check_paths(chosen); !status) return fail(status.error());
  return chosen;
}

}  // namespace moxie::hub
