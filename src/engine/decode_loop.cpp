// Sessions of decoding: what lies on the device, what is given to it, and what comes back.
#include "engine/decode_loop.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

namespace moxie {

DecodeLoop::Arrays DecodeLoop::lay_out(Arena& arena) const {
  const auto rows = static_cast<uint64_t>(parts_.max_streams);
  const uint64_t table = rows * static_cast<uint64_t>(stride_);
  return {.token_ids = arena.take_array<int32_t>(rows),
          .positions = arena.take_array<int32_t>(rows),
          .seq_idx = arena.take_array<int32_t>(rows),
          .row_offsets = arena.take_array<int32_t>(rows + 1),
          .logit_rows = arena.take_array<int32_t>(rows),
          .full_tables = arena.take_array<int32_t>(table),
          .window_tables = arena.take_array<int32_t>(table),
          .fed = arena.take_array<int32_t>(rows * kMaxFed),
          .requests = arena.take_array<SampleRequest>(rows),
          .answers = arena.take_array<SampleAnswer>(rows),
          .counters = arena.take_array<AdvanceCounters>(1)};
}

Result<std::unique_ptr<DecodeLoop>> DecodeLoop::create(const Parts& parts) {
  std::unique_ptr<DecodeLoop> loop(new DecodeLoop(parts));
  DecodeLoop& l = *loop;
  l.parts_.use_graphs = parts.use_graphs && parts.device.has_graphs();
  l.stride_ = ceil_div(parts.max_model_len, parts.kv.shape().page_tokens);
  const int32_t max_streams = parts.max_streams;
  CHECK(max_streams >= 1 && max_streams <= kMostStreams, std::to_string(max_streams));
  l.recorded_.resize(2 * (static_cast<size_t>(max_streams) + 1));
  const auto rows = static_cast<uint64_t>(max_streams);
  const uint64_t bytes = 4 * (rows * (2 * static_cast<uint64_t>(l.stride_) + kMaxFed + 5) + 1) +
                         rows * (sizeof(SampleRequest) + sizeof(SampleAnswer)) + 16 * 256;
  auto memory = parts.device.allocate(bytes);
  if (!memory) return fail(std::move(memory.error()));
  auto staging = parts.device.allocate_host(bytes);
  if (!staging) return fail(std::move(staging.error()));
  const uint64_t word_bytes = round_up<uint64_t>(8 * kSlots * rows, 256);
  auto ring = parts.device.allocate_host(word_bytes + kSlots * rows * sizeof(SampleAnswer));
  if (!ring) return fail(std::move(ring.error()));
  Arena device_arena(std::move(*memory)), host_arena(std::move(*staging));
  l.device_ = l.lay_out(device_arena);
  l.host_ = l.lay_out(host_arena);
  l.memory_ = device_arena.release();
  l.staging_ = host_arena.release();
  l.ring_ = std::move(*ring);
  std::memset(l.ring_.data(), 0, l.ring_.bytes());
  l.words_ = l.ring_.as<uint64_t>();
  l.answer_ring_ = reinterpret_cast<SampleAnswer*>(l.ring_.data() + word_bytes);

  // What no session changes.
  for (int32_t i = 0; i < max_streams; ++i) {
    l.host_.seq_idx[i] = l.host_.row_offsets[i] = l.host_.logit_rows[i] = i;
  }
  l.host_.row_offsets[max_streams] = max_streams;
  for (const auto& [list, count] : {std::pair{l.host_.seq_idx, max_streams},
                                    {l.host_.row_offsets, max_streams + 1},
                                    {l.host_.logit_rows, max_streams}}) {
    if (auto status = l.copy(list, 4ull * static_cast<uint64_t>(count)); !status) {
      return fail(std::move(status.error()));
    }
  }
  parts.kv.layer_views(l.device_.full_tables, l.device_.window_tables, l.stride_, &l.layers_);
  l.table_scratch_.resize(2 * static_cast<size_t>(l.stride_));
  return loop;
}

// From the host's side of an array to the device's.
Status DecodeLoop::copy(const void* host_side, uint64_t bytes) {
  const auto at = static_cast<uint64_t>(static_cast<const std::byte*>(host_side) - staging_.data());
  return parts_.device.copy_from_host(memory_.data() + at, host_side, bytes, parts_.stream);
}

void DecodeLoop::forward(int32_t num_streams) {
  const Batch batch{.ragged = {.num_tokens = num_streams,
                               .num_seqs = num_streams,
                               .positions = device_.positions,
                               .seq_idx = device_.seq_idx,
                               .row_offsets = device_.row_offsets},
                    .token_ids = device_.token_ids,
                    .num_logit_rows = num_streams,
                    .logit_rows = device_.logit_rows};
  parts_.model.forward(batch, layers_, parts_.activations, parts_.stream);
}

void DecodeLoop::draw(int32_t num_streams, bool all_plain) {
  const Launch launch{.device = parts_.device.kind(),
                      .stream = &parts_.stream,
                      .workspace = parts_.activations.workspace,
                      .workspace_bytes = parts_.activations.workspace_bytes};
  parts_.kernels.run(SampleParams{.launch = launch,
                                  .num_rows = num_streams,
                                  .vocab = parts_.model.config().vocab,
                                  .logits = parts_.activations.logits,
                                  .requests = device_.requests,
                                  .answers = device_.answers,
                                  .all_plain = all_plain});
  advance({.launch = launch,
           .num_rows = num_streams,
           .answers = device_.answers,
           .requests = device_.requests,
           .token_ids = device_.token_ids,
           .positions = device_.positions,
           .fed = device_.fed,
           .fed_stride = kMaxFed,
           .counters = device_.counters,
           .words = words_,
           .answer_ring = answer_ring_,
           .num_slots = kSlots,
           .row_stride = parts_.max_streams});
}

Status DecodeLoop::prepare(int32_t num_streams, bool all_plain) {
  CHECK(num_streams >= 1 && num_streams <= parts_.max_streams);
  Recorded& recorded = this->recorded(num_streams, all_plain);
  if (!parts_.use_graphs || recorded.graph) return {};
  parts_.kernels.begin_recording();
  auto graph = parts_.device.capture(parts_.stream, [&] {
    forward(num_streams);
    draw(num_streams, all_plain);
  });
  recorded.launches = parts_.kernels.end_recording();
  if (!graph) return fail(std::move(graph.error()));
  recorded.graph = std::move(*graph);
  return {};
}

void DecodeLoop::forget_graphs() {
  CHECK(members_.empty(), "a session is running");
  for (Recorded& recorded : recorded_) recorded = {};
}

Status DecodeLoop::begin(std::span<const Member> members) {
  CHECK(members_.empty(), "a session is running");
  CHECK(!members.empty() && members.size() <= static_cast<size_t>(parts_.max_streams));
  const auto num_rows = static_cast<int32_t>(members.size());
  CHECK(num_rows <= parts_.activations.max_tokens && num_rows <= parts_.activations.max_logit_rows);
  all_plain_ = std::all_of(members.begin(), members.end(),
                           [](const Member& member) { return is_plain(member.request); });
  if (auto status = prepare(num_rows, all_plain_); !status) return status;
  draws_first_ = members.front().first_token < 0;
  const size_t num_fed = members.front().fed.size();
  CHECK(num_fed <= kMaxFed);
  for (size_t i = 0; i < members.size(); ++i) {
    const Member& member = members[i];
    CHECK((member.first_token < 0) == draws_first_ && member.fed.size() == num_fed);
    const int32_t num_tokens = parts_.kv.num_tokens(member.seq);
    members_.push_back({member.seq, num_tokens});
    host_.token_ids[i] = std::max(member.first_token, 0);
    host_.positions[i] = num_tokens - (draws_first_ ? 1 : 0);
    host_.requests[i] = member.request;
    std::copy(member.fed.begin(), member.fed.end(), host_.fed + i * kMaxFed);
  }
  answers_.assign(members.size(), {});
  begun_ = read_ = number_;
  *host_.counters = {.number = number_, .num_fed = static_cast<int32_t>(num_fed)};
  const auto bytes = [&](uint64_t size) { return size * members.size(); };
  auto status = copy(host_.token_ids, bytes(4));
  if (status) status = copy(host_.positions, bytes(4));
  if (status) status = copy(host_.requests, bytes(sizeof(SampleRequest)));
  if (status && num_fed > 0) status = copy(host_.fed, bytes(4ull * kMaxFed));
  if (status) status = copy(host_.counters, sizeof(AdvanceCounters));
  if (!status) {
    members_.clear();
    return status;
  }
  if (draws_first_) {
    draw(num_rows, all_plain_);
    ++number_;
  }
  return {};
}

// The pages of the token at `position`: an entry of each table changes where a page begins, and in
// a session's first step, which brings all others too.
Status DecodeLoop::place_pages(size_t member, int32_t position) {
  const int32_t page_tokens = parts_.kv.shape().page_tokens;
  const bool first = number_ == begun_ + (draws_first_ ? 1u : 0u);
  if (!first && position % page_tokens != 0) return {};
  const auto stride = static_cast<size_t>(stride_);
  const std::span<int32_t> full(table_scratch_.data(), stride);
  const std::span<int32_t> window(table_scratch_.data() + stride, stride);
  parts_.kv.fill_tables(members_[member].seq, full, window);
  const size_t row = member * stride;
  const size_t at = first ? 0 : static_cast<size_t>(position / page_tokens);
  const size_t count = first ? static_cast<size_t>(position / page_tokens) + 1 : 1;
  for (const auto& [from, to] :
       {std::pair{full, host_.full_tables}, std::pair{window, host_.window_tables}}) {
    // No copy on its way reads these entries: each is written once a session.
    std::copy_n(from.begin() + static_cast<int64_t>(at), count, to + row + at);
    if (auto status = copy(to + row + at, 4 * count); !status) return status;
  }
  return {};
}

Result<bool> DecodeLoop::launch() {
  CHECK(!members_.empty(), "no session");
  if (num_in_flight() >= kRunAhead) return false;
  const auto num_rows = static_cast<int32_t>(members_.size());
  for (const Running& member : members_) {
    if (parts_.kv.num_tokens(member.seq) >= parts_.max_model_len) return false;
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    if (parts_.kv.append(members_[i].seq, 1)) continue;
    for (size_t j = 0; j < i; ++j) {  // all or nothing
      const SeqId seq = members_[j].seq;
      const auto undo = parts_.kv.truncate(seq, parts_.kv.num_tokens(seq) - 1);
      CHECK(undo.has_value(), undo ? "" : undo.error().message());
    }
    return false;
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    const int32_t position = parts_.kv.num_tokens(members_[i].seq) - 1;
    if (auto status = place_pages(i, position); !status) return fail(std::move(status.error()));
  }
  const Recorded& recorded = this->recorded(num_rows, all_plain_);
  if (recorded.graph) {
    auto status = recorded.graph->launch(parts_.stream);
    if (!status) return fail(std::move(status.error()));
    parts_.kernels.count(recorded.launches);
  } else {
    forward(num_rows);
    draw(num_rows, all_plain_);
  }
  ++number_;
  return true;
}

// Of the ring: where the round's answer lies.
size_t DecodeLoop::cell(uint32_t number, size_t member) const {
  return (number % kSlots) * static_cast<size_t>(parts_.max_streams) + member;
}

uint64_t DecodeLoop::word(uint32_t number, size_t member) const {
  return std::atomic_ref(words_[cell(number, member)]).load(std::memory_order_acquire);
}

Result<std::span<const SampleAnswer>> DecodeLoop::next() {
  using Clock = std::chrono::steady_clock;
  constexpr auto kBetweenQueries = std::chrono::microseconds(200);
  CHECK(num_in_flight() > 0, "nothing is on its way");
  auto queried = Clock::now();
  bool was_idle = false;
  for (size_t i = 0; i < members_.size(); ++i) {
    for (;;) {
      const uint64_t found = word(read_, i);
      if (found >> 32 == read_) {
        if (host_.requests[i].num_logprobs >= 0) answers_[i] = answer_ring_[cell(read_, i)];
        answers_[i].token = static_cast<int32_t>(found & 0xFFFFFFFFu);
        break;
      }
      // A dead stream writes no answers: its fault ends the wait.
      if (Clock::now() - queried < kBetweenQueries) {
        std::this_thread::yield();
        continue;
      }
      queried = Clock::now();
      if (was_idle) {
        return fail("the device finished a step without an answer", "decode",
                    "`moxie doctor` checks the machine; --graphs off narrows it down");
      }
      auto idle = parts_.stream.is_idle();
      if (!idle) return fail(std::move(idle.error()));
      was_idle = *idle;
    }
  }
  if (!draws_first_ || read_ != begun_) {
    for (Running& member : members_) {
      ++member.num_tokens;
      parts_.kv.release_window(member.seq, member.num_tokens);
    }
  }
  ++read_;
  return std::span<const SampleAnswer>(answers_);
}

Status DecodeLoop::end() {
  if (members_.empty()) return {};
  const Status status = parts_.stream.synchronize();
  for (const Running& member : members_) {
    const auto cut = parts_.kv.truncate(member.seq, member.num_tokens);
    CHECK(cut.has_value(), cut ? "" : cut.error().message());
  }
  members_.clear();
  read_ = number_;
  return status;
}

}  // namespace moxie
