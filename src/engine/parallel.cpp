// A thread a rank, which sleeps between launches.
#include "engine/parallel.h"

#include <fmt/format.h>

#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <thread>

#include "core/clock.h"
#include "core/device_cpu.h"
#include "engine/rank_meeting.h"
#include "model/eight_bits_cuda.h"
#include "model/shard.h"

namespace moxie {
namespace {

// Launches follow each other in microseconds while a model answers: looks for a while before it
// sleeps.
bool comes_soon(const std::atomic<uint64_t>& value, uint64_t least) {
  constexpr int kLooks = 2000, kYields = 200;
  for (int i = 0; i < kLooks + kYields; ++i) {
    if (value.load(std::memory_order_acquire) >= least) return true;
    if (i >= kLooks) std::this_thread::yield();
  }
  return false;
}
void wait_until(const std::atomic<uint64_t>& value, uint64_t least) {
  if (comes_soon(value, least)) return;
  for (uint64_t seen = value.load(std::memory_order_acquire); seen < least;
       seen = value.load(std::memory_order_acquire))
    value.wait(seen, std::memory_order_acquire);
}

}  // namespace

std::vector<UsableCore> cores_of_rank(std::span<const UsableCore> cores, int32_t rank,
                                      int32_t num_ranks) {
  const size_t count = cores.size(), r = static_cast<size_t>(rank),
               n = static_cast<size_t>(num_ranks);
  const size_t first = count * r / n, end = std::max(first + 1, count * (r + 1) / n);
  return {cores.begin() + static_cast<std::ptrdiff_t>(first),
          cores.begin() + static_cast<std::ptrdiff_t>(end)};
}

std::unique_ptr<Device> make_rank_device(int threads, int32_t rank, int32_t num_ranks) {
  return make_cpu_device(threads > 0 ? std::max(1, threads / num_ranks) : 0,
                         cores_of_rank(usable_cores(), rank, num_ranks));
}

Status follow_order(const RankOrder& order, RankRunner& runner) {
  switch (order.kind) {
    case RankOrder::Kind::kLaunch:
      return runner.run(order.arrays);
    case RankOrder::Kind::kBeginDecoding:
      return runner.begin_decoding(order.arrays, order.requests);
    case RankOrder::Kind::kDecodeNext:
      return runner.decode_loop().launch(order.arrays);
    case RankOrder::Kind::kEndDecoding:
      return runner.decode_loop().end();
    case RankOrder::Kind::kCopyPage:
      runner.kv().copy_page(order.page_kind, order.from_page, order.to_page);
      break;
    case RankOrder::Kind::kQuit:
      break;
  }
  return {};
}

class RankGroup::Rank {
 public:
  virtual ~Rank() = default;
  virtual Status loaded() = 0;
  virtual void order(const RankOrder& order) = 0;
  // Waits until it has done what was ordered, for `patience` at most.
  virtual void await(std::chrono::milliseconds patience) = 0;
  // From any thread of the engine's. In the order of launches, so behind what was ordered.
  virtual void copy_page(PageKind kind, int32_t from, int32_t to) = 0;
};

// All other processes, which end a launch with the first rank: they meet in it.
class RankGroup::ProcessRanks final : public Rank {
 public:
  explicit ProcessRanks(RankMeeting& meeting) : meeting_(meeting) {}
  Status loaded() override { return meeting_.await_loaded(); }
  void order(const RankOrder& order) override {
    const std::lock_guard lock(mutex_);
    if (order.kind == RankOrder::Kind::kBeginDecoding) decodes_ = true;
    if (order.kind == RankOrder::Kind::kEndDecoding && !std::exchange(decodes_, false)) return;
    static_cast<void>(meeting_.order(to_bytes(order)));  // a fault is the link's
  }
  void await(std::chrono::milliseconds) override {}
  void copy_page(PageKind kind, int32_t from, int32_t to) override {
    order(
        {.kind = RankOrder::Kind::kCopyPage, .page_kind = kind, .from_page = from, .to_page = to});
  }

 private:
  RankMeeting& meeting_;
  std::mutex mutex_;
  bool decodes_ = false;  // a session of the decode loop, which there is on GPUs only
};

class RankGroup::ThreadRank final : public Rank {
 public:
  ThreadRank(const RankSetup& setup, int32_t rank, RankLink& link, std::unique_ptr<Device> device)
      : setup_(setup), rank_(rank), link_(link), device_(std::move(device)), thread_([this] {
          run();
        }) {}
  ~ThreadRank() override {
    order({});
    thread_.join();
  }

  Status loaded() override { return loaded_.get(); }
  void order(const RankOrder& order) override {
    wait_until(done_, number_);  // the rank reads what this writes
    order_ = order;
    ordered_.store(++number_, std::memory_order_release);
    ordered_.notify_one();
  }
  // Ranks end a launch together, but for a fault.
  void await(std::chrono::milliseconds patience) override {
    if (comes_soon(done_, number_)) return;
    const auto start = Clock::now();
    while (done_.load(std::memory_order_acquire) < number_ && link_.status()) {
      if (Clock::now() - start > patience)
        link_.set_fault(fmt::format("rank {} has not ended its launch", rank_));
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  void copy_page(PageKind kind, int32_t from, int32_t to) override {
    wait_until(done_, ordered_.load(std::memory_order_acquire));
    runner_->kv().copy_page(kind, from, to);
  }

 private:
  void run() {
    Status status = load();
    const bool is_loaded = status.has_value();
    promise_.set_value(std::move(status));
    for (uint64_t number = 1;; ++number) {
      wait_until(ordered_, number);
      if (order_.kind == RankOrder::Kind::kQuit) return;
      if (is_loaded) {
        if (auto followed = follow_order(order_, *runner_); !followed)
          link_.set_fault(fmt::format("rank {}: {}", rank_, followed.error().message()));
      }
      done_.store(number, std::memory_order_release);
      done_.notify_one();
    }
  }

  Status load() {
    if (device_ == nullptr)
      device_ = make_rank_device(setup_.threads, rank_, setup_.load.ranks.size);
    auto stream = device_->make_stream();
    if (!stream) return fail(std::move(stream.error()));
    stream_ = std::move(*stream);
    kernels_ = std::make_unique<KernelChooser>(device_->kind(), setup_.features, setup_.choice,
                                               setup_.rates);
    auto config = config_of_rank(setup_.checkpoint->config(), setup_.load.ranks, rank_);
    if (!config) return fail(std::move(config.error()));
    config_ = std::move(*config);
    LoadOptions load = setup_.load;
    load.rank = rank_;
    load.show_progress = false;
    auto weights = setup_.checkpoint->load(*device_, load);
    if (!weights) return fail(std::move(weights.error()));
    weights_ = std::move(*weights);
    link_.set_weights_bytes(weights_.packed_bytes);
    if (takes_eight_bits(*kernels_))
      if (auto status = add_eight_bits_cuda(*device_, *stream_, weights_); !status) return status;
    RankSizes sizes = setup_.sizes;
    sizes.taps.clear();  // the first rank's are enough
    auto runner = RankRunner::create({.device = *device_,
                                      .stream = *stream_,
                                      .kernels = *kernels_,
                                      .config = config_,
                                      .weights = weights_,
                                      .link = &link_},
                                     sizes);
    if (!runner) return fail(std::move(runner.error()));
    runner_ = std::move(*runner);
    auto status = runner_->decode_loop().prepare(1);
    return status ? stream_->synchronize() : status;
  }

  const RankSetup setup_;
  const int32_t rank_;
  RankLink& link_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KernelChooser> kernels_;
  GptOssConfig config_;
  ModelWeights weights_;
  std::unique_ptr<RankRunner> runner_;

  std::promise<Status> promise_;
  std::future<Status> loaded_ = promise_.get_future();
  RankOrder order_;  // its own: a rank that stalls may read it late
  std::atomic<uint64_t> ordered_{0}, done_{0};
  uint64_t number_ = 0;  // of orders; the first rank's thread
  std::thread thread_;   // last: it uses all of the above
};

Result<std::unique_ptr<RankGroup>> RankGroup::start(const RankSetup& setup) {
  std::unique_ptr<RankGroup> group(new RankGroup);
  group->patience_ = setup.patience;
  const int32_t size = setup.load.ranks.size;
  if (setup.mirrors) {
    auto link = make_mirrored_link(*setup.first_device, size, setup.patience);
    if (!link) return fail(std::move(link.error()));
    group->link_ = group->links_.emplace_back(std::move(*link)).get();
    return group;
  }
  std::vector<std::unique_ptr<Device>> devices(static_cast<size_t>(size));
  if (setup.gpus.empty()) {  // each rank makes its own
    group->links_ = make_thread_links(size, setup.patience);
  } else {
    std::vector<Device*> of_ranks = {setup.first_device};
    for (size_t rank = 1; rank < devices.size(); ++rank) {
      auto device = open_gpu_of_rank(setup.gpus, rank);
      if (!device) return fail(std::move(device.error()));
      devices[rank] = std::move(*device);
      of_ranks.push_back(devices[rank].get());
    }
    auto links = make_peer_links(of_ranks, setup.patience);
    if (!links) return fail(std::move(links.error()));
    group->links_ = std::move(*links);
  }
  group->link_ = group->links_.front().get();
  for (int32_t rank = 1; rank < size; ++rank) {
    const auto r = static_cast<size_t>(rank);
    group->ranks_.push_back(
        std::make_unique<ThreadRank>(setup, rank, *group->links_[r], std::move(devices[r])));
  }
  return group;
}

std::unique_ptr<RankGroup> RankGroup::of_processes(RankMeeting& meeting, int32_t vocab) {
  std::unique_ptr<RankGroup> group(new RankGroup);
  group->link_ = &meeting.link();
  group->meeting_ = &meeting;
  group->vocab_ = vocab;
  group->ranks_.push_back(std::make_unique<ProcessRanks>(meeting));
  return group;
}

RankGroup::~RankGroup() = default;

RankLink& RankGroup::link() { return *link_; }

Status RankGroup::loaded() {
  Status first;
  for (const auto& rank : ranks_)
    if (auto status = rank->loaded(); !status && first) first = std::move(status);
  return first;
}

Status RankGroup::order(const RankOrder& order) {
  if (auto status = link().status(); !status) return status;
  for (const auto& rank : ranks_) rank->order(order);
  return {};
}

Status RankGroup::launch(const HostArrays& arrays) {
  return order({.kind = RankOrder::Kind::kLaunch, .arrays = arrays});
}

Status RankGroup::begin_decoding(const HostArrays& first, std::span<const SampleRequest> requests) {
  return order({.kind = RankOrder::Kind::kBeginDecoding,
                .arrays = first,
                .requests = {requests.begin(), requests.end()},
                .mask_words = ceil_div(vocab_, 32)});
}

Status RankGroup::decode_next(const HostArrays& next) {
  return order({.kind = RankOrder::Kind::kDecodeNext, .arrays = next});
}

// After a fault, too: it waits for kernels that have ended by then.
void RankGroup::end_decoding() {
  for (const auto& rank : ranks_) rank->order({.kind = RankOrder::Kind::kEndDecoding});
}

Status RankGroup::finish() {
  for (const auto& rank : ranks_) rank->await(patience_);
  return link().status();
}

void RankGroup::copy_page(PageKind kind, int32_t from, int32_t to) {
  for (const auto& rank : ranks_) rank->copy_page(kind, from, to);
}

std::vector<RankFacts> RankGroup::facts() const {
  if (meeting_ != nullptr) return meeting_->facts();
  std::vector<RankFacts> all;
  for (const auto& link : links_) all.push_back(link->facts());
  return all;
}

uint64_t RankGroup::weights_bytes() const {
  uint64_t bytes = 0;
  for (const auto& link : links_)
    if (link.get() != link_) bytes += link->facts().weights_bytes;
  return bytes;
}

}  // namespace moxie
