// Sessions of decoding: the device's arrays, the copies and graphs given to it, and the answers.
#include "engine/decode_loop.h"

#include <algorithm>
#include <atomic>
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

  // Values that no session changes.
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
  return loop;
}

// Copies an array's host side to its device side.
Status DecodeLoop::copy(const void* host_side, uint64_t bytes) {
  const auto at = static_cast<uint64_t>(static_cast<const std::byte*>(host_side) - staging_.data());
  return parts_.device.copy_from_host(memory_.data() + at, host_side, bytes, parts_.stream);
}

// Ranks draw from all logits, or each from its own if a row can.
SampleParams DecodeLoop::sample_params(int32_t num_streams, bool all_plain) const {
  const GptOssConfig& config = parts_.model.config();
  const SampleParams of_all{
      .launch = parts_.kernels.launch(&parts_.stream, parts_.activations.workspace,
                                      parts_.activations.workspace_bytes),
      .num_rows = num_streams,
      .vocab = config.vocab,
      .logits = parts_.activations.logits,
      .requests = device_.requests,
      .answers = device_.answers,
      .all_plain = all_plain};
  if (config.share.link != LinkKind::kPeers) return of_all;
  SampleParams of_part = of_all;
  of_part.logits = parts_.activations.logits_part;
  of_part.kind = config.share.link;
  of_part.link = parts_.model.link();
  of_part.first_id = config.share.first_logit;
  of_part.part_width = config.logits_held();
  return parts_.kernels.select(of_part) ? of_part : of_all;
}

void DecodeLoop::forward_and_draw(int32_t num_streams, bool all_plain) {
  const AdvanceParams advance{.requests = device_.requests,
                              .token_ids = device_.token_ids,
                              .positions = device_.positions,
                              .fed = device_.fed,
                              .fed_stride = kMaxFed,
                              .counters = device_.counters,
                              .words = words_,
                              .answer_ring = answer_ring_,
                              .num_slots = kSlots,
                              .row_stride = parts_.max_streams};
  SampleParams sample = sample_params(num_streams, all_plain);
  sample.advance = &advance;
  const Batch batch{.ragged = {.num_tokens = num_streams,
                               .num_seqs = num_streams,
                               .positions = device_.positions,
                               .seq_idx = device_.seq_idx,
                               .row_offsets = device_.row_offsets},
                    .token_ids = device_.token_ids,
                    .num_logit_rows = num_streams,
                    .logit_rows = device_.logit_rows,
                    .skips_taps = parts_.skips_taps,
                    .skips_gather = sample.kind != LinkKind::kNone};
  parts_.model.forward(batch, layers_, parts_.activations, parts_.stream);
  parts_.kernels.run(sample);
}

Status DecodeLoop::prepare(int32_t num_streams, bool all_plain) {
  CHECK(num_streams >= 1 && num_streams <= parts_.max_streams);
  RecordedLaunch& recorded = this->recorded(num_streams, all_plain);
  if (!parts_.use_graphs || recorded.is_recorded()) return {};
  return recorded.record(parts_.device, parts_.stream, parts_.kernels,
                         [&] { forward_and_draw(num_streams, all_plain); });
}

void DecodeLoop::forget_graphs() {
  CHECK(num_members_ == 0, "a session is running");
  for (RecordedLaunch& recorded : recorded_) recorded = {};
}

Status DecodeLoop::begin(const HostArrays& first, std::span<const SampleRequest> requests) {
  CHECK(num_members_ == 0, "a session is running");
  const size_t num_rows = requests.size();
  CHECK(num_rows >= 1 && num_rows <= static_cast<size_t>(parts_.max_streams));
  CHECK(first.token_ids.size() == num_rows && first.row_offsets.size() == num_rows + 1);
  const auto num_fed = static_cast<size_t>(first.num_fed);
  CHECK(num_fed <= kMaxFed && first.fed.size() == num_rows * num_fed);
  all_plain_ = std::all_of(requests.begin(), requests.end(), is_plain);
  num_members_ = num_rows;
  std::copy(first.token_ids.begin(), first.token_ids.end(), host_.token_ids);
  std::copy(first.positions.begin(), first.positions.end(), host_.positions);
  std::copy(requests.begin(), requests.end(), host_.requests);
  for (size_t row = 0; row < num_rows; ++row) {
    std::copy_n(first.fed.begin() + static_cast<int64_t>(row * num_fed), num_fed,
                host_.fed + row * kMaxFed);
  }
  if (auto status = open_session(first.num_fed); !status) return status;
  if (auto status = place_tables(first); !status) return status;
  return launch_round();
}

// Copies the members' arrays from the host side to the device.
Status DecodeLoop::open_session(int32_t num_fed) {
  const auto num_rows = static_cast<int32_t>(num_members_);
  CHECK(num_rows <= parts_.activations.max_tokens && num_rows <= parts_.activations.max_logit_rows);
  answers_.assign(num_members_, {});
  read_ = number_;
  was_idle_ = false;
  *host_.counters = {.number = number_, .num_fed = num_fed};
  const auto bytes = [&](uint64_t size) { return size * num_members_; };
  auto status = copy(host_.token_ids, bytes(4));
  if (status) status = copy(host_.positions, bytes(4));
  if (status) status = copy(host_.requests, bytes(sizeof(SampleRequest)));
  if (status && num_fed > 0) status = copy(host_.fed, bytes(4ull * kMaxFed));
  if (status) status = copy(host_.counters, sizeof(AdvanceCounters));
  if (!status) num_members_ = 0;
  return status;
}

// Copies the tables of all members at once, one copy a kind, gaps between tables included: many
// small copies would take longer.
Status DecodeLoop::place_tables(const HostArrays& first) {
  const auto from_stride = static_cast<size_t>(first.table_stride);
  const auto stride = static_cast<size_t>(stride_);
  for (const auto& [from, to] : {std::pair{&first.full_tables, host_.full_tables},
                                 std::pair{&first.window_tables, host_.window_tables}}) {
    size_t end = 0;
    for (size_t row = 0; row < num_members_; ++row) {
      const int32_t page_idx = first.positions[row] / parts_.kv.shape().page_tokens;
      const size_t count = static_cast<size_t>(page_idx) + 1;
      std::copy_n(from->begin() + static_cast<int64_t>(row * from_stride), count,
                  to + row * stride);
      end = row * stride + count;
    }
    if (auto status = copy(to, 4 * end); !status) return status;
  }
  return {};
}

// Copies the entries of a member's tables from `at` on. No launch under way reads these entries:
// each is written once a session.
Status DecodeLoop::place_entries(size_t member, size_t at, std::span<const int32_t> full,
                                 std::span<const int32_t> window) {
  const size_t place = member * static_cast<size_t>(stride_) + at;
  for (const auto& [from, to] :
       {std::pair{full, host_.full_tables}, std::pair{window, host_.window_tables}}) {
    std::copy(from.begin(), from.end(), to + place);
    if (auto status = copy(to + place, from.size_bytes()); !status) return status;
  }
  return {};
}

Status DecodeLoop::launch(const HostArrays& next) {
  CHECK(num_members_ > 0, "no session");
  CHECK(num_in_flight() < kRunAhead && next.positions.size() == num_members_);
  // Not in begin(): when requests come and go, many numbers of streams last for one launch only.
  const auto num_rows = static_cast<int32_t>(num_members_);
  if (auto status = prepare(num_rows, all_plain_); !status) {
    log_warn(
        std::to_string(num_rows) +
        " streams decode without a graph, and no more are recorded: " + status.error().message());
    parts_.use_graphs = false;
  }
  const int32_t page_tokens = parts_.kv.shape().page_tokens;
  for (size_t i = 0; i < num_members_; ++i) {
    const int32_t position = next.positions[i];
    if (position % page_tokens != 0) continue;
    auto status = place_entries(i, static_cast<size_t>(position / page_tokens),
                                {&next.full_tables[i], 1}, {&next.window_tables[i], 1});
    if (!status) return status;
  }
  return launch_round();
}

// Launches one token of every member; its pages are reserved.
Status DecodeLoop::launch_round() {
  const auto num_rows = static_cast<int32_t>(num_members_);
  const RecordedLaunch& recorded = this->recorded(num_rows, all_plain_);
  if (recorded.is_recorded()) {
    if (auto status = recorded.launch(parts_.stream, parts_.kernels); !status) return status;
  } else {
    forward_and_draw(num_rows, all_plain_);
  }
  ++number_;
  if (!parts_.is_read) read_ = number_;
  return {};
}

// The index in the ring of a launch's answer.
size_t DecodeLoop::cell(uint32_t number, size_t member) const {
  return (number % kSlots) * static_cast<size_t>(parts_.max_streams) + member;
}

uint64_t DecodeLoop::word(uint32_t number, size_t member) const {
  return std::atomic_ref(words_[cell(number, member)]).load(std::memory_order_acquire);
}

Result<bool> DecodeLoop::is_ready() {
  constexpr auto kBetweenQueries = std::chrono::microseconds(200);
  CHECK(num_in_flight() > 0, "nothing is on its way");
  const auto is_there = [this](size_t member) { return word(read_, member) >> 32 == read_; };
  size_t num_there = 0;
  while (num_there < num_members_ && is_there(num_there)) ++num_there;
  if (num_there == num_members_) return true;
  // A dead stream writes no answers: its fault ends the wait.
  const auto now = Clock::now();
  if (now - queried_ < kBetweenQueries) return false;
  queried_ = now;
  if (was_idle_) {
    return fail("the device finished a step without an answer", "decode",
                "`moxie doctor` checks the machine; --graphs off narrows it down");
  }
  auto idle = parts_.stream.is_idle();
  if (!idle) return fail(std::move(idle.error()));
  was_idle_ = *idle;
  return false;
}

Result<std::span<const SampleAnswer>> DecodeLoop::next() {
  for (;;) {
    auto ready = is_ready();
    if (!ready) return fail(std::move(ready.error()));
    if (*ready) break;
    std::this_thread::yield();
  }
  for (size_t i = 0; i < num_members_; ++i) {
    if (host_.requests[i].num_logprobs >= 0) answers_[i] = answer_ring_[cell(read_, i)];
    answers_[i].token = static_cast<int32_t>(word(read_, i) & 0xFFFFFFFFu);
  }
  was_idle_ = false;
  ++read_;
  return std::span<const SampleAnswer>(answers_);
}

Status DecodeLoop::end() {
  if (num_members_ == 0) return {};
  const Status status = parts_.stream.synchronize();
  num_members_ = 0;
  read_ = number_;
  return status;
}

}  // namespace moxie
