// Orders to ranks that are other processes, as bytes: numbers of 32 bits and lists of them, each
// with its length before it.
#include <cstring>

#include "engine/parallel.h"

namespace moxie {
namespace {

// Every list and number of an order, in the order in which they are sent. With `Visit` writing or
// reading, both sides agree.
template <typename Order, typename Visit>
void for_each_part(Order& order, Visit&& visit) {
  auto& a = order.arrays;
  visit(order.from_page), visit(order.to_page);
  visit(a.table_stride);
  visit(a.num_visible_keys);
  visit(a.token_ids), visit(a.positions), visit(a.seq_idx), visit(a.row_offsets);
  visit(a.logit_rows), visit(a.full_tables), visit(a.window_tables);
}

class Writer {
 public:
  template <typename T>
  requires std::is_integral_v<T>
  void operator()(const T& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  void operator()(const std::vector<int32_t>& values) {
    (*this)(static_cast<uint64_t>(values.size()));
    const auto bytes = std::as_bytes(std::span(values));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  requires std::is_integral_v<T>
  void operator()(T& value) {
    if (take(sizeof value, &value)) return;
    value = {};
  }
  void operator()(std::vector<int32_t>& values) {
    uint64_t count = 0;
    (*this)(count);
    is_whole_ = is_whole_ && count <= bytes_.size() / sizeof(int32_t);
    values.resize(is_whole_ ? count : 0);
    take(4 * values.size(), values.data());
  }
  bool is_all() const { return is_whole_ && bytes_.empty(); }

 private:
  bool take(size_t size, void* to) {
    is_whole_ = is_whole_ && size <= bytes_.size();
    if (!is_whole_) return false;
    if (size > 0) std::memcpy(to, bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return true;
  }
  std::span<const std::byte> bytes_;
  bool is_whole_ = true;
};

// The arrays of a launch refer to each other.
bool is_sound(const HostArrays& a) {
  const size_t tokens = a.token_ids.size(), ends = a.row_offsets.size();
  if (ends < 1 || a.positions.size() != tokens || a.seq_idx.size() != tokens) return false;
  if (a.row_offsets.front() != 0 || std::cmp_not_equal(a.row_offsets.back(), tokens)) return false;
  const size_t entries = (ends - 1) * static_cast<size_t>(std::max(a.table_stride, 0));
  return a.full_tables.size() == entries && a.window_tables.size() == entries;
}

}  // namespace

std::vector<std::byte> to_bytes(const RankOrder& order) {
  Writer writer;
  writer(static_cast<uint8_t>(order.kind));
  writer(static_cast<uint8_t>(order.page_kind));
  for_each_part(order, writer);
  return writer.take();
}

Result<RankOrder> rank_order(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  RankOrder order;
  uint8_t kind = 0, page_kind = 0;
  reader(kind);
  reader(page_kind);
  for_each_part(order, reader);
  order.kind = static_cast<RankOrder::Kind>(kind);
  order.page_kind = static_cast<PageKind>(page_kind);
  const bool is_launch = order.kind == RankOrder::Kind::kLaunch;
  const bool is_known = is_launch || order.kind == RankOrder::Kind::kCopyPage;
  if (!reader.is_all() || !is_known || page_kind > static_cast<uint8_t>(PageKind::kWindow) ||
      (is_launch && !is_sound(order.arrays)))
    return fail("an order that no rank of this build gives", "ranks",
                "start all ranks with the same build");
  return order;
}

}  // namespace moxie
