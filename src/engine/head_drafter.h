// Drafts by a draft head (model/draft_head.h): EAGLE-3, P-EAGLE or DFlash.
//
// The head follows every launch: it writes keys and values of the launch's tokens into a cache of
// its own, whose pages have the numbers of the target's full pages. So pages that requests share,
// and prompts found in the prefix cache, have their draft keys, too. Behind a sequence's last
// position the head's pages hold tokens that are only guessed; the next launch or pass overwrites
// them. Keys that were never written (or belong to another continuation) cost acceptance, never
// correctness.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/packed_copy.h"
#include "model/draft_head.h"

namespace moxie {

class HeadDrafter : public Drafter, public LaunchFollower {
 public:
  /// `engine` was loaded for this head (EngineOptions::speculation); it must outlive the drafter.
  static Result<std::unique_ptr<HeadDrafter>> create(Engine& engine);
  ~HeadDrafter() override;

  bool shares_device() const override { return true; }
  void propose(const Ask& ask) override { propose_all({&ask, 1}); }
  /// No drafts if the device fails; the next launch reports that.
  void propose_all(std::span<const Ask> asks) override;
  void observe(RequestId, std::span<const int32_t>, int32_t) override {}
  void forget(RequestId) override {}
  Status follow(const HostArrays& arrays, const Ragged& placed, const KvLayer& full) override;
  bool reads_host_arrays() const override { return config().kind != DraftKind::kDflash; }

  const DraftConfig& config() const { return head_->config(); }
  /// For `moxie score`: is called with the logits [draft vocab] of every row that the head computes
  /// for a known position, EAGLE row P with P, row j of a DFlash block with the position that it
  /// predicts. Makes following slow.
  using OnLogits = std::function<void(SeqId seq, int32_t position, const float* logits)>;
  void set_on_logits(OnLogits on_logits) { on_logits_ = std::move(on_logits); }

 private:
  // The features of a sequence's last tokens, for the row whose next token was not known. They lie
  // in a ring of the head's kept features.
  struct Tail {
    uint64_t serial = 0;  // of the sequence
    int32_t first = 0;    // position of the first feature
    int32_t count = 0;
    int64_t place = 0;     // of the first, in all that were ever kept
    int32_t drafted = -1;  // the position behind which the head has drafted last
  };
  // Rows of one pass, as the host builds them; kept memory.
  struct Pass {
    std::vector<int32_t> tokens, positions, last_visible, seq_idx, row_offsets, table;
    std::vector<int32_t> features;  // EAGLE: numbers of DraftHead::feature()
    std::vector<int32_t> drawn;     // rows whose best ids are wanted
    std::vector<SeqId> seqs;
    int32_t table_stride = 0;
    void clear();
    void begin_sequence(SeqId seq);
    void add(int32_t token, int32_t position, int32_t feature = -1);
    int32_t size() const { return static_cast<int32_t>(tokens.size()); }
  };
  // The same on the device.
  struct Placed {
    DraftRows rows;
    const int32_t *features = nullptr, *drawn = nullptr, *kept = nullptr, *steps = nullptr;
    int32_t* ids = nullptr;  // the drawn ids, [num_ids]
  };

  HeadDrafter(Engine& engine, std::unique_ptr<DraftHead> head, PackedCopy copy);
  int32_t kept_feature(SeqId seq, uint64_t serial, int32_t position) const;
  Status follow_pairs(const HostArrays& arrays, const KvLayer& full, int32_t first, int32_t count);
  Result<Placed> place(uint64_t num_ids, const KvLayer* full = nullptr);
  Status propose_blocks(std::span<const Ask> asks);
  Status propose_pairs(std::span<const Ask> asks);
  void roll_out(const Placed& placed, int32_t longest);
  Status run(Placed& placed, int32_t longest, const std::function<void()>& work);
  void set_tables(std::span<const Ask> asks, int32_t num_more);
  Status read_ids(const int32_t* ids, size_t count);
  Status report(const Placed& placed, std::span<const SeqId> seqs,
                std::span<const int32_t> positions);

  Engine& engine_;
  std::unique_ptr<DraftHead> head_;
  const int32_t hidden_, page_tokens_, num_own_pages_;
  const int32_t most_pages_;  // of a sequence
  const int32_t most_kept_;   // features of a sequence's last launch
  PackedCopy copy_;
  Pass pass_;
  std::vector<int32_t> kept_;   // numbers of the launch's features that are kept
  std::vector<int32_t> steps_;  // positions of the passes behind the first, [steps, rows]
  std::vector<int32_t> unused_windows_;
  Buffer host_ids_;
  std::unordered_map<SeqId, Tail> tails_;
  int64_t num_kept_ = 0;  // ever
  OnLogits on_logits_;
  std::vector<float> logits_;  // of on_logits_
};

}  // namespace moxie
