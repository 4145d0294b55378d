// Ranks that are processes with a GPU each. NCCL's kernels wait without an end for a rank that does
// not come: a thread watches the connections between the processes, NCCL's own errors and the
// counts of exchanges, and aborts the communicator after a fault.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <thread>

#include "core/clock.h"
#include "core/cuda.h"
#include "core/rank_gather.h"

namespace moxie {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLook(50);
// A fault that shows on the GPU or by a connection: for the rank that knows why to say so first.
constexpr milliseconds kForReason(500);
constexpr seconds kForFirst(60);  // for all to join and to exchange for the first time
constexpr seconds kForEnd(6);     // of a process, behind a fault

class NcclLink final : public RankLink, public RankGather {
 public:
  NcclLink(RankLink& base, const NcclLibrary& nccl, milliseconds patience)
      : base_(base), nccl_(nccl), patience_(patience) {}
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;
  // Graphs with exchanges are gone by now.
  ~NcclLink() override {
    if (!watch_.joinable()) return;
    cudaSetDevice(index_);
    cudaDeviceSynchronize();
    ends_.store(true);
    watch_.join();
    if (is_aborted_) return;
    base_.exchange({});  // what one has sent may still be on its way to another
    nccl_.comm_abort(comm_);
  }

  Status start(Device& device, Stream& stream, const NcclId& id) {
    launch_stream(&stream);  // its device becomes the current one
    auto status = cuda_check(cudaGetDevice(&index_), "ranks on GPUs");
    if (status) status = check_gpus();
    if (status) status = allocate(device, stream);
    if (status) status = join(id);
    if (!status) return status;
    watch_ = std::thread([this] { watch(); });
    // NCCL connects at the first use of each of its ways, which go by the size.
    for (uint64_t bytes = 256; bytes <= kPlaceBytes && status; bytes *= 16)
      status = try_exchange(device, stream, bytes);
    return status;
  }

  LinkKind kind() const override { return LinkKind::kNccl; }
  int32_t rank() const override { return base_.rank(); }
  int32_t size() const override { return base_.size(); }
  std::span<const RankArray> meet(RankArray) override {
    set_fault("ranks on GPUs exchange arrays in kernels only");
    return {};
  }
  RankGather* gather() override { return this; }
  void set_fault(const std::string& text) override { base_.set_fault(text); }
  Status status() const override { return base_.status(); }

  std::byte* places() const override { return places_.data(); }
  RankGatherMarks marks() const override { return {counts_.as<uint32_t>(), words_.as<uint32_t>()}; }
  void run(uint64_t bytes, Stream& stream) override {
    CHECK(bytes <= kPlaceBytes);
    const cudaStream_t native = launch_stream(&stream);
    const std::lock_guard lock(mutex_);
    if (is_aborted_) return;
    const std::byte* const mine = places() + static_cast<uint64_t>(rank()) * bytes;
    const int result = nccl_.all_gather(mine, places(), bytes, NcclLibrary::kBytes, comm_, native);
    if (result != NcclLibrary::kSuccess) set_fault("NCCL: " + nccl_.text_of(result));
  }

 private:
  // What a thread that may never end shares with the link.
  struct Joining {
    NcclLibrary::Comm comm = nullptr;
    std::promise<int> result;
  };

  // The kernels of two ranks on one GPU would wait for each other's place on it.
  Status check_gpus() {
    cudaDeviceProp found{};
    auto status = cuda_check(cudaGetDeviceProperties(&found, index_), "ranks on GPUs");
    if (!status) return status;
    static_assert(sizeof(found.uuid) == sizeof(uuid_));
    std::memcpy(uuid_, &found.uuid, sizeof(uuid_));
    const auto all = base_.exchange({uuid_, std::ssize(uuid_)});
    for (size_t a = 1; a < all.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        if (std::memcmp(all[a].data, all[b].data, sizeof(uuid_)) == 0)
          return fail(fmt::format("ranks {} and {} have the same GPU", b, a), "--device",
                      "a rank needs a GPU of its own: LOCAL_RANK and LOCAL_WORLD_SIZE say which");
    return base_.status();
  }

  Status allocate(Device& device, Stream& stream) {
    auto places = device.allocate(kPlaceBytes * static_cast<uint64_t>(size()));
    if (!places) return fail(std::move(places.error()));
    auto counts = device.allocate(2 * sizeof(uint32_t));
    if (!counts) return fail(std::move(counts.error()));
    auto words = device.allocate_host(2 * sizeof(uint32_t));
    if (!words) return fail(std::move(words.error()));
    places_ = std::move(*places);
    counts_ = std::move(*counts);
    words_ = std::move(*words);
    std::fill_n(words_.as<uint32_t>(), 2, 0u);
    return device.fill_zero(counts_.data(), counts_.bytes(), stream);
  }

  // NCCL has no deadline. A process whose rank is awaited in vain leaves the thread behind, and
  // ends.
  Status join(const NcclId& id) {
    const auto joining = std::make_shared<Joining>();
    auto result = joining->result.get_future();
    std::thread([joining, nccl = nccl_, id, index = index_, rank = rank(), size = size()] {
      cudaSetDevice(index);
      joining->result.set_value(nccl.comm_init_rank(&joining->comm, size, id, rank));
    }).detach();
    const auto deadline = Clock::now() + kForFirst;
    while (result.wait_for(kLook) != std::future_status::ready) {
      if (auto status = base_.status(); !status) return status;
      if (const auto lost = base_.lost_rank()) set_fault(text_of_lost(*lost));
      if (Clock::now() > deadline) set_fault("NCCL has not connected the ranks' GPUs in a minute");
    }
    const int found = result.get();
    comm_ = joining->comm;
    if (found == NcclLibrary::kSuccess) return {};
    return fail("the ranks' GPUs cannot be connected: " + nccl_.text_of(found), "NCCL",
                "NCCL_DEBUG=WARN shows why; NCCL_SOCKET_IFNAME names the network");
  }

  // Each rank sends its number.
  Status try_exchange(Device& device, Stream& stream, uint64_t bytes) {
    std::vector<uint32_t> numbers(static_cast<size_t>(size()), 0);
    const uint32_t mine = static_cast<uint32_t>(rank()) + 1;
    const auto place = [&](int32_t rank) { return places() + static_cast<uint64_t>(rank) * bytes; };
    auto status = device.copy_from_host(place(rank()), &mine, sizeof mine, stream);
    if (!status) return status;
    run(bytes, stream);
    const auto deadline = Clock::now() + kForFirst;
    for (auto idle = stream.is_idle(); !idle || !*idle; idle = stream.is_idle()) {
      if (!idle) return fail(std::move(idle.error()));
      if (status = base_.status(); !status) return status;
      if (Clock::now() > deadline) set_fault("the ranks' GPUs have not exchanged in a minute");
      std::this_thread::sleep_for(milliseconds(1));
    }
    for (int32_t rank = 0; rank < size() && status; ++rank)
      status = device.copy_to_host(&numbers[static_cast<size_t>(rank)], place(rank), sizeof mine,
                                   stream);
    if (status) status = stream.synchronize();
    if (status) status = base_.status();
    for (size_t rank = 0; rank < numbers.size() && status; ++rank)
      if (numbers[rank] != rank + 1)
        return fail(
            fmt::format("rank {} got something else than what rank {} sent", this->rank(), rank),
            "NCCL", "NCCL_DEBUG=WARN shows more");
    return status;
  }

  void watch() {
    std::optional<Clock::time_point> seen;
    while (!ends_.load() && base_.status()) {
      std::this_thread::sleep_for(kLook);
      const std::string why = found_fault();
      if (why.empty())
        seen.reset();
      else if (!seen)
        seen = Clock::now();
      else if (Clock::now() - *seen > kForReason)
        set_fault(why);
    }
    if (!ends_.load()) abort();
  }

  static std::string text_of_lost(int32_t rank) {
    return fmt::format("rank {} has closed its connections", rank);
  }

  // Empty: none.
  std::string found_fault() {
    if (const auto lost = base_.lost_rank()) return text_of_lost(*lost);
    int result = NcclLibrary::kSuccess;
    nccl_.comm_get_async_error(comm_, &result);
    if (result != NcclLibrary::kSuccess && result != NcclLibrary::kInProgress)
      return "NCCL: " + nccl_.text_of(result);
    const uint32_t begun = word(0), ended = word(1);
    if (begun == ended || begun != begun_ || ended != ended_) moved_ = Clock::now();
    begun_ = begun, ended_ = ended;
    if (Clock::now() - moved_ <= patience_) return {};
    return fmt::format("rank {} has awaited the other GPUs for {:.0f} s", rank(),
                       std::chrono::duration<double>(patience_).count());
  }
  uint32_t word(int at) const {
    return std::atomic_ref(words_.as<uint32_t>()[at]).load(std::memory_order_relaxed);
  }

  // Waiting kernels end, and threads that wait for them. NCCL returns once all graphs with its
  // kernels are gone.
  void abort() {
    std::promise<void> aborted;
    auto is_aborted = aborted.get_future();
    std::thread thread([&] {
      const std::unique_lock lock(mutex_, seconds(1));  // a thread in NCCL may wait for this
      is_aborted_ = true;
      nccl_.comm_abort(comm_);
      aborted.set_value();
    });
    const auto deadline = Clock::now() + kForEnd;
    while (!ends_.load() || is_aborted.wait_for(kLook) != std::future_status::ready) {
      if (Clock::now() > deadline) {
        log_error(fmt::format("rank {} ends: {}", rank(), base_.status().error().message()));
        std::_Exit(1);
      }
      std::this_thread::sleep_for(milliseconds(5));
    }
    thread.join();
  }

  RankLink& base_;
  const NcclLibrary nccl_;
  const milliseconds patience_;
  int index_ = 0;       // of the GPU
  float uuid_[4] = {};  // of the GPU: 16 bytes, which others read
  NcclLibrary::Comm comm_ = nullptr;
  Buffer places_, counts_, words_;
  std::timed_mutex mutex_;
  std::atomic<bool> is_aborted_{false}, ends_{false};
  uint32_t begun_ = 0, ended_ = 0;  // as the watch saw them last
  Clock::time_point moved_ = Clock::now();
  std::thread watch_;
};

}  // namespace

uint64_t rank_gather_bytes(int32_t size) {
  constexpr uint64_t kOfNccl = uint64_t{512} << 20;
  return kOfNccl + RankGather::kPlaceBytes * static_cast<uint64_t>(size);
}

Result<std::unique_ptr<RankLink>> make_nccl_link(RankLink& base, const NcclLibrary& nccl,
                                                 const NcclId& id, Device& device, Stream& stream,
                                                 std::chrono::milliseconds patience) {
  auto link = std::make_unique<NcclLink>(base, nccl, patience);
  if (auto status = link->start(device, stream, id); !status)
    return fail(std::move(status.error()));
  return std::unique_ptr<RankLink>(std::move(link));
}

}  // namespace moxie
