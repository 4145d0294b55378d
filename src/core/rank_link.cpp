// Ranks in one process: a place for each, with the number of exchanges that it has come to.
#include "core/rank_link.h"

#include <fmt/format.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "core/clock.h"
#include "core/rank_mail.h"

namespace moxie {
namespace {

// What the links of a process share. A rank is at most one exchange ahead of another, so that two
// arrays a rank are enough.
class Board {
 public:
  Board(int32_t size, std::chrono::milliseconds patience)
      : places_(static_cast<size_t>(size)), patience_(patience) {}

  int32_t size() const { return static_cast<int32_t>(places_.size()); }

  void put(int32_t rank, uint64_t number, RankArray array) {
    Place& place = places_[static_cast<size_t>(rank)];
    place.arrays[number % 2] = array;
    place.arrived.store(number, std::memory_order_release);
  }

  // False after a fault.
  bool await(int32_t rank, uint64_t number, RankArray* array) {
    const Place& place = places_[static_cast<size_t>(rank)];
    const auto has_arrived = [&] {
      return place.arrived.load(std::memory_order_acquire) >= number;
    };
    if (!has_arrived() && !wait(has_arrived)) {
      if (!has_fault())
        set_fault(fmt::format("rank {} has not answered for {:.0f} s", rank,
                              std::chrono::duration<double>(patience_).count()));
      return false;
    }
    *array = place.arrays[number % 2];
    return !has_fault();
  }

  bool has_fault() const { return has_fault_.load(std::memory_order_acquire); }
  void set_fault(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (fault_.empty()) fault_ = text;
    has_fault_.store(true, std::memory_order_release);
  }
  Status status() const {
    if (!has_fault()) return {};
    const std::lock_guard lock(mutex_);
    return fail(fault_, "ranks");
  }

 private:
  struct alignas(64) Place {
    std::atomic<uint64_t> arrived{0};
    RankArray arrays[2];
  };

  // Ranks are microseconds apart, if each has cores of its own: looks often at first, then lets
  // other threads run, then sleeps.
  template <typename Done>
  bool wait(Done&& done) const {
    constexpr int kLooks = 200, kYields = 1000;
    for (int i = 0; i < kLooks; ++i)
      if (done()) return true;
    for (int i = 0; i < kYields; ++i) {
      if (done()) return true;
      std::this_thread::yield();
    }
    const auto start = Clock::now();
    while (!has_fault() && Clock::now() - start < patience_) {
      if (done()) return true;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return done();
  }

  std::vector<Place> places_;
  const std::chrono::milliseconds patience_;
  std::atomic<bool> has_fault_{false};
  mutable std::mutex mutex_;
  std::string fault_;
};

class ThreadLink final : public RankLink {
 public:
  ThreadLink(std::shared_ptr<Board> board, int32_t rank)
      : board_(std::move(board)), rank_(rank), arrays_(static_cast<size_t>(board_->size())) {}

  LinkKind kind() const override { return LinkKind::kThreads; }
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return board_->size(); }
  std::span<const RankArray> meet(RankArray mine) override {
    board_->put(rank_, ++number_, mine);
    for (int32_t rank = 0; rank < size(); ++rank)
      if (!board_->await(rank, number_, &arrays_[static_cast<size_t>(rank)])) return {};
    return arrays_;
  }
  void set_fault(const std::string& text) override { board_->set_fault(text); }
  Status status() const override { return board_->status(); }

 private:
  const std::shared_ptr<Board> board_;
  const int32_t rank_;
  uint64_t number_ = 0;  // of exchanges
  std::vector<RankArray> arrays_;
};

}  // namespace

std::span<const RankArray> RankLink::exchange(RankArray mine) {
  const auto start = Clock::now();
  const auto all = meet(mine);
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
  exchange_ns_.fetch_add(static_cast<uint64_t>(ns.count()), std::memory_order_relaxed);
  num_exchanges_.fetch_add(1, std::memory_order_relaxed);
  return all;
}

RankFacts RankLink::facts() const {
  return {.rank = rank(),
          .weights_bytes = weights_bytes_.load(),
          .num_exchanges = num_exchanges_.load(),
          .exchange_s = 1e-9 * static_cast<double>(exchange_ns_.load())};
}

std::vector<std::unique_ptr<RankLink>> make_thread_links(int32_t size,
                                                         std::chrono::milliseconds patience) {
  const auto board = std::make_shared<Board>(size, patience);
  std::vector<std::unique_ptr<RankLink>> links;
  for (int32_t rank = 0; rank < size; ++rank)
    links.push_back(std::make_unique<ThreadLink>(board, rank));
  return links;
}

uint64_t rank_mail_bytes(int32_t size) {
  return static_cast<uint64_t>(size) * uint64_t{RankMail::kBytesOfRank};
}

}  // namespace moxie
