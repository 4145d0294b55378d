// Opens GGUF checkpoints, whole or split, and makes a configuration of their keys.
#include <fmt/format.h>

#include <filesystem>

#include "model/file_checkpoint.h"
#include "model/gguf_keys.h"

namespace moxie {
namespace {

// The numbers in a name like "...-00002-of-00003.gguf".
struct SplitName {
  std::string stem;
  int number = 0, count = 0;
  std::string part(int i) const { return fmt::format("{}-{:05d}-of-{:05d}.gguf", stem, i, count); }
};

std::optional<SplitName> split_name(const std::string& path) {
  constexpr size_t kTailChars = 20;  // "-00002-of-00003.gguf"
  if (path.size() <= kTailChars) return std::nullopt;
  const std::string tail = path.substr(path.size() - kTailChars);
  SplitName name{.stem = path.substr(0, path.size() - kTailChars)};
  if (tail[0] != '-' || tail.substr(6, 4) != "-of-" || tail.substr(15) != ".gguf")
    return std::nullopt;
  for (int i = 0; i < 5; ++i) {
    const char a = tail[static_cast<size_t>(1 + i)], b = tail[static_cast<size_t>(10 + i)];
    if (a < '0' || a > '9' || b < '0' || b > '9') return std::nullopt;
    name.number = name.number * 10 + (a - '0');
    name.count = name.count * 10 + (b - '0');
  }
  if (name.number < 1 || name.number > name.count) return std::nullopt;
  return name;
}

int32_t vocab_size(const GgufFile& file) {
  for (const FileTensor& tensor : file.contents.tensors) {
    if (tensor.name == "token_embd.weight" && tensor.shape.rank == 2)
      return static_cast<int32_t>(std::min<int64_t>(tensor.shape[0], INT32_MAX));
  }
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  const auto* array = tokens == nullptr ? nullptr : std::get_if<GgufArray>(tokens);
  return array == nullptr ? 0 : static_cast<int32_t>(std::min<uint64_t>(array->count, INT32_MAX));
}

Result<GptOssConfig> config_of(const GgufFile& file, const std::string& architecture) {
  const std::string& path = file.contents.file->path();
  GptOssConfig config;
  GgufKeys keys(file, architecture);
  keys.integer("block_count", true, &config.num_layers);
  keys.integer("embedding_length", true, &config.hidden);
  keys.integer(
      keys.has("expert_feed_forward_length") ? "expert_feed_forward_length" : "feed_forward_length",
      true, &config.intermediate);
  keys.integer("attention.head_count", true, &config.num_heads);
  keys.integer("attention.head_count_kv", true, &config.num_kv_heads);
  keys.integer("attention.key_length", false, &config.head_dim);
  keys.integer("expert_count", true, &config.num_experts);
  keys.integer("expert_used_count", false, &config.top_k);
  keys.integer("attention.sliding_window", false, &config.sliding_window);
  keys.integer("context_length", false, &config.max_positions);
  keys.real("attention.layer_norm_rms_epsilon", &config.rms_eps);
  keys.real("rope.freq_base", &config.rope_theta);
  keys.integer("rope.scaling.original_context_length", false, &config.rope_original_context);
  const std::string scaling = keys.text("rope.scaling.type");
  if (scaling == "none") config.rope_factor = 1.0;
  keys.real("rope.scaling.factor", &config.rope_factor);
  keys.real("rope.scaling.yarn_beta_fast", &config.rope_beta_fast);
  keys.real("rope.scaling.yarn_beta_slow", &config.rope_beta_slow);
  for (const ConfigSwitch& one : kConfigSwitches) keys.boolean(one.name, &(config.*one.member));
  if (const std::string text = keys.text(kActivationField);
      !text.empty() && !parse_activation(text, &config.activation))
    keys.fault(kActivationField, '"' + text + '"', kActivationChoices);
  config.vocab = vocab_size(file);
  keys.integer("vocab_size", false, &config.vocab);
  config.eos_id = static_cast<int32_t>(file.integer("tokenizer.ggml.eos_token_id").value_or(-1));
  config.pad_id =
      static_cast<int32_t>(file.integer("tokenizer.ggml.padding_token_id").value_or(-1));
  if (!keys.faults().empty()) return fail(keys.faults(), path);
  if (!scaling.empty() && scaling != "yarn" && scaling != "none")
    return fail("found rope scaling \"" + scaling + "\", expected \"yarn\" or \"none\"", path);
  for (int32_t i = 0; i < std::min(config.num_layers, 4096); ++i)
    config.is_window.push_back(i % 2 == 0 ? 1 : 0);
  return config;
}

// Opens the other files of a split model; missing files and files that do not belong are faults.
void add_parts(const SplitName& name, const GgufFile& first, std::vector<TensorFile>* files,
               FaultList* faults) {
  int64_t num_tensors = static_cast<int64_t>(first.contents.tensors.size());
  const std::string first_path = first.contents.file->path();
  const int64_t count = first.integer("split.count").value_or(name.count);
  if (count != name.count)
    faults->add({first_path, "split.count", std::to_string(count), std::to_string(name.count)});
  bool is_whole = true;
  for (int i = 2; i <= name.count; ++i) {
    const std::string path = name.part(i);
    Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(path);
    if (!file) {
      is_whole = false;
      faults->add({path, "", "a file that " + file.error().what,
                   fmt::format("part {} of {}", i, name.count)});
      TensorFile absent{.file = MappedFile::borrow(path, {})};
      absent.faults.add({path, "", "no tensors", "a GGUF file"});
      files->push_back(std::move(absent));
      continue;
    }
    GgufFile part = read_gguf(*file);
    const int64_t number = part.integer("split.no").value_or(i - 1);
    if (number != i - 1)
      faults->add({path, "split.no", std::to_string(number), std::to_string(i - 1)});
    num_tensors += static_cast<int64_t>(part.contents.tensors.size());
    files->push_back(std::move(part.contents));
  }
  const int64_t expected = first.integer("split.tensors.count").value_or(num_tensors);
  if (is_whole && expected != num_tensors) {
    faults->add({first_path, "split.tensors.count",
                 fmt::format("{} tensors in all parts", num_tensors), std::to_string(expected)});
  }
}

}  // namespace

CheckpointResult open_gguf_checkpoint(const std::string& path) {
  const std::optional<SplitName> name = split_name(path);
  const std::string first_path = name ? name->part(1) : path;
  Result<std::shared_ptr<const MappedFile>> mapped = MappedFile::open(first_path);
  if (!mapped) return fail(mapped.error());
  GgufFile file = read_gguf(*mapped);
  const std::optional<std::string> architecture = file.text("general.architecture");
  if (!architecture) {
    const bool has_fault = !file.contents.faults.empty();
    return fail(has_fault ? file.contents.faults.all()[0].message()
                          : first_path + ": found no general.architecture",
                "", "is the download complete?");
  }
  if (*architecture == "eagle3" || *architecture == "dflash")
    return fail("is a draft head, not a model", first_path,
                "--spec-model takes it, and `moxie inspect HEAD --target MODEL` shows it");
  if (*architecture != "gpt-oss" && *architecture != "gptoss")
    return fail("found the architecture \"" + *architecture + "\", expected \"gpt-oss\"",
                first_path, "only gpt-oss models are served");
  Result<GptOssConfig> config = config_of(file, *architecture);
  if (!config) return fail(config.error());
  FaultList faults;
  std::vector<TensorFile> files(1);
  if (name) {
    add_parts(*name, file, &files, &faults);
  } else if (const int64_t count = file.integer("split.count").value_or(1); count > 1) {
    faults.add({path, "split.count", std::to_string(count),
                "a name that ends in -00001-of-0000N.gguf, so that the other parts are found"});
  }
  // The tokenizer's strings are read on request; the views point into the mapping.
  files[0] = std::move(file.contents);
  file.contents = TensorFile{.file = files[0].file};
  auto tokenizer = [file = std::move(file)]() -> Result<Checkpoint::TokenizerSource> {
    return Checkpoint::TokenizerSource{.path = file.contents.file->path(),
                                       .gguf_tokens = file.texts("tokenizer.ggml.tokens"),
                                       .gguf_types = file.integers("tokenizer.ggml.token_type"),
                                       .gguf_merges = file.texts("tokenizer.ggml.merges")};
  };
  return std::unique_ptr<Checkpoint>(std::make_unique<FileCheckpoint>(
      *architecture == "gptoss" ? FileFormat::kOldGguf : FileFormat::kGguf, path,
      std::move(*config), first_path, std::move(files), std::move(faults), std::move(tokenizer)));
}

}  // namespace moxie
