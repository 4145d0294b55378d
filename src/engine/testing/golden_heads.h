// Draft heads of other people's software, and what they computed: their logits and drafts behind
// given ids.
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/formats.h"
#include "engine/head_drafter.h"
#include "weights/safetensors.h"
#include "weights/testing/torch_bytes.h"

namespace moxie {

struct GoldenHead {
  const char* folder;
  SpecMethod method;
  int32_t num_drafts;
};
inline constexpr GoldenHead kGoldenHeads[] = {
    {"spec-eagle3-nano-a", SpecMethod::kEagle3, 3},
    {"spec-eagle3-modelopt-nano-a", SpecMethod::kEagle3, 3},
    {"spec-peagle-nano-a", SpecMethod::kEagle3, 5},
    {"spec-dflash-nano-a", SpecMethod::kDflash, 5}};

/// `goldens` is the folder of all goldens, with a slash at its end.
inline EngineOptions golden_head_options(const std::string& goldens, const GoldenHead& head) {
  EngineOptions options;
  options.model = goldens + "nano-a";
  options.max_model_len = 320;
  options.max_batch_tokens = options.max_logit_rows = 64;
  options.show_progress = false;
  options.speculation.method = head.method;
  options.speculation.head = goldens + head.folder;
  options.speculation.dtype = "bf16";
  return options;
}

template <typename T>
std::vector<T> golden_values(const SafetensorsFile& file, const std::string& name) {
  const FileTensor* tensor = file.find(name);
  CHECK(tensor != nullptr, name);
  std::vector<T> list(tensor->bytes / sizeof(T));
  std::memcpy(list.data(), file.data(*tensor), tensor->bytes);
  return list;
}

/// Makes two folders from the golden DFlash head, of which the same is drafted: in `by_id` the mask
/// is another token, in `by_file` that token's embedding lies in mask_embedding.pt.
inline void write_heads_with_other_masks(const std::string& goldens, const std::string& by_id,
                                         const std::string& by_file) {
  constexpr int32_t kOtherToken = 33;
  const auto target = SafetensorsFile::open(goldens + "nano-a/model.safetensors");
  CHECK(target.has_value(), goldens);
  const FileTensor* table = target->find("model.embed_tokens.weight");
  CHECK(table != nullptr && table->dtype_text == "BF16", goldens);
  const auto hidden = static_cast<size_t>(table->shape[1]);
  std::vector<float> row(hidden);
  for (size_t i = 0; i < hidden; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, target->data(*table) + 2 * (kOtherToken * hidden + i), 2);
    row[i] = bf16_to_f32(bits);
  }
  namespace fs = std::filesystem;
  const fs::path source = goldens + "spec-dflash-nano-a";
  for (const std::string& folder : {by_id, by_file}) {
    fs::create_directories(folder);
    for (const char* name : {"config.json", "model.safetensors"})
      fs::copy_file(source / name, fs::path(folder) / name, fs::copy_options::overwrite_existing);
  }
  std::ifstream file(source / "config.json");
  std::string config{std::istreambuf_iterator<char>(file), {}};
  const std::string mask = "\"mask_token_id\": 507";
  CHECK(config.find(mask) != config.npos, config);
  config.replace(config.find(mask), mask.size(),
                 "\"mask_token_id\": " + std::to_string(kOtherToken));
  std::ofstream(fs::path(by_id) / "config.json") << config;
  std::ofstream(fs::path(by_file) / "mask_embedding.pt", std::ios::binary) << torch_bytes(row);
}

struct Drafted {
  std::map<int32_t, std::vector<float>> logits;  // by position
  std::vector<int32_t> ids;
};

/// The drafts behind `ids` and the target's next token, with chunks of `chunk` tokens.
inline Drafted draft_behind(Engine& engine, HeadDrafter& drafter, std::vector<int32_t> ids,
                            int32_t next, size_t chunk, int32_t num_drafts) {
  Drafted drafted;
  const int32_t vocab = drafter.config().draft_vocab;
  drafter.set_on_logits([&](SeqId, int32_t position, const float* logits) {
    drafted.logits[position].assign(logits, logits + vocab);
  });
  const SeqId seq = engine.kv().add_sequence();
  for (size_t at = 0; at < ids.size(); at += chunk) {
    const Chunk part{seq, std::span(ids).subspan(at, std::min(chunk, ids.size() - at)),
                     Logits::kLast};
    CHECK(engine.step({&part, 1}).has_value());
  }
  ids.push_back(next);
  CHECK(engine.kv().append(seq, 1));
  drafter.propose(
      {.request = 1, .seq = seq, .tokens = ids, .limit = num_drafts, .drafts = &drafted.ids});
  engine.kv().free_sequence(seq);
  drafter.set_on_logits({});
  return drafted;
}

/// The greatest difference between the logits drafted and the golden ones; `case_name` as "case0.".
/// `num_missing` counts golden rows that no pass computed.
inline double worst_draft_logit(const SafetensorsFile& golden, const std::string& case_name,
                                bool is_dflash, int32_t vocab, const Drafted& got,
                                int32_t* num_missing) {
  const auto n =
      static_cast<int32_t>(golden_values<int32_t>(golden, case_name + "input_ids").size());
  const auto wanted =
      golden_values<float>(golden, case_name + (is_dflash ? "block_logits" : "draft_logits"));
  const int32_t num_rows = static_cast<int32_t>(wanted.size()) / vocab;
  double worst = 0;
  for (int32_t row = is_dflash ? 1 : 0; row < num_rows; ++row) {
    const auto found = got.logits.find(is_dflash ? n + row : row);
    if (found == got.logits.end()) {
      ++*num_missing;
      continue;
    }
    for (int32_t v = 0; v < vocab; ++v) {
      const double difference = std::fabs(found->second[static_cast<size_t>(v)] -
                                          wanted[static_cast<size_t>(row * vocab + v)]);
      if (!(difference <= worst)) worst = difference;
    }
  }
  return worst;
}

}  // namespace moxie
