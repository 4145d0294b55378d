// Opens checkpoints in safetensors: one file, or shards named by an index; Hugging Face or original
// names, told apart by the names themselves.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "model/embedded.h"
#include "model/file_checkpoint.h"
#include "weights/safetensors.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;  // the largest known: 28 MB
constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;
constexpr const char* kIndexName = "model.safetensors.index.json";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool has_original_name(const TensorFile& file) {
  return std::any_of(file.tensors.begin(), file.tensors.end(), [](const FileTensor& tensor) {
    return tensor.name == "embedding.weight" ||
           tensor.name.starts_with(format_names(FileFormat::kOriginal).layer_prefix);
  });
}

// Opens a file of tensors. If it cannot be opened, adds a fault and returns an empty file.
void add_file(const fs::path& path, std::vector<TensorFile>* files, FaultList* faults) {
  Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(path.string());
  if (file) {
    files->push_back(read_safetensors(*file));
  } else {
    faults->add({path.string(), "", "a file that " + file.error().what, "a safetensors file"});
    TensorFile unreadable{.file = MappedFile::borrow(path.string(), {})};
    unreadable.faults.add({path.string(), "", "no tensors", "a safetensors file"});
    files->push_back(std::move(unreadable));
  }
}

// Names in an index must be file names in its folder, not paths that lead elsewhere.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// Reads the shards that an index names, and checks both against each other.
void read_index(const fs::path& index_path, std::vector<TensorFile>* files, FaultList* faults) {
  const std::string where = index_path.string();
  const Result<std::string> text = read_text_file(where, kMaxIndexBytes);
  if (!text) {
    faults->add({where, "", "a file that " + text.error().what, "an index"});
    return;
  }
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    faults->add({where, "", "no weight_map", "{\"weight_map\": {tensor: file}}"});
    return;
  }
  std::map<std::string, std::vector<std::string>> tensors_of;  // by shard
  for (const auto& [tensor, shard] : map->items()) {
    if (!shard.is_string() || !is_plain_name(shard.get<std::string>())) {
      faults->add({where, tensor, "the file " + shard.dump(-1, ' ', true).substr(0, 200),
                   "the name of a file in the same folder"});
      continue;
    }
    tensors_of[shard.get<std::string>()].push_back(tensor);
  }
  for (const auto& [shard, names] : tensors_of) {
    const size_t num_faults = faults->all().size();
    add_file(index_path.parent_path() / shard, files, faults);
    const TensorFile& file = files->back();
    if (faults->all().size() > num_faults || (file.tensors.empty() && !file.faults.empty()))
      continue;  // reported once for the whole shard
    std::vector<std::string> held;
    for (const FileTensor& tensor : file.tensors) held.push_back(tensor.name);
    std::sort(held.begin(), held.end());
    for (const std::string& name : names) {
      if (!std::binary_search(held.begin(), held.end(), name))
        faults->add({file.file->path(), name, "no such tensor", "it, as " + where + " says"});
    }
    for (const std::string& name : held) {
      const auto entry = map->find(name);
      if (entry == map->end() || *entry != shard) {
        faults->add({where, name,
                     entry == map->end() ? "no entry" : "the entry " + entry->dump(-1, ' ', true),
                     "the file " + shard + ", which holds it"});
      }
    }
  }
}

CheckpointResult finish(std::string path, const std::string& config_path,
                        const std::string& config_text, std::vector<TensorFile> files,
                        FaultList faults, FileCheckpoint::ReadTokenizer tokenizer) {
  Result<GptOssConfig> config = parse_config_json(config_text, config_path);
  if (!config) return fail(config.error());
  const bool is_original = std::any_of(files.begin(), files.end(), has_original_name);
  return std::unique_ptr<Checkpoint>(std::make_unique<FileCheckpoint>(
      is_original ? FileFormat::kOriginal : FileFormat::kHuggingFace, std::move(path),
      std::move(*config), config_path, std::move(files), std::move(faults), std::move(tokenizer)));
}

// `original/` has no tokenizer: it is in the folder above.
std::string tokenizer_path(const fs::path& folder) {
  const fs::path here = folder / "tokenizer.json";
  const fs::path above = fs::absolute(folder).lexically_normal().parent_path() / "tokenizer.json";
  return (!is_there(here) && is_there(above) && folder.filename() == "original" ? above : here)
      .string();
}

Result<Checkpoint::TokenizerSource> read_tokenizer(const std::string& path) {
  Checkpoint::TokenizerSource source{.path = path};
  if (!is_there(path)) return source;
  Result<std::string> text = read_text_file(path, kMaxTokenizerBytes);
  if (!text) return fail(text.error());
  if (text->empty()) return fail("the file is empty", path, "fetch it anew");
  source.json = std::move(*text);
  return source;
}

CheckpointResult open_files(const std::string& shown_path, const fs::path& folder,
                            std::vector<TensorFile> files, FaultList faults) {
  const std::string config_path = (folder / "config.json").string();
  const Result<std::string> text = read_text_file(config_path, kMaxConfigBytes);
  if (!text) return fail(text.error());
  return finish(shown_path, config_path, *text, std::move(files), std::move(faults),
                [path = tokenizer_path(folder)] { return read_tokenizer(path); });
}

std::vector<fs::path> files_ending(const fs::path& folder, const std::string& ending) {
  std::vector<fs::path> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().extension() == ending) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, uint64_t max_bytes) {
  const Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(path);
  if (!file) return fail(file.error());
  const std::span<const std::byte> bytes = (*file)->bytes();
  if (bytes.size() > max_bytes)
    return fail(fmt::format("found {} bytes, expected at most {}", bytes.size(), max_bytes), path);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

CheckpointResult open_checkpoint_folder(const std::string& folder_name) {
  const fs::path folder = folder_name;
  std::vector<TensorFile> files;
  FaultList faults;
  const fs::path index = folder / kIndexName;
  const std::vector<fs::path> safetensors = files_ending(folder, ".safetensors");
  if (is_there(folder / "config.json") && (is_there(index) || !safetensors.empty())) {
    if (is_there(index)) {
      read_index(index, &files, &faults);
    } else if (is_there(folder / "model.safetensors")) {
      add_file(folder / "model.safetensors", &files, &faults);
    } else {
      for (const fs::path& path : safetensors) add_file(path, &files, &faults);
    }
    return open_files(folder_name, folder, std::move(files), std::move(faults));
  }
  if (is_there(folder / "original" / "config.json"))
    return open_checkpoint_folder((folder / "original").string());
  const std::vector<fs::path> gguf = files_ending(folder, ".gguf");
  const bool is_one_model =
      gguf.size() == 1 ||
      (!gguf.empty() && gguf[0].filename().string().find("-00001-of-") != std::string::npos &&
       gguf[0].filename().string().ends_with(fmt::format("-of-{:05d}.gguf", gguf.size())));
  if (is_one_model) return open_gguf_checkpoint(gguf[0].string());
  if (gguf.size() > 1)
    return fail(fmt::format("holds {} .gguf files", gguf.size()), folder_name,
                "name one of them, such as " + gguf[0].string());
  if (is_there(folder / "config.json"))
    return fail("holds config.json but no .safetensors file", folder_name,
                "is the download complete?");
  return fail("holds neither config.json with .safetensors, nor original/, nor a .gguf file",
              folder_name, "a Hugging Face folder of a gpt-oss model is expected");
}

CheckpointResult open_safetensors_checkpoint(const std::string& path) {
  std::vector<TensorFile> files;
  FaultList faults;
  add_file(path, &files, &faults);
  return open_files(path, fs::path(path).parent_path(), std::move(files), std::move(faults));
}

CheckpointResult open_embedded_checkpoint() {
  const EmbeddedModel& model = embedded_model();
  if (model.weights.empty()) {
    return fail("this build carries no embedded model", "embedded",
                "name a model with --model, or build with models/tiny/model.safetensors present");
  }
  std::vector<TensorFile> files;
  files.push_back(read_safetensors(MappedFile::borrow("embedded", model.weights)));
  return finish("embedded", "embedded config.json", std::string(model.config_json),
                std::move(files), {}, []() -> Result<Checkpoint::TokenizerSource> {
                  return Checkpoint::TokenizerSource{
                      .path = "embedded tokenizer.json",
                      .json = std::string(embedded_model().tokenizer_json)};
                });
}

}  // namespace moxie
