#include "engine/kept_file.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "core/json_text.h"
#include "core/whole_file.h"

namespace moxie {

std::string kept_file_path(const std::string& name) {
  const auto folder = [](const char* variable) {
    const char* value = std::getenv(variable);
    return value == nullptr ? std::string() : std::string(value);
  };
  std::string cache = folder("XDG_CACHE_HOME");
  if (cache.empty() || cache.front() != '/') {
    cache = folder("HOME");
    if (cache.empty()) return {};
    cache += "/.cache";
  }
  return cache + "/moxie/" + name;
}

Result<std::optional<std::string>> read_kept_file(const std::string& path, uint64_t most_bytes,
                                                  const std::string& what) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return std::nullopt;
  if (!std::filesystem::is_regular_file(path, error))
    return fail("is no regular file", path, "name a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail("cannot be opened", path, "check its permissions");
  std::string text;
  std::vector<char> block(1 << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0) {
    text.append(block.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > most_bytes)
      return fail(fmt::format("is longer than {} bytes", most_bytes), path,
                  "it is no file of " + what);
  }
  return std::optional(std::move(text));
}

Status write_kept_file(const std::string& path, std::string_view text, const std::string& what) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  return write_whole_file(path, text, what);
}

Status parse_kept(std::string_view text, const std::string& where, const KeptForm& form,
                  const std::function<void(JsonFields&)>& read) {
  const auto parsed = parse_json(text, where);
  if (!parsed) return fail(parsed.error().what, where, form.mend);
  JsonFields::Fault fault;
  JsonFields fields(*parsed, "", where, &fault);
  if (fields.text("form", kMostKeptText) != form.form)
    fields.refuse("form", fmt::format("is not \"{}\"", form.form));
  fields.objects(form.list, read, form.most_entries);
  fields.done();
  if (fault) return fail(fault->what, where, form.mend);
  return {};
}

std::string kept_text(const KeptForm& form, nlohmann::ordered_json list) {
  using Json = nlohmann::ordered_json;
  const Json document{{"form", form.form}, {form.list, std::move(list)}};
  return json_text(document, 1) + "\n";
}

}  // namespace moxie
