// Resolves `--model`, also in the local Hugging Face cache.
#include "model/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "core/hub_cache.h"
#include "model/checkpoint_open.h"
#include "weights/mapped_file.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

// "org/name" with the characters that the hub allows.
bool is_repo_id(const std::string& model) {
  if (std::count(model.begin(), model.end(), '/') != 1) return false;
  if (model.front() == '/' || model.back() == '/' || model.front() == '.') return false;
  if (model.ends_with(".gguf") || model.ends_with(".safetensors")) return false;
  return std::all_of(model.begin(), model.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '/' || c == '-' || c == '_' || c == '.';
  });
}

// The snapshot that refs/main names, or else the only or latest one.
Result<std::string> snapshot_of(const fs::path& repo, const std::string& repo_id) {
  std::error_code ignored;
  if (Result<std::string> revision = read_text_file((repo / "refs" / "main").string(), 4096)) {
    std::string name = *revision;
    name.erase(std::remove_if(name.begin(), name.end(),
                              [](unsigned char c) { return std::isalnum(c) == 0; }),
               name.end());
    const fs::path snapshot = repo / "snapshots" / name;
    if (!name.empty() && fs::is_directory(snapshot, ignored)) return snapshot.string();
  }
  fs::path latest;
  fs::file_time_type latest_time;
  for (const auto& entry : fs::directory_iterator(repo / "snapshots", ignored)) {
    if (!entry.is_directory(ignored)) continue;
    const fs::file_time_type time = entry.last_write_time(ignored);
    if (latest.empty() || time > latest_time) {
      latest = entry.path();
      latest_time = time;
    }
  }
  if (latest.empty())
    return fail("holds no whole snapshot", repo.string(),
                "fetch it with `moxie pull " + repo_id + "`");
  return latest.string();
}

}  // namespace

const char* checkpoint_kind_name(CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::kHuggingFace:
      return "huggingface";
    case CheckpointKind::kOriginal:
      return "original";
    case CheckpointKind::kGguf:
      return "gguf";
    case CheckpointKind::kSynthetic:
      return "synthetic";
  }
  return "unknown";
}

Result<std::string> find_in_hub_cache(const std::string& repo_id) {
  const std::string folder_name = hub_repo_folder(repo_id);
  std::string searched;
  for (const fs::path hub : hub_caches()) {
    const fs::path repo = hub / folder_name;
    std::error_code ignored;
    if (fs::is_directory(repo, ignored)) return snapshot_of(repo, repo_id);
    searched += (searched.empty() ? "" : ", ") + repo.string();
  }
  return fail("is neither a path nor in the local Hugging Face cache; searched " +
                  (searched.empty() ? "nothing: HOME is not set" : searched),
              repo_id, "fetch it with `moxie pull " + repo_id + "`, or give a path");
}

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& model) {
  constexpr std::string_view kSynthetic = "synthetic:";
  if (model.empty()) return fail("no model is named", "--model", "embedded, a path or a repo id");
  if (model == "embedded") return open_embedded_checkpoint();
  if (model.starts_with(kSynthetic))
    return open_synthetic_checkpoint(model.substr(kSynthetic.size()));
  std::error_code error;
  const fs::file_status status = fs::status(model, error);
  if (fs::is_directory(status)) return open_checkpoint_folder(model);
  if (fs::exists(status)) {
    const Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(model);
    if (!file) return fail(file.error());
    const std::span<const std::byte> bytes = (*file)->bytes();
    const std::string_view magic(reinterpret_cast<const char*>(bytes.data()),
                                 std::min<size_t>(4, bytes.size()));
    if (magic == "GGUF" || model.ends_with(".gguf")) return open_gguf_checkpoint(model);
    if (model.ends_with(".safetensors")) return open_safetensors_checkpoint(model);
    return fail("is neither a .safetensors nor a .gguf file", model,
                "name a model's folder, its .safetensors or its .gguf file");
  }
  if (is_repo_id(model)) {
    const Result<std::string> folder = find_in_hub_cache(model);
    if (!folder) return fail(folder.error());
    return open_checkpoint(*folder);
  }
  return fail(
      "no such file or folder", model,
      "embedded, a folder, a .gguf file, org/name in the Hugging Face cache, or synthetic:");
}

}  // namespace moxie
