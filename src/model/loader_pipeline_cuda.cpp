// The pipeline of a load to a GPU. Each thread has two slots of pinned memory and of the device's:
// while the copy engine and a repack kernel work on one, the thread reads the next piece into the
// other. One stream copies, another repacks, so that copies and repacks overlap.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "core/clock.h"
#include "core/cuda.h"
#include "core/numa.h"
#include "model/loader_cuda.h"

namespace moxie {
namespace {

// A thread reads from the page cache to pinned memory at 4 to 7 GB/s; the copy takes 55 GB/s. Each
// further reader needs pinned memory, and pinning takes time.
constexpr int kMaxReaders = 10;
constexpr uint64_t kMaxPinnedBytes = uint64_t{512} << 20;  // with pieces larger than usual

// Timed events cost the copy engine microseconds: one piece in this many has them, as a sample.
constexpr size_t kTimedOneIn = 16;

// Pinned memory on huge pages where the system grants them: pinning those takes a third of the time
// that cudaHostAlloc does.
class PinnedPages {
 public:
  PinnedPages() = default;
  PinnedPages(const PinnedPages&) = delete;
  PinnedPages& operator=(const PinnedPages&) = delete;
  ~PinnedPages() {
    if (is_pinned_) cudaHostUnregister(data_);
    if (mapped_ != nullptr) ::munmap(mapped_, bytes_ + kHugePage);
  }
  Status make(uint64_t bytes) {
    bytes_ = round_up<uint64_t>(bytes, kHugePage);
    void* mapped = ::mmap(nullptr, bytes_ + kHugePage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      return fail("cannot have " + std::to_string(bytes_) + " bytes of host memory to copy from",
                  "loading weights", "free some of the machine's memory");
    }
    mapped_ = mapped;
    const auto address = reinterpret_cast<uintptr_t>(mapped);
    data_ = static_cast<std::byte*>(mapped) + (round_up(address, uintptr_t{kHugePage}) - address);
    ::madvise(data_, bytes_, MADV_HUGEPAGE);
    for (uint64_t at = 0; at < bytes_; at += 4096) data_[at] = std::byte{};  // outside the driver
    Status status = cuda_check(cudaHostRegister(data_, bytes_, cudaHostRegisterPortable),
                               "pinning " + std::to_string(bytes_) + " bytes of host memory");
    is_pinned_ = status.has_value();
    return status;
  }
  std::byte* data() const { return data_; }

 private:
  static constexpr uint64_t kHugePage = uint64_t{2} << 20;
  void* mapped_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  bool is_pinned_ = false;
};

struct Slot {
  std::byte *host = nullptr, *device = nullptr;
  cudaEvent_t copied = nullptr, repacked = nullptr;
  bool is_busy = false, has_repack = false;
};

// Events around the copies and repacks of some pieces, read at the end.
struct TimedPiece {
  cudaEvent_t events[4] = {};  // copy begins, ends, repacking begins, ends
  uint64_t bytes = 0;
  bool has_repack = false;
};

class Pipeline {
 public:
  Pipeline(const std::vector<LoadPiece>& pieces, Device& device, LoadProgress& progress)
      : pieces_(pieces), device_(device), progress_(progress) {}
  ~Pipeline() {
    for (Slot& slot : slots_)
      for (cudaEvent_t event : {slot.copied, slot.repacked})
        if (event != nullptr) cudaEventDestroy(event);
    for (TimedPiece& piece : timed_)
      for (cudaEvent_t event : piece.events)
        if (event != nullptr) cudaEventDestroy(event);
  }

  Status prepare() {
    for (const LoadPiece& piece : pieces_) slot_bytes_ = std::max(slot_bytes_, piece.bytes);
    slot_bytes_ = round_up<uint64_t>(slot_bytes_, 4096);
    const auto fitting = static_cast<int>(std::max<uint64_t>(1, kMaxPinnedBytes / slot_bytes_ / 2));
    num_readers_ = std::min({num_usable_cores(), kMaxReaders, fitting,
                             static_cast<int>(ceil_div<size_t>(pieces_.size(), 2))});
    const auto num_slots = static_cast<uint64_t>(2 * num_readers_);
    const uint64_t nan_bytes = pieces_.size() * sizeof(int32_t);
    Status status = take(device_.allocate(num_slots * slot_bytes_), &staging_);
    if (status) status = take(device_.allocate(nan_bytes), &nan_rows_);
    if (status) status = take(device_.make_stream(), &copy_);
    if (status) status = take(device_.make_stream(), &repack_);
    if (!status) return status;
    slots_.resize(num_slots);
    pinned_ = std::vector<PinnedPages>(static_cast<size_t>(num_readers_));
    for (size_t i = 0; i < num_slots; ++i) {
      Slot& slot = slots_[i];
      slot.device = staging_.data() + i * slot_bytes_;
      for (cudaEvent_t* event : {&slot.copied, &slot.repacked}) {
        status = cuda_check(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "CUDA event");
        if (!status) return status;
      }
    }
    timed_.resize(ceil_div(pieces_.size(), kTimedOneIn));
    for (TimedPiece& piece : timed_) {
      for (cudaEvent_t& event : piece.events)
        if (status = cuda_check(cudaEventCreate(&event), "CUDA event"); !status) return status;
    }
    static_assert(kNoNanRow == 0x7F7F7F7F, "set byte by byte");
    return cuda_check(
        cudaMemsetAsync(nan_rows_.data(), 0x7F, nan_bytes, launch_stream(repack_.get())),
        "CUDA fill");
  }

  Status run() {
    std::vector<std::thread> threads;
    for (int r = 1; r < num_readers_; ++r) threads.emplace_back([this, r] { read_pieces(r); });
    read_pieces(0);
    for (std::thread& thread : threads) thread.join();
    // Both streams, also after a fault: the memory is freed after this.
    const Status copied = copy_->synchronize(), repacked = repack_->synchronize();
    if (!error_) return error_;
    return copied ? repacked : copied;
  }

  Status finish(std::vector<int32_t>* nan_rows, StartupTimeline* timeline) {
    timeline->read_s = read_s_ / num_readers_;
    add_times(timeline);
    Status status =
        device_.copy_to_host(nan_rows->data(), nan_rows_.data(), nan_rows_.bytes(), *repack_);
    return status ? repack_->synchronize() : status;
  }

 private:
  template <typename T>
  static Status take(Result<T> made, T* place) {
    if (!made) return fail(std::move(made.error()));
    *place = std::move(*made);
    return {};
  }

  // Each reader pins its own slots, so that the first ones read meanwhile.
  Status pin_slots(int reader) {
    PinnedPages& pinned = pinned_[static_cast<size_t>(reader)];
    launch_stream(copy_.get());  // this thread's current device
    if (Status status = pinned.make(2 * slot_bytes_); !status) return status;
    for (size_t i = 0; i < 2; ++i)
      slots_[2 * static_cast<size_t>(reader) + i].host = pinned.data() + i * slot_bytes_;
    return {};
  }

  void read_pieces(int reader) {
    double read_s = 0;
    Status status = pin_slots(reader);
    for (size_t turn = 0; status && !stop_; ++turn) {
      const size_t i = next_++;
      if (i >= pieces_.size()) break;
      Slot& slot = slots_[2 * static_cast<size_t>(reader) + turn % 2];
      status = wait(slot);
      if (!status) break;
      const auto start = Clock::now();
      status = read_piece(pieces_[i], slot.host);
      read_s += seconds_since(start);
      if (status) status = submit(i, slot);
    }
    for (size_t i = 0; i < 2; ++i)
      if (status) status = wait(slots_[2 * static_cast<size_t>(reader) + i]);
    const std::lock_guard lock(mutex_);
    read_s_ += read_s;
    if (!status && error_) error_ = status;
    if (!status) stop_ = true;
  }

  // Waits until the slot's piece is where it belongs.
  Status wait(Slot& slot) {
    if (!slot.is_busy) return {};
    slot.is_busy = false;
    const cudaEvent_t last = slot.has_repack ? slot.repacked : slot.copied;
    return cuda_check(cudaEventSynchronize(last), "loading weights");
  }

  // The time that `bytes` take at the median rate, between two events, of the larger timed pieces:
  // a small piece's time is mostly the launch's.
  double seconds_for(uint64_t bytes, int begin, int end, bool needs_repack) const {
    uint64_t largest = 0;
    for (const TimedPiece& piece : timed_)
      if (piece.has_repack || !needs_repack) largest = std::max(largest, piece.bytes);
    std::vector<double> s_per_byte;
    for (const TimedPiece& piece : timed_) {
      if (piece.bytes < std::max<uint64_t>(1, largest / 4)) continue;
      if (needs_repack && !piece.has_repack) continue;
      float ms = 0;
      if (cudaEventElapsedTime(&ms, piece.events[begin], piece.events[end]) == cudaSuccess)
        s_per_byte.push_back(1e-3 * ms / static_cast<double>(piece.bytes));
    }
    if (s_per_byte.empty()) return 0;
    const auto middle = s_per_byte.begin() + static_cast<int64_t>(s_per_byte.size() / 2);
    std::nth_element(s_per_byte.begin(), middle, s_per_byte.end());
    return *middle * static_cast<double>(bytes);
  }

  void add_times(StartupTimeline* timeline) const {
    uint64_t copy_bytes = 0, repack_bytes = 0;
    for (const LoadPiece& piece : pieces_) {
      copy_bytes += piece.bytes;
      if (!std::holds_alternative<DirectCopy>(piece.work)) repack_bytes += piece.bytes;
    }
    timeline->copy_s = seconds_for(copy_bytes, 0, 1, false);
    timeline->repack_s = seconds_for(repack_bytes, 2, 3, true);
  }

  // One piece at a time, so that nothing comes between two events.
  Status submit(size_t i, Slot& slot) {
    auto* nan_row = nan_rows_.as<int32_t>() + i;
    const LoadPiece piece = point_piece(pieces_[i], slot.device, nan_row);
    const auto* direct = std::get_if<DirectCopy>(&piece.work);
    const std::lock_guard lock(mutex_);
    const cudaStream_t copy = launch_stream(copy_.get()), repack = launch_stream(repack_.get());
    slot.is_busy = true;
    slot.has_repack = direct == nullptr;
    std::byte* target = direct != nullptr ? direct->target : slot.device;
    TimedPiece* timed = i % kTimedOneIn == 0 ? &timed_[i / kTimedOneIn] : nullptr;
    const auto time = [timed](int event, cudaStream_t stream) {
      if (timed != nullptr) cudaEventRecord(timed->events[event], stream);
    };
    if (timed != nullptr) timed->bytes = piece.bytes, timed->has_repack = slot.has_repack;
    time(0, copy);
    const cudaError_t copied =
        cudaMemcpyAsync(target, slot.host, piece.bytes, cudaMemcpyHostToDevice, copy);
    time(1, copy);
    cudaEventRecord(slot.copied, copy);
    progress_.add(piece.bytes);
    if (direct != nullptr) return cuda_check(copied, "copying weights");
    cudaStreamWaitEvent(repack, slot.copied);
    time(2, repack);
    std::visit(Overloaded{[](const DirectCopy&) {},
                          [&](const auto& work) { repack_on_device(work, *repack_); }},
               piece.work);
    time(3, repack);
    cudaEventRecord(slot.repacked, repack);
    return cuda_check(copied, "copying weights");
  }

  const std::vector<LoadPiece>& pieces_;
  Device& device_;
  LoadProgress& progress_;
  int num_readers_ = 1;
  uint64_t slot_bytes_ = 0;
  std::vector<PinnedPages> pinned_;  ///< one a reader
  Buffer staging_, nan_rows_;
  std::unique_ptr<Stream> copy_, repack_;
  std::vector<Slot> slots_;
  std::vector<TimedPiece> timed_;
  std::atomic<size_t> next_ = 0;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  ///< guards the members below and the order of submissions
  Status error_;
  double read_s_ = 0;
};

}  // namespace

Status run_pieces_cuda(const std::vector<LoadPiece>& pieces, Device& device, WeightsPlace& place,
                       LoadProgress& progress, std::vector<int32_t>* nan_rows) {
  // What the caller gave to its stream (cleared padding) comes first.
  if (Status status = place.stream->synchronize(); !status) return status;
  Pipeline pipeline(pieces, device, progress);
  if (Status status = pipeline.prepare(); !status) return status;
  if (Status status = pipeline.run(); !status) return status;
  return pipeline.finish(nan_rows, &place.weights.timeline);
}

}  // namespace moxie
