// Cuts a launch of attend into tiles and runs them: blocks of neighbouring tokens of one sequence
// (cut at positions that are multiples of 16) x KV heads, each in segments of keys.
//
// If there are too few blocks for all threads, the segments of a block run side by side, and the
// thread that finishes the last one merges them. The result is the same to the bit: the cuts depend
// on positions only, and segments are always merged in order. So threads, chunks and batches do not
// change it.
#include <algorithm>
#include <atomic>
#include <new>

#include "core/threads.h"
#include "kernels/attend/attend_rows.h"
#include "kernels/attend/attend_tile.h"
#include "kernels/scratch.h"

namespace moxie {
namespace {

constexpr int32_t kMaxSegments = 32;  // of a block
constexpr int32_t kMinSegmentKeys = 256;
constexpr int32_t kMaxSplitTokens = 16;  // launches with more tokens have enough blocks

struct Block {
  int32_t first_token, num_tokens;
  int32_t seq;
  int32_t segment_keys;
  int32_t first_segment, num_segments;
  int32_t first_task;  // of the split form
};

// Keys of a segment for a token: 256, or more if 32 such segments would not suffice. A power of two
// that depends on position / 16 only.
int32_t segment_keys(int32_t position) {
  const int64_t reach = (static_cast<int64_t>(position) / kAttendMaxTokens + 1) * kAttendMaxTokens;
  int32_t keys = kMinSegmentKeys;
  while (int64_t{keys} * kMaxSegments < reach) keys *= 2;
  return keys;
}

int32_t group_of(const AttendParams& params) { return params.num_heads / params.num_kv_heads; }

int32_t tokens_of_block(const AttendParams& params) {
  int32_t tokens = kAttendMaxTokens;
  while (tokens > 1 && tokens * group_of(params) > kAttendMaxRows) tokens /= 2;
  return tokens;
}

bool may_split(const AttendParams& params) {
  return params.batch.num_tokens <= kMaxSplitTokens &&
         (params.window == 0 || params.window > kMinSegmentKeys);
}

struct Plan {
  Block* blocks;  // [tokens] at most
  // Split form only: [tokens, heads, segments, head_dim + 16]; and, by block and KV head, the
  // number of unfinished segments.
  float* partials;
  std::atomic<int32_t>* segments_left;
  uint64_t bytes;

  Plan(const AttendParams& params, std::byte* workspace) {
    Scratch scratch(workspace);
    blocks = scratch.take<Block>(params.batch.num_tokens);
    const int64_t split_tokens = may_split(params) ? params.batch.num_tokens : 0;
    partials = scratch.take<float>(split_tokens * partial_size(params));
    segments_left = scratch.take<std::atomic<int32_t>>(split_tokens * params.num_kv_heads);
    bytes = scratch.bytes();
  }
  // Floats of the partials of one token. A row takes head_dim floats, its m and l, and padding that
  // aligns the next tile's rows to 64 bytes.
  static int64_t partial_size(const AttendParams& params) {
    return static_cast<int64_t>(params.num_heads) * kMaxSegments * (params.head_dim + 16);
  }
};

void check_pages(const AttendParams& params, int32_t seq, int32_t first_key, int32_t end_key) {
  const KvLayer& kv = params.kv;
  for (int32_t i = first_key / kv.page_tokens; i <= (end_key - 1) / kv.page_tokens; ++i) {
    CHECK(kv.page_table[static_cast<int64_t>(seq) * kv.table_stride + i] >= 0,
          "attend: logical page " + std::to_string(i) + " of sequence row " + std::to_string(seq) +
              " is needed and not there");
  }
}

// Fills the blocks; returns their number.
int32_t cut_blocks(const AttendParams& params, Block* blocks) {
  const Ragged& batch = params.batch;
  const int32_t most = tokens_of_block(params);
  int32_t num_blocks = 0, num_tasks = 0;
  for (int32_t t = 0; t < batch.num_tokens;) {
    Block block{.first_token = t, .num_tokens = 1, .seq = batch.seq_idx[t]};
    const int32_t first = batch.positions[t];
    while (t + block.num_tokens < batch.num_tokens) {
      const int32_t next = t + block.num_tokens;
      const int32_t position = first + block.num_tokens;
      if (position % most == 0 || batch.seq_idx[next] != block.seq ||
          batch.positions[next] != position) {
        break;
      }
      ++block.num_tokens;
    }
    const int32_t first_key = params.window > 0 ? std::max(0, first - params.window + 1) : 0;
    const int32_t end_key = first + block.num_tokens;
    check_pages(params, block.seq, first_key, end_key);
    block.segment_keys = segment_keys(first);
    block.first_segment = first_key / block.segment_keys;
    block.num_segments = ceil_div(end_key, block.segment_keys) - block.first_segment;
    block.first_task = num_tasks;
    num_tasks += block.num_segments * params.num_kv_heads;
    t += block.num_tokens;
    blocks[num_blocks++] = block;
  }
  return num_blocks;
}

AttendKvType kv_type(DType dtype) {
  return dtype == DType::kF32    ? AttendKvType::kF32
         : dtype == DType::kBF16 ? AttendKvType::kBF16
                                 : AttendKvType::kF8E4M3;
}

// A thread's memory for one tile; most rows are touched by prefill only.
template <int kHeadDim>
struct TileMemory {
  alignas(64) float q[kAttendMaxRows * kHeadDim];
  alignas(64) float k_columns[kAttendChunk * kHeadDim];
  alignas(64) float v_rows[kAttendChunk * kHeadDim];
  alignas(64) float scores[kAttendMaxRows * kAttendChunk];
  alignas(64) float lane_sums[kAttendMaxRows * 16];
  alignas(64) float part_o[kAttendMaxRows * kHeadDim];
  alignas(64) float total_o[kAttendMaxRows * kHeadDim];
  alignas(64) float part_m[kAttendMaxRows], part_l[kAttendMaxRows];
  alignas(64) float total_m[kAttendMaxRows], total_l[kAttendMaxRows];

  AttendPartial part() { return {part_o, part_m, part_l}; }
  // A total with nothing added.
  AttendPartial clear_total(int32_t num_rows, int32_t head_dim) {
    std::fill_n(total_o, static_cast<int64_t>(num_rows) * head_dim, 0.0f);
    std::fill_n(total_m, num_rows, -3.402823466e38f);
    std::fill_n(total_l, num_rows, 0.0f);
    return {total_o, total_m, total_l};
  }
};

template <int kHeadDim>
AttendTile make_tile(const AttendParams& params, const Block& block, int32_t kv_head,
                     TileMemory<kHeadDim>& memory) {
  const KvLayer& kv = params.kv;
  const int32_t group = group_of(params), dim = params.head_dim;
  float* out = memory.q;
  for (int32_t t = 0; t < block.num_tokens; ++t) {
    const float* q =
        params.q +
        (static_cast<int64_t>(block.first_token + t) * params.num_heads + kv_head * group) * dim;
    for (int32_t i = 0; i < group * dim; ++i) *out++ = q[i] * params.scale;
  }
  const int64_t row_bytes = kv.row_bytes(dim);
  const int64_t head_bytes = kv_head * kv.page_tokens * row_bytes;
  return {.q = memory.q,
          .positions = params.batch.positions + block.first_token,
          .num_tokens = block.num_tokens,
          .group = group,
          .head_dim = dim,
          .window = params.window,
          .type = kv_type(kv.dtype),
          .k = reinterpret_cast<const unsigned char*>(kv.k) + head_bytes,
          .v = reinterpret_cast<const unsigned char*>(kv.v) + head_bytes,
          .page_stride_bytes = kv.page_stride_bytes,
          .row_bytes = row_bytes,
          .pages = kv.page_table + static_cast<int64_t>(block.seq) * kv.table_stride,
          .page_tokens = kv.page_tokens,
          .k_columns = memory.k_columns,
          .v_rows = memory.v_rows,
          .scores = memory.scores,
          .lane_sums = memory.lane_sums};
}

void finish_rows(const AttendTileCode& code, const AttendParams& params, const Block& block,
                 int32_t kv_head, const AttendPartial& total) {
  const int32_t group = group_of(params);
  for (int32_t row = 0; row < block.num_tokens * group; ++row) {
    const int32_t token = block.first_token + row / group, head = kv_head * group + row % group;
    const float* sink = params.sinks != nullptr ? params.sinks + head : nullptr;
    float* out =
        params.a + (static_cast<int64_t>(token) * params.num_heads + head) * params.head_dim;
    code.finish(total, row, params.head_dim, sink, out);
  }
}

// Runs a whole block for one KV head.
template <int kHeadDim>
void run_block(const AttendTileCode& code, const AttendParams& params, const Block& block,
               int32_t kv_head) {
  TileMemory<kHeadDim> memory;
  const AttendTile tile = make_tile(params, block, kv_head, memory);
  const int32_t num_rows = block.num_tokens * group_of(params);
  const AttendPartial total = memory.clear_total(num_rows, params.head_dim);
  for (int32_t s = block.first_segment; s < block.first_segment + block.num_segments; ++s) {
    code.segment(tile, s * block.segment_keys, (s + 1) * block.segment_keys, memory.part());
    code.merge(total, memory.part(), num_rows, params.head_dim);
  }
  finish_rows(code, params, block, kv_head, total);
}

// The place of segment `s` of a block and KV head in the split form.
AttendPartial partial_at(const AttendParams& params, const Plan& plan, const Block& block,
                         int32_t kv_head, int32_t s) {
  const int64_t num_rows = int64_t{block.num_tokens} * group_of(params);
  float* base = plan.partials + block.first_token * Plan::partial_size(params) +
                (int64_t{kv_head} * kMaxSegments + s) * num_rows * (params.head_dim + 16);
  float* m = base + num_rows * params.head_dim;
  return {base, m, m + num_rows};
}

template <int kHeadDim>
void run_split(const AttendTileCode& code, const AttendParams& params, const Plan& plan,
               int32_t num_blocks) {
  const Block& last = plan.blocks[num_blocks - 1];
  for (int32_t i = 0; i < num_blocks * params.num_kv_heads; ++i)
    new (&plan.segments_left[i]) std::atomic(plan.blocks[i / params.num_kv_heads].num_segments);
  auto segment = [&](int64_t task, int) {
    const Block* block = plan.blocks;
    while (block < &last && task >= block[1].first_task) ++block;
    const auto rest = static_cast<int32_t>(task) - block->first_task;
    const int32_t kv_head = rest / block->num_segments, s = rest % block->num_segments;
    TileMemory<kHeadDim> memory;
    const AttendTile tile = make_tile(params, *block, kv_head, memory);
    const int32_t first = (block->first_segment + s) * block->segment_keys;
    code.segment(tile, first, first + block->segment_keys,
                 partial_at(params, plan, *block, kv_head, s));
    const int64_t at = (block - plan.blocks) * params.num_kv_heads + kv_head;
    if (plan.segments_left[at].fetch_sub(1) > 1) return;
    const int32_t num_rows = block->num_tokens * group_of(params);
    const AttendPartial total = memory.clear_total(num_rows, params.head_dim);
    for (int32_t i = 0; i < block->num_segments; ++i)
      code.merge(total, partial_at(params, plan, *block, kv_head, i), num_rows, params.head_dim);
    finish_rows(code, params, *block, kv_head, total);
  };
  params.launch.stream->pool->run(
      last.first_task + int64_t{last.num_segments} * params.num_kv_heads, segment);
}

template <int kHeadDim>
void run_launch(const AttendTileCode& code, const AttendParams& params) {
  const Plan plan(params, params.launch.workspace);
  const int32_t num_blocks = cut_blocks(params, plan.blocks);
  ThreadPool& pool = *params.launch.stream->pool;
  const int64_t num_tasks = int64_t{num_blocks} * params.num_kv_heads;
  // Two tasks a thread balance the load well enough, and need no memory for partials.
  const bool split = num_tasks > 0 && may_split(params) &&
                     num_tasks < 2 * int64_t{pool.num_threads()} && pool.num_threads() > 1;
  if (split) {
    run_split<kHeadDim>(code, params, plan, num_blocks);
    return;
  }
  // Late blocks see the most keys and run first. One KV head at a time, so that its keys stay in
  // cache.
  auto block = [&](int64_t task, int) {
    const auto kv_head = static_cast<int32_t>(task / num_blocks);
    run_block<kHeadDim>(code, params, plan.blocks[num_blocks - 1 - task % num_blocks], kv_head);
  };
  pool.run(num_tasks, block);
}

void run_any(const AttendTileCode& code, const AttendParams& params) {
  if (params.head_dim <= 64) {
    run_launch<64>(code, params);
  } else {
    run_launch<kAttendMaxHeadDim>(code, params);
  }
}

}  // namespace

const char* attend_flash_refuses(const AttendParams& params) {
  if (params.head_dim % 16 != 0 || params.head_dim > kAttendMaxHeadDim)
    return "head size is not a multiple of 16 up to 256";
  if (group_of(params) > kAttendMaxRows) return "more than 128 query heads for a KV head";
  return nullptr;
}

const char* attend_flash_bf16_refuses(const AttendParams& params) {
  if (params.kv.dtype == DType::kF32) return "the cache is F32, which products in BF16 would round";
  if (params.head_dim % 32 != 0 || params.head_dim > kAttendMaxBf16HeadDim)
    return "head size is not a multiple of 32 up to 128";
  return attend_flash_refuses(params);
}

bool attend_flash_bf16_is_worth_it(const AttendParams& params) {
  constexpr int64_t kLeastTokens = 16;
  const int64_t num_seqs = std::max(1, params.batch.num_seqs);
  const int64_t width = int64_t{params.num_heads} * params.head_dim;
  return params.batch.num_tokens >= kLeastTokens * num_seqs && width >= kLeastBf16AttendWidth;
}

uint64_t attend_flash_workspace(const AttendParams& params) { return Plan(params, nullptr).bytes; }

void attend_flash(const AttendParams& params, const AttendTileCode& code) { run_any(code, params); }

#if !defined(__aarch64__)
const AttendTileCode kAttendTileNeon = {};
#endif
const char* attend_flash_neon_refuses(const AttendParams& params) {
  if (kAttendTileNeon.segment == nullptr) return "not compiled for this architecture";
  return attend_flash_refuses(params);
}

}  // namespace moxie
