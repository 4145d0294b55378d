// The arrays of one launch (token ids, positions, block tables, ...) in memory that the device
// reads: on the CPU the host's vectors, on CUDA device memory that one asynchronous copy from
// pinned memory fills.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "engine/kv.h"
#include "engine/packed_copy.h"
#include "model/gpt_oss.h"

namespace moxie {

/// Which logits a chunk wants.
enum class Logits : uint8_t { kNone, kLast, kAll };

/// Tokens to append to one sequence in one launch.
struct Chunk {
  SeqId seq = 0;
  std::span<const int32_t> tokens;
  Logits logits = Logits::kLast;
};

/// A launch as the host builds it; lengths as in Batch and KvLayer.
struct HostArrays {
  std::vector<int32_t> token_ids, positions, seq_idx, row_offsets, logit_rows;
  std::vector<int32_t> full_tables, window_tables;  // [num_seqs, table_stride]
  int32_t table_stride = 0;
  int64_t num_visible_keys = 0;
  // Of the chunks, for the host alone: sequences, and their serial numbers in the cache.
  std::vector<SeqId> seqs;
  std::vector<uint64_t> serials;
  /// In the first launch of a decode loop's session: the tokens that the next num_fed launches take
  /// instead of drawn ones. [num_seqs, num_fed]
  std::vector<int32_t> fed;
  int32_t num_fed = 0;

  void clear();
  int64_t num_values() const;
};

/// Writes the arrays of a launch of `chunks`, whose tokens are the last of their sequences and have
/// pages. `table_stride` 0: as long as the longest table.
void build_arrays(std::span<const Chunk> chunks, const KvCache& kv, int32_t table_stride,
                  HostArrays* arrays);
/// The same for a later launch of a decode loop's session, one token a chunk: each table holds only
/// the entry that may be new, the page of the token. `table_stride` is 1.
void build_next_arrays(std::span<const Chunk> chunks, const KvCache& kv, HostArrays* arrays);

class LaunchArrays {
 public:
  /// The most that one launch holds.
  struct Limits {
    int32_t num_tokens = 0, num_seqs = 0, num_logit_rows = 0, table_stride = 0;
    uint64_t bytes() const;
  };
  static Result<LaunchArrays> create(Device& device, const Limits& limits);

  /// Returns the batch, and one view of `kv` a layer; both are valid until the next place(). On the
  /// CPU `host` must not change before then.
  Result<Batch> place(const HostArrays& host, const KvCache& kv, Stream& stream,
                      std::vector<KvLayer>* layers);

 private:
  explicit LaunchArrays(PackedCopy copy) : copy_(std::move(copy)) {}
  PackedCopy copy_;
};

}  // namespace moxie
