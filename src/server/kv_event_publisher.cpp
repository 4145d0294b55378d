#include "server/kv_event_publisher.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/clock.h"
#include "server/kv_event_sockets.h"

namespace moxie {
namespace {

using Kind = CacheEvent::Kind;

// Of batches kept for replay, beside the number of them: one of a long prompt has 50 KB.
constexpr size_t kMostKeptBytes = size_t{256} << 20;
// A batch is not worth shortening below.
constexpr size_t kLeastMerged = 4096;
// Requests answered before batches that came meanwhile are sent.
constexpr int kRequestsATurn = 16;
constexpr double kComplainS = 10;

// The name of a page: half of its hash is as good. 0 would mean that there is none.
uint64_t name_of(const BlockHash& hash) { return hash.low != 0 ? hash.low : 1; }

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

void KvEventQueue::push(Batch batch) {
  const std::lock_guard lock(mutex_);
  if (batches_.size() < most_) {
    merge_at_ = std::max(kLeastMerged, 2 * batch.events.size());
    batches_.push_back(std::move(batch));
    return;
  }
  ++num_merged_;
  auto& last = batches_.back().events;
  last.insert(last.end(), std::make_move_iterator(batch.events.begin()),
              std::make_move_iterator(batch.events.end()));
  if (last.size() < merge_at_) return;
  merge_events(&last);
  merge_at_ = std::max(kLeastMerged, 2 * last.size());
}

std::deque<KvEventQueue::Batch> KvEventQueue::take() {
  std::deque<Batch> taken;
  const std::lock_guard lock(mutex_);
  taken.swap(batches_);
  return taken;
}

uint64_t KvEventQueue::num_merged() const {
  const std::lock_guard lock(mutex_);
  return num_merged_;
}

Result<std::unique_ptr<KvEventPublisher>> KvEventPublisher::open(const KvEventConfig& config) {
  auto sockets = KvEventSockets::open(config);
  if (!sockets) return fail(std::move(sockets.error()));
  return std::unique_ptr<KvEventPublisher>(new KvEventPublisher(config, std::move(*sockets)));
}

KvEventPublisher::KvEventPublisher(const KvEventConfig& config,
                                   std::unique_ptr<KvEventSockets> sockets)
    : config_(config),
      sockets_(std::move(sockets)),
      queue_(static_cast<size_t>(config.max_queue_size)),
      history_(static_cast<size_t>(config.buffer_steps), kMostKeptBytes),
      thread_([this] { run(); }) {}

KvEventPublisher::~KvEventPublisher() {
  stopping_ = true;
  sockets_->wake();
  thread_.join();
}

void KvEventPublisher::on_stored(const NamedTokens& named) {
  const size_t num_blocks = named.chain.size();
  const size_t page_tokens = named.tokens.size() / num_blocks;
  const auto page = named.tokens.last(page_tokens);
  CacheEvent event{.kind = Kind::kStored,
                   .hash = name_of(named.chain.back()),
                   .tokens = {page.begin(), page.end()}};
  if (num_blocks > 1) {
    event.parent = name_of(named.chain[num_blocks - 2]);
  } else {
    event.salt = named.salt;
  }
  open_.push_back(std::move(event));
}

void KvEventPublisher::on_removed(const BlockHash& hash) {
  open_.push_back({.kind = Kind::kRemoved, .hash = name_of(hash)});
}

void KvEventPublisher::on_cleared() { open_.push_back({.kind = Kind::kCleared}); }

void KvEventPublisher::hand_over() {
  if (open_.empty()) return;
  queue_.push({now_s(), std::exchange(open_, {})});
  sockets_->wake();
}

KvEventCounters KvEventPublisher::counters() const {
  return {.batches = batches_,
          .stored = stored_,
          .removed = removed_,
          .cleared = cleared_,
          .merged = queue_.num_merged(),
          .unsent = unsent_,
          .replays = replays_,
          .snapshots = snapshots_};
}

Json KvEventPublisher::sources() const {
  return kv_event_config_json(config_, sockets_->endpoint(), sockets_->replay_endpoint());
}

void KvEventPublisher::run() {
  pthread_setname_np(pthread_self(), "kv-events");
  for (;;) {
    const bool ends = stopping_;
    for (KvEventQueue::Batch& batch : queue_.take()) publish(std::move(batch));
    if (ends) return;
    answer_requests();
    const Status status = sockets_->wait();
    complain(status);
    // Without a wait that works this thread would take a core.
    if (!status) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

void KvEventPublisher::publish(KvEventQueue::Batch batch) {
  for (const CacheEvent& event : batch.events) {
    ++(event.kind == Kind::kStored ? stored_ : event.kind == Kind::kRemoved ? removed_ : cleared_);
  }
  const auto numbered = history_.add(std::move(batch.events), batch.ts);
  const Status status = sockets_->publish(numbered);
  if (!status) ++unsent_;
  complain(status);
  ++batches_;
}

void KvEventPublisher::answer_requests() {
  for (int i = 0; i < kRequestsATurn; ++i) {
    const auto request = sockets_->next_request();
    if (!request) return;
    complain(sockets_->answer(*request, history_.from(request->first, now_s())));
    ++replays_;
    snapshots_ = history_.num_snapshots();
  }
  sockets_->wake();  // for those that are left
}

// A line in the log, not more often than every kComplainS seconds.
void KvEventPublisher::complain(const Status& status) {
  if (status || (complained_ != Clock::time_point{} && seconds_since(complained_) < kComplainS)) {
    return;
  }
  complained_ = Clock::now();
  log_warn("events of the KV cache: " + status.error().message());
}

}  // namespace moxie
