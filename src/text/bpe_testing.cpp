// Vectors are read from tests/data; a missing one ends the test program.
#include "text/bpe_testing.h"

#include <zlib.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/base.h"
#include "core/testing/paths.h"
#include "text/utf8.h"

namespace moxie::testing {

std::string read_gz(const std::string& name) {
  const std::string path = test_data() + "/" + name;
  gzFile file = gzopen(path.c_str(), "rb");
  CHECK(file != nullptr, path);
  std::string bytes;
  char buffer[1 << 16];
  for (int n; (n = gzread(file, buffer, sizeof(buffer))) > 0;) {
    bytes.append(buffer, static_cast<size_t>(n));
  }
  CHECK(gzclose(file) == Z_OK, path);
  return bytes;
}

const std::string& o200k_tiktoken() {
  static const std::string text = read_gz("tokenizer/o200k_base.tiktoken.gz");
  return text;
}

const Tokenizer& o200k() {
  static const Tokenizer tokenizer = [] {
    auto made = Tokenizer::from_tiktoken(o200k_tiktoken(), "o200k_base.tiktoken");
    CHECK(made.has_value(), made.error().message());
    return std::move(*made);
  }();
  return tokenizer;
}

std::vector<TextCase> read_cases(const std::string& name) {
  std::ifstream file(test_data() + "/" + name);
  const auto json = nlohmann::json::parse(file);
  std::vector<TextCase> cases;
  for (const auto& item : json.at("cases")) {
    cases.push_back({item.at("text"), item.at("ids").get<std::vector<int32_t>>()});
  }
  return cases;
}

std::string key_of(std::string_view bytes) {
  std::string key;
  for (const char c : bytes) {
    const char32_t byte = static_cast<uint8_t>(c);
    // The bytes without a character of their own are numbered from U+0100: 0..32, 127..160, 173.
    char32_t code_point = byte;
    if (byte <= 32) code_point = 0x100 + byte;
    if (byte >= 127 && byte <= 160) code_point = 0x100 + 33 + (byte - 127);
    if (byte == 173) code_point = 0x100 + 33 + 34;
    append_utf8(code_point, &key);
  }
  return key;
}

std::vector<Merge> merges_of_ranks(const Tokenizer& ranked, int32_t num_ranks, Splits splits) {
  std::unordered_map<std::string_view, int32_t> rank_of_bytes;
  for (int32_t id = 0; id < num_ranks; ++id) rank_of_bytes[ranked.token_bytes(id)] = id;
  const auto rank_of = [&](std::string_view bytes) {
    const auto it = rank_of_bytes.find(bytes);
    return it == rank_of_bytes.end() ? INT32_MAX : it->second;
  };
  std::vector<Merge> merges;
  for (int32_t id = 0; id < num_ranks; ++id) {
    const std::string_view bytes = ranked.token_bytes(id);
    if (splits == Splits::kAll) {
      for (size_t cut = 1; cut < bytes.size(); ++cut) {
        const std::string_view left = bytes.substr(0, cut);
        const std::string_view right = bytes.substr(cut);
        if (rank_of(left) == INT32_MAX || rank_of(right) == INT32_MAX) continue;
        merges.emplace_back(left, right);
      }
      continue;
    }
    std::vector<std::string_view> parts;
    for (size_t i = 0; i < bytes.size(); ++i) parts.push_back(bytes.substr(i, 1));
    while (parts.size() > 2) {
      size_t best = 0;
      int32_t best_rank = id;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const int32_t rank = rank_of({parts[i].data(), parts[i].size() + parts[i + 1].size()});
        if (rank < best_rank) {
          best_rank = rank;
          best = i;
        }
      }
      if (best_rank == id) break;  // merges of lower ranks leave more than two tokens
      parts[best] = {parts[best].data(), parts[best].size() + parts[best + 1].size()};
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
    if (parts.size() == 2) merges.emplace_back(parts[0], parts[1]);
  }
  return merges;
}

}  // namespace moxie::testing
