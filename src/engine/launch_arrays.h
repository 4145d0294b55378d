// The arrays of one launch (token ids, positions, tables of pages, ...) where the device's rows
// read them: on the CPU the vectors themselves, on CUDA device memory filled by one copy from
// pinned memory that does not wait.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/device.h"
#include "engine/kv.h"
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
  /// Of the first step of a decode loop: the tokens of the next num_fed steps, in place of those
  /// drawn. [num_seqs, num_fed]
  std::vector<int32_t> fed;
  int32_t num_fed = 0;

  void clear();
  int64_t num_values() const;
};

/// The launch of chunks whose tokens are the last of their sequences, which hold pages for them.
/// `table_stride` 0: as long as the longest table.
void build_arrays(std::span<const Chunk> chunks, const KvCache& kv, int32_t table_stride,
                  HostArrays* arrays);
/// The same for chunks of one token whose sequences the device runs already: of each table the one
/// entry that may be new, the page of the token. `table_stride` is 1.
void build_next_arrays(std::span<const Chunk> chunks, const KvCache& kv, HostArrays* arrays);

class LaunchArrays {
 public:
  /// What a launch holds at most.
  struct Limits {
    int32_t num_tokens = 0, num_seqs = 0, num_logit_rows = 0, table_stride = 0;
    uint64_t bytes() const;
  };
  static Result<LaunchArrays> create(Device& device, const Limits& limits);

  /// The batch and one view a layer of `kv`, valid until the next place(); `host` must not change
  /// before then where the device is the CPU.
  Result<Batch> place(const HostArrays& host, const KvCache& kv, Stream& stream,
                      std::vector<KvLayer>* layers);

 private:
  // Copies in flight at once: the stream is waited for when all slots have been used.
  static constexpr int kSlots = 4;

  Device* device_ = nullptr;
  Buffer memory_;   // CUDA only
  Buffer staging_;  // CUDA only: kSlots times as large
  int slot_ = 0;
};

}  // namespace moxie
