// Shards are laid out first, then filled in pieces by all threads with positioned writes.
#include "model/write_checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/threads.h"
#include "model/weight_table.h"
#include "weights/synthetic_values.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kPieceBytes = uint64_t{4} << 20;

// The values of a tensor's 8-byte words.
struct Words {
  enum class Kind : uint8_t { kConstant, kBf16, kCodes, kScales };
  Kind kind = Kind::kConstant;
  uint64_t stream = 0;
  uint64_t base = 0;  // kConstant: the word; kBf16: random_bf16_base; kScales: eight equal codes

  uint64_t operator()(uint64_t i) const {
    switch (kind) {
      case Kind::kBf16:
        return random_bf16_word(stream, base, i);
      case Kind::kCodes:
        return random_word(stream, i);
      case Kind::kScales:
        return base - (random_word(stream, i) & 0x0101010101010101u);
      default:
        return base;
    }
  }
};

struct Tensor {
  std::string name, dtype;
  Shape shape;
  uint64_t bytes = 0, offset = 0;  // offset: in the shard's data
  Words words;
};

struct Shard {
  std::string name;
  std::vector<Tensor> tensors;
  uint64_t data_bytes = 0;
};

std::vector<Tensor> tensors_of(const GptOssConfig& config, uint64_t seed) {
  std::vector<Tensor> tensors;
  uint64_t num_tensors = 0;
  const auto next_stream = [&] { return random_stream(++num_tensors + (seed << 20)); };
  const auto add = [&](const std::string& name, const char* dtype, Shape shape, uint64_t size,
                       const Words& words) {
    const auto bytes = static_cast<uint64_t>(shape.num_elements()) * size;
    tensors.push_back(
        {.name = name, .dtype = dtype, .shape = shape, .bytes = bytes, .words = words});
  };
  const FormatNames& names = format_names(FileFormat::kHuggingFace);
  for_each_weight(config, [&](const Weight& weight) {
    if (!weight.is_present) return;
    const double made = weight.entry->made;
    const bool is_table = std::holds_alternative<RowTable ModelWeights::*>(weight.entry->place);
    const double deviation = is_table ? made : made / std::sqrt(std::max(weight.cols, 1));
    for (const TensorInFile& tensor : tensors_in_file(weight, FileFormat::kHuggingFace)) {
      const Shape& shape = tensor.shape;
      if (weight.is_vector()) {
        const uint64_t four = 0x0001000100010001u * f32_to_bf16(static_cast<float>(made));
        add(tensor.name, "BF16", shape, 2, {.base = four});
      } else if (weight.entry->types != StoredTypes::kExperts) {
        add(tensor.name, "BF16", shape, 2,
            {Words::Kind::kBf16, next_stream(), random_bf16_base(deviation)});
      } else {
        const Shape scales{shape[0], shape[1], shape[2] / kMxBlock};
        add(tensor.name + std::string(names.blocks), "U8", {scales[0], scales[1], scales[2], 16}, 1,
            {Words::Kind::kCodes, next_stream(), 0});
        add(tensor.name + std::string(names.scales), "U8", scales, 1,
            {Words::Kind::kScales, next_stream(),
             random_mxfp4_scale(deviation) * 0x0101010101010101u});
      }
    }
  });
  return tensors;
}

std::vector<Shard> shards_of(std::vector<Tensor> tensors, uint64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (Tensor& tensor : tensors) {
    if (shards.back().data_bytes >= std::max<uint64_t>(shard_bytes, 1)) shards.emplace_back();
    Shard& shard = shards.back();
    tensor.offset = shard.data_bytes;
    shard.data_bytes += tensor.bytes;
    shard.tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

std::string header_of(const Shard& shard) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  for (const Tensor& tensor : shard.tensors) {
    auto shape = nlohmann::ordered_json::array();
    for (int i = 0; i < tensor.shape.rank; ++i) shape.push_back(tensor.shape[i]);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", shape},
                           {"data_offsets", {tensor.offset, tensor.offset + tensor.bytes}}};
  }
  std::string text = header.dump();
  text.resize(round_up<size_t>(text.size(), 8), ' ');  // tensors start aligned
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + text;
}

std::string index_of(const std::vector<Shard>& shards, uint64_t total) {
  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  for (const Shard& shard : shards)
    for (const Tensor& tensor : shard.tensors) index["weight_map"][tensor.name] = shard.name;
  return index.dump(2) + "\n";
}

Status write_at(int descriptor, const void* data, uint64_t bytes, uint64_t offset,
                const std::string& path) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::pwrite(descriptor, at, bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return fail(std::strerror(errno), path, "is the disk full?");
    at += count;
    offset += static_cast<uint64_t>(count);
    bytes -= static_cast<uint64_t>(count);
  }
  return {};
}

Status write_text(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fail("cannot be written", path.string(), "is the disk full?");
  return {};
}

class Writer {
 public:
  Writer(const WriteCheckpointOptions& options, uint64_t total)
      : options_(options), total_(total), pool_(options.num_threads) {
    for (int i = 0; i < pool_.num_threads(); ++i) buffers_.emplace_back(kPieceBytes / 8);
  }

  Status write(const Shard& shard, const std::string& path) {
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor < 0) return fail(std::strerror(errno), path, "check the path and permissions");
    const std::string header = header_of(shard);
    Status status = write_at(descriptor, header.data(), header.size(), 0, path);
    // A few pieces a thread at a time, so that progress is seen.
    std::vector<Piece> pieces = pieces_of(shard);
    const size_t batch = static_cast<size_t>(pool_.num_threads()) * 16;
    for (size_t begin = 0; status && begin < pieces.size(); begin += batch) {
      const size_t end = std::min(pieces.size(), begin + batch);
      auto task = [&](int64_t i, int thread) {
        const Piece& piece = pieces[begin + static_cast<size_t>(i)];
        std::vector<uint64_t>& words = buffers_[static_cast<size_t>(thread)];
        for (uint64_t w = 0; w < ceil_div<uint64_t>(piece.bytes, 8); ++w)
          words[w] = piece.tensor->words(piece.begin / 8 + w);
        const Status done = write_at(descriptor, words.data(), piece.bytes,
                                     header.size() + piece.tensor->offset + piece.begin, path);
        const std::lock_guard lock(mutex_);
        done_ += piece.bytes;
        if (!done && status) status = done;
      };
      pool_.run(static_cast<int64_t>(end - begin), task);
      if (options_.on_progress) options_.on_progress(done_, total_);
    }
    if (::close(descriptor) != 0 && status)
      status = fail(std::strerror(errno), path, "is the disk full?");
    return status;
  }

 private:
  struct Piece {
    const Tensor* tensor;
    uint64_t begin, bytes;
  };
  static std::vector<Piece> pieces_of(const Shard& shard) {
    std::vector<Piece> pieces;
    for (const Tensor& tensor : shard.tensors)
      for (uint64_t at = 0; at < tensor.bytes; at += kPieceBytes)
        pieces.push_back({&tensor, at, std::min(kPieceBytes, tensor.bytes - at)});
    return pieces;
  }

  const WriteCheckpointOptions& options_;
  uint64_t total_, done_ = 0;
  ThreadPool pool_;
  std::vector<std::vector<uint64_t>> buffers_;
  std::mutex mutex_;
};

}  // namespace

Status write_checkpoint(const GptOssConfig& config, const std::string& folder,
                        const WriteCheckpointOptions& options) {
  if (const auto faults = config.faults(); !faults.empty()) return fail(faults[0], "configuration");
  const fs::path root = folder;
  std::error_code error;
  fs::create_directories(root, error);
  if (error) return fail("cannot be made: " + error.message(), folder);
  for (const char* name : {"config.json", "model.safetensors.index.json", "model.safetensors"}) {
    if (fs::exists(root / name, error))
      return fail("holds a checkpoint already", (root / name).string(), "give another folder");
  }
  const std::vector<Shard> shards =
      shards_of(tensors_of(config, options.seed), options.shard_bytes);
  uint64_t total = 0;
  for (const Shard& shard : shards) total += shard.data_bytes;
  const fs::space_info space = fs::space(root, error);
  if (!error && space.available < total + (uint64_t{64} << 20)) {
    return fail(
        fmt::format("needs {:.1f} GB, {:.1f} GB are free", total / 1e9, space.available / 1e9),
        folder);
  }
  Writer writer(options, total);
  Status status;
  for (const Shard& shard : shards) {
    status = writer.write(shard, (root / shard.name).string());
    if (!status) break;
  }
  // The index is written last: without it the folder is not a checkpoint.
  if (status) status = write_text(root / "config.json", config_json(config));
  if (status) status = write_text(root / "model.safetensors.index.json", index_of(shards, total));
  if (status) return {};
  for (const Shard& shard : shards) fs::remove(root / shard.name, error);
  for (const char* name : {"config.json", "model.safetensors.index.json"})
    fs::remove(root / name, error);
  return status;
}

}  // namespace moxie
