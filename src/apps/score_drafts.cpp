// moxie score --draft-logits: what a draft head predicts behind given token ids, by the path that a
// server drafts on.
#include <fmt/format.h>

#include <algorithm>

#include "apps/score.h"
#include "engine/head_drafter.h"
#include "weights/safetensors_write.h"

namespace moxie {
namespace {

struct Drafted {
  std::vector<float> logits;  // [rows, draft vocab]
  std::vector<int32_t> ids;
  int32_t next = 0;
};

int32_t best_of(const std::vector<float>& logits, int32_t vocab) {
  const auto last = logits.end() - vocab;
  return static_cast<int32_t>(std::max_element(last, logits.end()) - last);
}

Result<Drafted> draft_behind(Engine& engine, HeadDrafter& drafter, int32_t num_drafts,
                             const std::vector<int32_t>& ids) {
  const DraftConfig& config = drafter.config();
  const bool is_dflash = config.kind == DraftKind::kDflash;
  const auto n = static_cast<int32_t>(ids.size());
  const auto width = static_cast<size_t>(config.draft_vocab);
  Drafted found;
  // EAGLE: row P. DFlash: row j - 1 predicts position n + j.
  const int32_t first = is_dflash ? n + 1 : 0;
  const int32_t num_rows = is_dflash ? config.block - 1 : n;
  found.logits.assign(static_cast<size_t>(num_rows) * width, 0.0f);
  std::vector<bool> is_there(static_cast<size_t>(num_rows));
  drafter.set_on_logits([&](SeqId, int32_t position, const float* logits) {
    const auto row = static_cast<size_t>(position - first);
    if (position < first || row >= is_there.size()) return;
    std::copy_n(logits, width, found.logits.begin() + static_cast<std::ptrdiff_t>(row * width));
    is_there[row] = true;
  });
  struct Guard {
    KvCache& kv;
    HeadDrafter& drafter;
    SeqId seq;
    ~Guard() {
      kv.free_sequence(seq);
      drafter.set_on_logits({});
    }
  } guard{engine.kv(), drafter, engine.kv().add_sequence()};
  std::vector<float> logits;
  if (auto run = score_ids(engine, guard.seq, ids, &logits); !run)
    return fail(std::move(run.error()));
  found.next = best_of(logits, engine.config().vocab);
  std::vector<int32_t> tokens = ids;
  tokens.push_back(found.next);
  if (!engine.kv().append(guard.seq, 1)) return fail("no free pages in the KV cache", "score");
  const Drafter::Ask ask{
      .request = 1, .seq = guard.seq, .tokens = tokens, .limit = num_drafts, .drafts = &found.ids};
  drafter.propose(ask);
  const bool is_whole = std::all_of(is_there.begin(), is_there.end(), [](bool it) { return it; });
  CHECK(is_whole, "a row of the head that no pass computed");
  return found;
}

}  // namespace

Status write_draft_logits(Engine& engine, const std::vector<std::vector<int32_t>>& lists,
                          const std::string& path) {
  auto made = HeadDrafter::create(engine);
  if (!made) return fail(std::move(made.error()));
  HeadDrafter& drafter = **made;
  const DraftConfig& config = drafter.config();
  const int32_t asked = engine.options().speculation.max_drafts;
  const int32_t num_drafts = asked > 0 ? asked : config.num_drafts;
  std::vector<Drafted> all;
  for (const auto& ids : lists) {
    auto found = draft_behind(engine, drafter, num_drafts, ids);
    if (!found) return fail(std::move(found.error()));
    all.push_back(std::move(*found));
  }
  std::vector<TensorToWrite> tensors;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto bytes = [](const auto* values) {
      return reinterpret_cast<const std::byte*>(values);
    };
    const auto num_rows = static_cast<int64_t>(all[i].logits.size()) / config.draft_vocab;
    tensors.push_back({fmt::format("draft_logits.{}", i),
                       "F32",
                       {num_rows, config.draft_vocab},
                       bytes(all[i].logits.data())});
    tensors.push_back({fmt::format("draft_ids.{}", i),
                       "I32",
                       {static_cast<int64_t>(all[i].ids.size())},
                       bytes(all[i].ids.data())});
    tensors.push_back({fmt::format("next_id.{}", i), "I32", {1}, bytes(&all[i].next)});
  }
  return write_safetensors(path, tensors);
}

}  // namespace moxie
