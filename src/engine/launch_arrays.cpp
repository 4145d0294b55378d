// One packed copy a launch.
#include "engine/launch_arrays.h"

#include <algorithm>
#include <cstring>

namespace moxie {
namespace {

constexpr uint64_t kAlign = 64;

uint64_t padded(uint64_t count) { return round_up<uint64_t>(4 * count, kAlign); }

}  // namespace

void HostArrays::clear() {
  for (auto* list :
       {&token_ids, &positions, &seq_idx, &logit_rows, &full_tables, &window_tables, &fed}) {
    list->clear();
  }
  row_offsets.assign(1, 0);
  seqs.clear();
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
  return 3 * padded(tokens) + padded(seqs + 1) + padded(static_cast<uint64_t>(num_logit_rows)) +
         2 * padded(seqs * static_cast<uint64_t>(table_stride));
}

Result<LaunchArrays> LaunchArrays::create(Device& device, const Limits& limits) {
  LaunchArrays arrays;
  arrays.device_ = &device;
  if (device.kind() == DeviceKind::kCpu) return arrays;
  auto memory = device.allocate(limits.bytes());
  if (!memory) return fail(std::move(memory.error()));
  arrays.memory_ = std::move(*memory);
  auto staging = device.allocate_host(kSlots * limits.bytes());
  if (!staging) return fail(std::move(staging.error()));
  arrays.staging_ = std::move(*staging);
  return arrays;
}

Result<Batch> LaunchArrays::place(const HostArrays& host, const KvCache& kv, Stream& stream,
                                  std::vector<KvLayer>* layers) {
  Batch batch{.ragged = {.num_tokens = static_cast<int32_t>(host.token_ids.size()),
                         .num_seqs = static_cast<int32_t>(host.row_offsets.size()) - 1,
                         .positions = host.positions.data(),
                         .seq_idx = host.seq_idx.data(),
                         .row_offsets = host.row_offsets.data(),
                         .num_visible_keys = host.num_visible_keys},
              .token_ids = host.token_ids.data(),
              .num_logit_rows = static_cast<int32_t>(host.logit_rows.size()),
              .logit_rows = host.logit_rows.data()};
  const int32_t *full = host.full_tables.data(), *window = host.window_tables.data();
  if (device_->kind() != DeviceKind::kCpu) {
    if (slot_ == kSlots) {
      if (auto status = stream.synchronize(); !status) return fail(std::move(status.error()));
      slot_ = 0;
    }
    std::byte* staging = staging_.data() + static_cast<uint64_t>(slot_++) * memory_.bytes();
    uint64_t used = 0;
    const auto put = [&](const std::vector<int32_t>& list) {
      CHECK(used + padded(list.size()) <= memory_.bytes(), "a launch larger than its limits");
      if (!list.empty()) std::memcpy(staging + used, list.data(), 4 * list.size());
      const auto* place = reinterpret_cast<const int32_t*>(memory_.data() + used);
      used += padded(list.size());
      return place;
    };
    batch.token_ids = put(host.token_ids);
    batch.ragged.positions = put(host.positions);
    batch.ragged.seq_idx = put(host.seq_idx);
    batch.ragged.row_offsets = put(host.row_offsets);
    batch.logit_rows = put(host.logit_rows);
    full = put(host.full_tables);
    window = put(host.window_tables);
    auto status = device_->copy_from_host(memory_.data(), staging, used, stream);
    if (!status) return fail(std::move(status.error()));
  }
  kv.layer_views(full, window, host.table_stride, layers);
  return batch;
}

}  // namespace moxie
