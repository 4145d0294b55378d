// Ranges of rows, columns and experts.
#include "model/shard.h"

#include <fmt/format.h>

#include "kernels/gather/gather.h"

namespace moxie {
namespace {

Error cannot_divide(const char* what, int32_t count, int32_t num_ranks) {
  return {fmt::format("{} {} do not divide among {} ranks", count, what, num_ranks),
          "--tensor-parallel-size", "fewer ranks"};
}

// Columns of every row, from the first on.
void take_columns(StoredRows* rows, int32_t first, int32_t count) {
  rows->cols = count;
  if (rows->transposed) {
    rows->data += first * rows->row_stride_bytes;
    return;
  }
  switch (rows->kind) {
    case StoredRows::Kind::kF32:
      rows->data += int64_t{4} * first;
      return;
    case StoredRows::Kind::kF16:
    case StoredRows::Kind::kBF16:
      rows->data += int64_t{2} * first;
      return;
    case StoredRows::Kind::kQ8_0:
      rows->data += int64_t{34} * (first / kMxBlock);
      return;
    case StoredRows::Kind::kMxfp4Gguf:
      rows->data += int64_t{17} * (first / kMxBlock);
      return;
    case StoredRows::Kind::kMxfp4Split:
      rows->data += int64_t{16} * (first / kMxBlock);
      rows->scales += first / kMxBlock;
      return;
  }
}

// What is added once: the first rank has it. A rank's own experts' it has as well.
bool is_of_another_rank(const Weight& weight, const Share& share) {
  return weight.entry->shard == ShardAxis::kFirstRank && share.rank > 0 &&
         !(weight.entry->is_per_expert && share.splits_experts());
}

}  // namespace

Result<GptOssConfig> config_of_rank(const GptOssConfig& whole, const Ranks& ranks, int32_t rank) {
  GptOssConfig config = whole;
  if (ranks.size == 1) return config;
  const int32_t n = ranks.size;
  CHECK(n > 1 && rank >= 0 && rank < n);
  Share& share = config.share;
  share.rank = rank;
  share.num_ranks = n;
  share.link = ranks.link;
  const int32_t kv_heads = whole.num_kv_heads;
  if (whole.num_heads % n != 0) return fail(cannot_divide("heads", whole.num_heads, n));
  if (kv_heads % n != 0 && n % kv_heads != 0)
    return fail(cannot_divide("heads of keys and values", kv_heads, n));
  config.num_heads = whole.num_heads / n;
  share.first_head = rank * config.num_heads;
  config.num_kv_heads = std::max(1, kv_heads / n);
  share.first_kv_head = static_cast<int32_t>(int64_t{kv_heads} * rank / n);

  if (ranks.splits_experts) {
    if (whole.num_experts < n) return fail(cannot_divide("experts", whole.num_experts, n));
    const RankShare experts = share_of_rank(whole.num_experts, 1, rank, n);
    share.first_expert = experts.first;
    share.experts = experts.count;
  } else {
    // Rows for GPUs take columns by 64, where there are as many.
    const bool is_even = whole.intermediate % 64 == 0 && whole.intermediate / 64 >= n;
    share.column_unit = is_even ? 64 : kMxBlock;
    const RankShare columns = share_of_rank(whole.intermediate, share.column_unit, rank, n);
    if (ceil_div(whole.intermediate, kMxBlock) < n)
      return fail(cannot_divide("columns of an expert", whole.intermediate, n));
    share.first_column = columns.first;
    config.intermediate = columns.count;
  }
  if (ceil_div(whole.vocab, kLogitUnit) < n) return fail(cannot_divide("logits", whole.vocab, n));
  const RankShare logits = share_of_rank(whole.vocab, kLogitUnit, rank, n);
  share.first_logit = logits.first;
  share.logits = logits.count;
  share.has_taps = ranks.has_taps;
  share.holds_unembed = ranks.first_holds_unembed && rank == 0;
  return config;
}

StoredWeights stored_of_rank(const StoredWeights& whole, const GptOssConfig& of_rank) {
  StoredWeights stored{.parts = whole.parts};
  for_each_weight(of_rank, [&](const Weight& weight) {
    std::vector<StoredPart>& parts = stored.parts.at(weight.index);
    if (is_of_another_rank(weight, of_rank.share)) parts.clear();
    for (size_t p = 0; p < parts.size(); ++p) {
      StoredPart& part = parts[p];
      part.rows = part.expert(weight.first_expert);
      part.first += weight.part_first[p] * part.step;
      part.num_rows = weight.part_rows[p];
      if (!weight.is_vector() && weight.cols != part.rows.cols)
        take_columns(&part.rows, weight.first_col, weight.cols);
    }
  });
  return stored;
}

}  // namespace moxie
