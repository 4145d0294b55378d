// A thread a rank, which sleeps between launches.
#include "engine/parallel.h"

#include <fmt/format.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "core/clock.h"
#include "core/device_cpu.h"
#include "engine/plan.h"
#include "model/rotary_table.h"
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

Status clear_parts(const Activations& activations, const GptOssConfig& config, int32_t num_tokens,
                   Device& device, Stream& stream) {
  for (float* part : activations.parts) {
    const auto bytes = sizeof(float) * static_cast<uint64_t>(num_tokens) * config.hidden;
    if (auto status = device.fill_zero(part, bytes, stream); !status) return status;
  }
  return {};
}

class RankGroup::Rank {
 public:
  Rank(const RankSetup& setup, int32_t rank, RankLink& link)
      : setup_(setup), rank_(rank), link_(link), thread_([this] { run(); }) {}
  ~Rank() {
    wait_until(done_, number_);  // a launch reads what order() writes
    ends_.store(true);
    order({});
    thread_.join();
  }

  Status loaded() { return loaded_.get(); }
  void order(const HostArrays& arrays) {
    arrays_ = arrays;
    ordered_.store(++number_, std::memory_order_release);
    ordered_.notify_one();
  }
  // Ranks end a launch together, but for a fault.
  void await(std::chrono::milliseconds patience) {
    if (comes_soon(done_, number_)) return;
    const auto start = Clock::now();
    while (done_.load(std::memory_order_acquire) < number_ && link_.status()) {
      if (Clock::now() - start > patience)
        link_.set_fault(fmt::format("rank {} has not ended its launch", rank_));
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  void copy_page(PageKind kind, int32_t from, int32_t to) { kv_->copy_page(kind, from, to); }
  uint64_t weights_bytes() const { return weights_.packed_bytes; }

 private:
  void run() {
    Status status = load();
    const bool is_loaded = status.has_value();
    promise_.set_value(std::move(status));
    if (!is_loaded) return;
    for (uint64_t number = 1;; ++number) {
      wait_until(ordered_, number);
      if (ends_.load()) return;
      if (auto launched = launch(arrays_); !launched) link_.set_fault(launched.error().message());
      done_.store(number, std::memory_order_release);
      done_.notify_one();
    }
  }

  Status load() {
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
    return make_memory();
  }

  Status make_memory() {
    auto rotary =
        make_rotary_table(*device_, *stream_, yarn_frequencies(config_), setup_.max_model_len);
    if (!rotary) return fail(std::move(rotary.error()));
    rotary_ = std::move(*rotary);
    model_ = std::make_unique<GptOss>(config_, weights_,
                                      Rotary{rotary_.as<float>(), setup_.max_model_len}, *kernels_,
                                      setup_.use_sinks, std::vector<int32_t>{}, &link_);
    if (auto status = model_->check_rows(setup_.kv_dtype, setup_.max_batch_tokens); !status)
      return status;
    const auto bytes = activation_bytes(config_, weights_, setup_.kv_dtype, *kernels_,
                                        setup_.max_batch_tokens, setup_.max_logit_rows);
    auto memory = device_->allocate(bytes.total() + 20 * 256);
    if (!memory) return fail(std::move(memory.error()));
    Arena arena(std::move(*memory));
    activations_ =
        make_activations(config_, bytes, setup_.max_batch_tokens, setup_.max_logit_rows, arena);
    activation_buffer_ = arena.release();
    auto kv = KvCache::create(*device_, *stream_, kv_shape(config_, setup_.kv_dtype),
                              config_.is_window, setup_.num_full_pages, setup_.num_window_pages);
    if (!kv) return fail(std::move(kv.error()));
    kv_ = std::move(*kv);
    auto arrays = LaunchArrays::create(*device_, {.num_tokens = setup_.max_batch_tokens,
                                                  .num_seqs = setup_.max_num_seqs,
                                                  .num_logit_rows = setup_.max_logit_rows,
                                                  .table_stride = setup_.table_stride});
    if (!arrays) return fail(std::move(arrays.error()));
    launch_arrays_ = std::move(*arrays);
    return stream_->synchronize();
  }

  Status launch(const HostArrays& arrays) {
    auto batch = launch_arrays_->place(arrays, *kv_, *stream_, &layers_);
    if (!batch) return fail(std::move(batch.error()));
    if (auto status =
            clear_parts(activations_, config_, batch->ragged.num_tokens, *device_, *stream_);
        !status)
      return status;
    model_->forward(*batch, layers_, activations_, *stream_);
    return stream_->synchronize();
  }

  const RankSetup setup_;
  const int32_t rank_;
  RankLink& link_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<KernelChooser> kernels_;
  GptOssConfig config_;
  ModelWeights weights_;
  Buffer rotary_, activation_buffer_;
  Activations activations_;
  std::unique_ptr<GptOss> model_;
  std::unique_ptr<KvCache> kv_;
  std::optional<LaunchArrays> launch_arrays_;
  std::vector<KvLayer> layers_;

  std::promise<Status> promise_;
  std::future<Status> loaded_ = promise_.get_future();
  HostArrays arrays_;  // its own: a rank that stalls may read them late
  std::atomic<bool> ends_{false};
  std::atomic<uint64_t> ordered_{0}, done_{0};
  uint64_t number_ = 0;  // of launches; the first rank's thread
  std::thread thread_;   // last: it uses all of the above
};

std::unique_ptr<RankGroup> RankGroup::start(const RankSetup& setup) {
  std::unique_ptr<RankGroup> group(new RankGroup);
  group->patience_ = setup.patience;
  group->links_ = make_thread_links(setup.load.ranks.size, setup.patience);
  for (int32_t rank = 1; rank < setup.load.ranks.size; ++rank)
    group->ranks_.push_back(
        std::make_unique<Rank>(setup, rank, *group->links_[static_cast<size_t>(rank)]));
  return group;
}

RankGroup::~RankGroup() = default;

RankLink& RankGroup::link() { return *links_.front(); }

Status RankGroup::loaded() {
  Status first;
  for (const auto& rank : ranks_)
    if (auto status = rank->loaded(); !status && first) first = std::move(status);
  return first;
}

Status RankGroup::launch(const HostArrays& arrays) {
  if (auto status = link().status(); !status) return status;
  for (const auto& rank : ranks_) rank->order(arrays);
  return {};
}

Status RankGroup::finish() {
  for (const auto& rank : ranks_) rank->await(patience_);
  return link().status();
}

void RankGroup::copy_page(PageKind kind, int32_t from, int32_t to) {
  for (const auto& rank : ranks_) rank->copy_page(kind, from, to);
}

uint64_t RankGroup::weights_bytes() const {
  uint64_t bytes = 0;
  for (const auto& rank : ranks_) bytes += rank->weights_bytes();
  return bytes;
}

}  // namespace moxie
