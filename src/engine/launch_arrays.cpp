// One packed copy a launch.
#include "engine/launch_arrays.h"

#include <algorithm>

namespace moxie {

void HostArrays::clear() {
  for (auto* list :
       {&token_ids, &positions, &seq_idx, &logit_rows, &full_tables, &window_tables, &fed}) {
    list->clear();
  }
  row_offsets.assign(1, 0);
  seqs.clear();
  serials.clear();
  table_stride = num_fed = 0;
  num_visible_keys = 0;
}

void build_arrays(std::span<const Chunk> chunks, const KvCache& kv, int32_t table_stride,
                  HostArrays* arrays) {
  HostArrays& s = *arrays;
  s.clear();
  int32_t longest = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const Chunk& chunk = chunks[c];
    const auto count = static_cast<int32_t>(chunk.tokens.size());
    const int32_t end = kv.num_tokens(chunk.seq), start = end - count;
    s.seqs.push_back(chunk.seq);
    s.serials.push_back(kv.serial(chunk.seq));
    for (int32_t i = 0; i < count; ++i) {
      const bool wanted =
          chunk.logits == Logits::kAll || (chunk.logits == Logits::kLast && i + 1 == count);
      if (wanted) s.logit_rows.push_back(static_cast<int32_t>(s.token_ids.size()));
      s.token_ids.push_back(chunk.tokens[static_cast<size_t>(i)]);
      s.positions.push_back(start + i);
      s.seq_idx.push_back(static_cast<int32_t>(c));
      s.num_visible_keys += start + i + 1;
    }
    s.row_offsets.push_back(static_cast<int32_t>(s.token_ids.size()));
    longest = std::max(longest, end);
  }
  s.table_stride = table_stride > 0 ? table_stride : ceil_div(longest, kv.shape().page_tokens);
  const auto stride = static_cast<size_t>(s.table_stride);
  s.full_tables.resize(chunks.size() * stride);
  s.window_tables.resize(chunks.size() * stride);
  for (size_t c = 0; c < chunks.size(); ++c) {
    kv.fill_tables(chunks[c].seq, std::span(s.full_tables).subspan(c * stride, stride),
                   std::span(s.window_tables).subspan(c * stride, stride));
  }
}

void build_next_arrays(std::span<const Chunk> chunks, const KvCache& kv, HostArrays* arrays) {
  HostArrays& s = *arrays;
  s.clear();
  s.table_stride = 1;
  for (const Chunk& chunk : chunks) {
    CHECK(chunk.tokens.size() == 1);
    const int32_t position = kv.num_tokens(chunk.seq) - 1;
    const int32_t page_idx = position / kv.shape().page_tokens;
    const auto row = static_cast<int32_t>(s.token_ids.size());
    s.token_ids.push_back(chunk.tokens.front());
    s.positions.push_back(position);
    s.seq_idx.push_back(row);
    s.logit_rows.push_back(row);
    s.row_offsets.push_back(row + 1);
    s.full_tables.push_back(kv.page_at(chunk.seq, PageKind::kFull, page_idx));
    s.window_tables.push_back(kv.page_at(chunk.seq, PageKind::kWindow, page_idx));
    s.num_visible_keys += position + 1;
  }
}

uint64_t LaunchArrays::Limits::bytes() const {
  const auto tokens = static_cast<uint64_t>(num_tokens), seqs = static_cast<uint64_t>(num_seqs);
  const auto padded = PackedCopy::padded;
  return 3 * padded(tokens) + padded(seqs + 1) + padded(static_cast<uint64_t>(num_logit_rows)) +
         2 * padded(seqs * static_cast<uint64_t>(table_stride));
}

Result<LaunchArrays> LaunchArrays::create(Device& device, const Limits& limits) {
  // The CPU reads the host's lists.
  auto copy = PackedCopy::create(device, device.kind() == DeviceKind::kCpu ? 0 : limits.bytes());
  if (!copy) return fail(std::move(copy.error()));
  return LaunchArrays(std::move(*copy));
}

Result<Batch> LaunchArrays::place(const HostArrays& host, const KvCache& kv, Stream& stream,
                                  std::vector<KvLayer>* layers) {
  auto status = copy_.begin(stream);
  if (!status) return fail(std::move(status.error()));
  const Batch batch{.ragged = {.num_tokens = static_cast<int32_t>(host.token_ids.size()),
                               .num_seqs = static_cast<int32_t>(host.row_offsets.size()) - 1,
                               .positions = copy_.put(host.positions),
                               .seq_idx = copy_.put(host.seq_idx),
                               .row_offsets = copy_.put(host.row_offsets),
                               .num_visible_keys = host.num_visible_keys},
                    .token_ids = copy_.put(host.token_ids),
                    .num_logit_rows = static_cast<int32_t>(host.logit_rows.size()),
                    .logit_rows = copy_.put(host.logit_rows)};
  const int32_t* full = copy_.put(host.full_tables);
  const int32_t* window = copy_.put(host.window_tables);
  if (status = copy_.finish(stream); !status) return fail(std::move(status.error()));
  kv.layer_views(full, window, host.table_stride, layers);
  return batch;
}

}  // namespace moxie
