// Ranks on GPUs of one process: each has memory that the others' kernels write to. The host only
// makes it, and learns of faults.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "core/cuda.h"
#include "core/rank_link.h"
#include "core/rank_mail.h"

namespace moxie {
namespace {

// What the links of a process share.
class Mailboxes {
 public:
  Mailboxes() = default;
  Mailboxes(const Mailboxes&) = delete;
  Mailboxes& operator=(const Mailboxes&) = delete;
  ~Mailboxes() {
    for (const RankMail& mail : mails_) {
      const auto rank = static_cast<size_t>(mail.rank);
      cudaSetDevice(indices_[rank]);
      cudaFree(mail.boxes[rank]);
      cudaFree(mail.state);
    }
    cudaFreeHost(fault_);
  }

  // `units`: the fewest multiprocessors of a rank's device, or part of one.
  Status make(std::span<const int> indices, int units, std::chrono::milliseconds patience) {
    indices_.assign(indices.begin(), indices.end());
    const auto size = static_cast<int32_t>(indices.size());
    // All blocks of the ranks that share a device must find room on it: they wait for each other.
    int64_t most_ranks = 1;
    for (const int index : indices)
      most_ranks = std::max(most_ranks, int64_t{std::ranges::count(indices, index)});
    const int64_t most_blocks = std::min<int64_t>(RankMail::kMostBlocks / most_ranks,
                                                  int64_t{RankMail::kBlocksOfUnit} * units);
    for (const int from : indices)
      for (const int to : indices)
        if (auto status = enable(from, to); !status) return status;
    auto status = make_fault(patience);
    std::byte* boxes[RankMail::kMostRanks] = {};
    for (int32_t rank = 0; status && rank < size; ++rank) {
      status = add_rank(rank, size, patience);
      mails_.back().num_blocks = static_cast<int32_t>(most_blocks);
      boxes[rank] = mails_.back().boxes[rank];
    }
    if (!status) return status;
    for (RankMail& mail : mails_) std::copy(std::begin(boxes), std::end(boxes), mail.boxes);
    return {};
  }

  // The first of `size` ranks, which receives what it sends, as if each other rank had sent it.
  Status make_mirrored(int index, int32_t size, std::chrono::milliseconds patience) {
    indices_ = {index};
    auto status = make_fault(patience);
    if (status) status = add_rank(0, size, patience);
    if (!status) return status;
    std::byte* const own = mails_[0].boxes[0];
    for (int32_t to = 1; to < size; ++to) mails_[0].boxes[to] = own + to * RankMail::kBytesOfRank;
    return {};
  }

  const RankMail& mail(int32_t rank) const { return mails_[static_cast<size_t>(rank)]; }
  void set_received(int32_t rank, uint16_t* memory) {
    const std::lock_guard lock(mutex_);
    for (RankMail& mail : mails_) mail.received[rank] = memory;
    if (mails_.size() == 1) std::ranges::fill(mails_[0].received, memory);  // it stands for all
  }
  void set_fault(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = text;
    uint32_t none = 0;  // kernels that wait end, too
    word().compare_exchange_strong(none, kOfTheHost);
  }
  Status status() const {
    const uint32_t found = word().load(std::memory_order_acquire);
    if (found == 0) return {};
    const std::lock_guard lock(mutex_);
    if (!text_.empty()) return fail(text_, "ranks");
    return fail(fmt::format("rank {} has not answered for {:.0f} s", found - 1, patience_s_),
                "ranks");
  }

 private:
  static constexpr uint32_t kOfTheHost = 1u << 31;

  static Status enable(int from, int to) {
    if (from == to) return {};
    const std::string where = fmt::format("cuda:{} and cuda:{}", from, to);
    int can = 0;
    auto status = cuda_check(cudaDeviceCanAccessPeer(&can, from, to), where);
    if (!status) return status;
    if (can == 0)
      return fail(
          "these GPUs cannot write to each other's memory", where,
          "`nvidia-smi topo -p2p w` shows which can; start a process a GPU with mpirun, or use "
          "one GPU");
    cudaSetDevice(from);
    const cudaError_t error = cudaDeviceEnablePeerAccess(to, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
      return {};
    }
    return cuda_check(error, where);
  }
  // A word in host memory, through which all ranks learn of a fault.
  Status make_fault(std::chrono::milliseconds patience) {
    patience_s_ = std::chrono::duration<double>(patience).count();
    auto status = cuda_check(cudaHostAlloc(reinterpret_cast<void**>(&fault_), sizeof(*fault_),
                                           cudaHostAllocPortable | cudaHostAllocMapped),
                             "a word of pinned memory");
    if (status) *fault_ = 0;
    return status;
  }
  // With its own box only.
  Status add_rank(int32_t rank, int32_t size, std::chrono::milliseconds patience) {
    RankMail& mail = mails_.emplace_back(RankMail{.rank = rank, .size = size, .fault = fault_});
    mail.patience_ns = static_cast<uint64_t>(std::chrono::nanoseconds(patience).count());
    cudaSetDevice(indices_[static_cast<size_t>(rank)]);
    auto status = allocate(rank_mail_bytes(size), &mail.boxes[rank], rank);
    std::byte* state = nullptr;
    if (status) status = allocate(3 * sizeof(uint32_t), &state, rank);
    mail.state = reinterpret_cast<uint32_t*>(state);
    if (status) status = cuda_check(cudaDeviceSynchronize(), "mailboxes");  // filled with zeros
    return status;
  }
  Status allocate(uint64_t bytes, std::byte** data, int32_t rank) const {
    const std::string where = fmt::format("{} bytes of rank {}'s mailbox", bytes, rank);
    auto status = cuda_check(cudaMalloc(reinterpret_cast<void**>(data), bytes), where);
    return status ? cuda_check(cudaMemset(*data, 0, bytes), where) : status;
  }
  std::atomic_ref<uint32_t> word() const { return std::atomic_ref(*fault_); }

  std::vector<int> indices_;
  std::vector<RankMail> mails_;
  uint32_t* fault_ = nullptr;
  double patience_s_ = 0;
  mutable std::mutex mutex_;
  std::string text_;
};

class PeerLink final : public RankLink {
 public:
  PeerLink(std::shared_ptr<Mailboxes> boxes, int32_t rank)
      : boxes_(std::move(boxes)), rank_(rank) {}
  LinkKind kind() const override { return LinkKind::kPeers; }
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return mail()->size; }
  std::span<const RankArray> meet(RankArray) override {
    set_fault("ranks on GPUs exchange arrays in kernels only");
    return {};
  }
  const RankMail* mail() const override { return &boxes_->mail(rank_); }
  void set_received(uint16_t* memory) override { boxes_->set_received(rank_, memory); }
  void set_fault(const std::string& text) override { boxes_->set_fault(text); }
  Status status() const override { return boxes_->status(); }

 private:
  const std::shared_ptr<Mailboxes> boxes_;
  const int32_t rank_;
};

Status check_size(size_t size) {
  if (std::cmp_less_equal(size, RankMail::kMostRanks)) return {};
  return fail(fmt::format("{} ranks, {} at most on GPUs", size, RankMail::kMostRanks),
              "--tensor-parallel-size");
}

// The device becomes the current one.
Result<int> index_of(Device& device) {
  auto stream = device.make_stream();
  if (!stream) return fail(std::move(stream.error()));
  launch_stream(stream->get());
  int index = 0;
  auto status = cuda_check(cudaGetDevice(&index), "ranks on GPUs");
  if (!status) return fail(std::move(status.error()));
  return index;
}

}  // namespace

Result<std::vector<std::unique_ptr<RankLink>>> make_peer_links(std::span<Device* const> devices,
                                                               std::chrono::milliseconds patience) {
  if (auto status = check_size(devices.size()); !status) return fail(std::move(status.error()));
  std::vector<int> indices;
  int units = RankMail::kMostBlocks;
  for (Device* device : devices) {
    auto index = index_of(*device);
    if (!index) return fail(std::move(index.error()));
    indices.push_back(*index);
    units = std::min(units, device->properties().num_units);
  }
  auto boxes = std::make_shared<Mailboxes>();
  if (auto status = boxes->make(indices, units, patience); !status)
    return fail(std::move(status.error()));
  std::vector<std::unique_ptr<RankLink>> links;
  for (int32_t rank = 0; std::cmp_less(rank, devices.size()); ++rank)
    links.push_back(std::make_unique<PeerLink>(boxes, rank));
  return links;
}

Result<std::unique_ptr<RankLink>> make_mirrored_link(Device& device, int32_t size,
                                                     std::chrono::milliseconds patience) {
  if (auto status = check_size(static_cast<size_t>(size)); !status)
    return fail(std::move(status.error()));
  auto index = index_of(device);
  if (!index) return fail(std::move(index.error()));
  auto boxes = std::make_shared<Mailboxes>();
  if (auto status = boxes->make_mirrored(*index, size, patience); !status)
    return fail(std::move(status.error()));
  return std::make_unique<PeerLink>(boxes, 0);
}

}  // namespace moxie
