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
#include "model/draft_head.h"

namespace moxie {

class HeadDrafter : public Drafter, public LaunchFollower {
 public:
  /// `engine` was loaded for this head (EngineOptions::speculation); it must outlive the drafter.
  static Result<std::unique_ptr<HeadDrafter>> create(Engine& engine);
  ~HeadDrafter() override;

  bool shares_device() const override { return true; }
  void propose(const Ask& ask) override { propose_all({&ask, 1}); }
  void propose_all(std::span<const Ask> asks) override;
  void observe(RequestId, std::span<const int32_t>, int32_t) override {}
  void forget(RequestId) override {}
  void follow(const HostArrays& arrays) override;

  const DraftConfig& config() const { return head_->config(); }
  /// For `moxie score`: is called with the logits [draft vocab] of every row that the head computes
  /// for a known position, EAGLE row P with P, row j of a DFlash block with the position that it
  /// predicts. Makes following slow.
  using OnLogits = std::function<void(SeqId seq, int32_t position, const float* logits)>;
  void set_on_logits(OnLogits on_logits) { on_logits_ = std::move(on_logits); }

 private:
  // The features of a sequence's last tokens, for the row whose next token was not known.
  struct Tail {
    int32_t first = 0;     // position of the first feature
    int32_t drafted = -1;  // the position behind which the head has drafted last
    std::vector<float> g;  // [count, hidden]
  };
  // Rows of one pass, in memory that is kept.
  struct Pass {
    std::vector<int32_t> tokens, positions, last_visible, seq_idx, row_offsets, table;
    std::vector<SeqId> seqs;
    std::vector<float> g;
    int32_t table_stride = 0;
    void clear();
    void begin_sequence(SeqId seq);
    void add(int32_t token, int32_t position, const float* feature, int32_t hidden);
    int32_t size() const { return static_cast<int32_t>(tokens.size()); }
    DraftRows rows();
  };

  HeadDrafter(Engine& engine, std::unique_ptr<DraftHead> head);
  void follow_pairs(const HostArrays& arrays, int32_t num_tokens);
  void follow_context(const HostArrays& arrays, int32_t num_tokens);
  void keep_tail(SeqId seq, int32_t first, int32_t count, const float* g);
  void propose_blocks(std::span<const Ask> asks);
  void propose_pairs(std::span<const Ask> asks);
  void roll_out(std::vector<Ask> asks, int32_t longest);
  void set_tables(std::span<const Ask> asks, int32_t num_more);
  void draw(std::span<const int32_t> rows, std::vector<int32_t>* ids);
  void report(std::span<const int32_t> rows, std::span<const SeqId> seqs,
              std::span<const int32_t> positions);

  Engine& engine_;
  std::unique_ptr<DraftHead> head_;
  const int32_t hidden_, page_tokens_, num_own_pages_;
  Pass pass_;
  std::vector<float> g_, y_, logits_;
  std::vector<int32_t> unused_windows_;
  std::unordered_map<SeqId, Tail> tails_;
  OnLogits on_logits_;
};

}  // namespace moxie
