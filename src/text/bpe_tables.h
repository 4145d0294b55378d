// The insides of a Tokenizer: token bytes, the index from bytes to ids, the merges, the special
// tokens. Built by the loaders (bpe_builder.cpp), read by encode and decode (bpe.cpp,
// bpe_merge.cpp).
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace moxie {

inline constexpr int32_t kNoToken = -1;
inline constexpr uint32_t kNoRank = UINT32_MAX;

/// Bounds on what a file may ask for: o200k has 201,088 tokens and 446,189 merges. The merge index
/// packs two ids and a rank into 64 bits.
inline constexpr uint32_t kIdBits = 21;
inline constexpr uint32_t kRankBits = 64 - 2 * kIdBits;
inline constexpr uint32_t kMaxTokens = 1u << kIdBits;
inline constexpr uint32_t kMaxRanks = (1u << kRankBits) - 1;  // the last value marks a free slot
inline constexpr size_t kMaxSpecialBytes = 1024;  // bounds the search for special tokens in a text

/// Bytes of all tokens, by id. An id may have none.
class TokenBytes {
 public:
  std::string_view at(int32_t id) const {
    const Span& span = spans_[static_cast<size_t>(id)];
    return {bytes_.data() + span.start, span.size};
  }
  uint32_t num_ids() const { return static_cast<uint32_t>(spans_.size()); }
  bool has(int32_t id) const {
    return static_cast<size_t>(id) < spans_.size() && spans_[static_cast<size_t>(id)].size > 0;
  }
  /// Sets the bytes (below 4 GiB in all) of an id below kMaxTokens that has none.
  void set(int32_t id, std::string_view bytes);
  void reserve(size_t num_ids, size_t num_bytes);

 private:
  struct Span {
    uint32_t start = 0;
    uint32_t size = 0;
  };
  std::string bytes_;
  std::vector<Span> spans_;
};

/// Open addressing from the bytes of ordinary tokens to their ids. A slot holds the id and half of
/// the hash, so that a miss seldom touches the bytes.
class TokenIndex {
 public:
  void reserve(size_t num_tokens);
  /// The id already there for these bytes, or kNoToken after adding `id`.
  int32_t insert(int32_t id, const TokenBytes& tokens);
  int32_t find(std::string_view bytes, const TokenBytes& tokens) const;

 private:
  struct Slot {
    int32_t id = kNoToken;
    uint32_t tag = 0;
  };
  void grow();
  std::vector<Slot> slots_;
  size_t num_used_ = 0;
};

/// Open addressing from a pair of adjacent tokens to the rank of their merge.
class MergeIndex {
 public:
  void reserve(size_t num_pairs);
  /// Keeps the lower rank where the pair is there already. rank < kMaxRanks.
  void insert(int32_t left, int32_t right, uint32_t rank);
  uint32_t rank_of(int32_t left, int32_t right) const;

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << kIdBits | static_cast<uint64_t>(right);
  }
  size_t home_of(uint64_t key) const { return key * 0x9E3779B97F4A7C15u >> shift_; }
  std::vector<uint64_t> slots_;  // key << kRankBits | rank
  uint32_t shift_ = 63;
  size_t num_used_ = 0;
};

struct AddedToken {
  std::string name;
  int32_t id;
  bool special;
};

struct BpeTables {
  TokenBytes tokens;
  TokenIndex index;
  MergeIndex merges;
  std::vector<int32_t> token_of_rank;       // the token that a merge of this rank makes
  std::array<int32_t, 256> token_of_byte;   // every byte has a token
  std::vector<uint32_t> rank_of_byte_pair;  // [256 * 256], kNoRank where none
  std::vector<AddedToken> added;            // sorted by name; found in a text by kAll
  std::array<bool, 256> starts_added{};     // first bytes of `added`
  std::vector<bool> special;                // by id
  int32_t vocab_size = 0;

  // With ignore_merges a piece that is a token may be taken whole; otherwise only if its merges end
  // in that token, which is found out once for each token: 0 unknown, 1 yes, 2 no.
  bool ignore_merges = true;
  std::unique_ptr<std::atomic<uint8_t>[]> merges_reach;
};

/// Appends the tokens of one piece, by merges alone (bpe_merge.cpp).
void merge_piece(const BpeTables& tables, std::string_view piece, std::vector<int32_t>* ids);

}  // namespace moxie
