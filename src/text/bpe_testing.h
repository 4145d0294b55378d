// For tests: o200k's vectors from tests/data/tokenizer, and tokenizers derived from its rank table.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/bpe.h"

namespace moxie::testing {

/// The bytes of a .gz file under tests/data.
std::string read_gz(const std::string& name);

/// The text of o200k_base.tiktoken, and the Tokenizer made from it; read once.
const std::string& o200k_tiktoken();
const Tokenizer& o200k();

struct TextCase {
  std::string text;
  std::vector<int32_t> ids;
};
std::vector<TextCase> read_cases(const std::string& name);

/// The key of a token in GPT-2's byte alphabet.
std::string key_of(std::string_view bytes);

using Merge = std::pair<std::string, std::string>;  // left and right, as bytes
/// Merges of the tokens 0..num_ranks-1 by rising id: all splits into two tokens, or for each token
/// only the split into which the lower ranks merge its bytes.
enum class Splits { kAll, kMerged };
std::vector<Merge> merges_of_ranks(const Tokenizer& ranked, int32_t num_ranks, Splits splits);

/// Byte pair encoding in its simplest form: an ordered set of (rank, position) over an ordered map
/// of pieces. `rank_of(left, right)` gives the rank of a pair of byte strings, or -1.
template <class RankOf>
std::vector<std::string> merged_naively(std::string_view piece, const RankOf& rank_of) {
  std::map<size_t, std::string> parts;  // by position
  std::set<std::pair<int64_t, size_t>> pairs;
  for (size_t i = 0; i < piece.size(); ++i) parts[i] = piece.substr(i, 1);
  const auto visit = [&](size_t pos, bool add) {
    const auto left = parts.find(pos);
    const auto right = std::next(left);
    if (right == parts.end()) return;
    const int64_t rank = rank_of(left->second, right->second);
    if (rank < 0) return;
    if (add) {
      pairs.insert({rank, pos});
    } else {
      pairs.erase({rank, pos});
    }
  };
  for (size_t i = 0; i < piece.size(); ++i) visit(i, true);
  while (!pairs.empty()) {
    const auto at = parts.find(pairs.begin()->second);
    const auto next = std::next(at);
    const bool has_before = at != parts.begin();
    const size_t before = has_before ? std::prev(at)->first : 0;
    if (has_before) visit(before, false);
    visit(at->first, false);
    visit(next->first, false);
    at->second += next->second;
    parts.erase(next);
    if (has_before) visit(before, true);
    visit(at->first, true);
  }
  std::vector<std::string> out;
  for (const auto& [pos, part] : parts) out.push_back(part);
  return out;
}

}  // namespace moxie::testing
