// Orders to ranks that are other processes, as bytes: numbers as they lie in memory, and lists of
// them, each with its length before it.
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
  visit(a.table_stride), visit(a.num_fed);
  visit(a.num_visible_keys);
  visit(a.token_ids), visit(a.positions), visit(a.seq_idx), visit(a.row_offsets);
  visit(a.logit_rows), visit(a.full_tables), visit(a.window_tables), visit(a.fed);
  visit(order.mask_words);
}

template <typename Request, typename Visit>
void for_each_number(Request& r, Visit&& visit) {
  visit(r.temperature), visit(r.top_k), visit(r.top_p), visit(r.min_p);
  visit(r.repetition_penalty), visit(r.frequency_penalty), visit(r.presence_penalty);
  visit(r.num_logprobs), visit(r.seed), visit(r.step);
}

template <typename T>
concept Number = std::is_arithmetic_v<T>;

class Writer {
 public:
  template <Number T>
  void operator()(const T& value) {
    append(std::as_bytes(std::span(&value, 1)));
  }
  template <Number T>
  void operator()(const std::vector<T>& values) {
    list(values.data(), values.size());
  }
  template <Number T>
  void list(const T* values, size_t count) {
    (*this)(static_cast<uint64_t>(count));
    append(std::as_bytes(std::span(values, count)));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void append(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <Number T>
  void operator()(T& value) {
    if (take(sizeof value, &value)) return;
    value = {};
  }
  template <Number T>
  void operator()(std::vector<T>& values) {
    values.resize(count_of(sizeof(T)));
    take(sizeof(T) * values.size(), values.data());
  }
  // How many things of at least so many bytes follow.
  size_t count_of(size_t least_bytes) {
    uint64_t count = 0;
    (*this)(count);
    is_whole_ = is_whole_ && count <= bytes_.size() / least_bytes;
    return is_whole_ ? count : 0;
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

void write_request(const SampleRequest& r, int32_t mask_words, Writer& writer) {
  for_each_number(r, writer);
  const auto num_history = static_cast<size_t>(r.num_history);
  const auto num_bias = static_cast<size_t>(r.num_bias);
  writer.list(r.history_ids, num_history);
  writer.list(r.history_counts, num_history);
  writer.list(r.bias_ids, num_bias);
  writer.list(r.bias_values, num_bias);
  writer.list(r.allowed_mask, r.allowed_mask == nullptr ? 0 : static_cast<size_t>(mask_words));
}

// False where its arrays do not belong together.
bool read_request(int32_t mask_words, Reader& reader, SampleRequest* r, RequestArrays* a) {
  for_each_number(*r, reader);
  reader(a->history_ids), reader(a->history_counts);
  reader(a->bias_ids), reader(a->bias_values), reader(a->allowed_mask);
  r->num_history = static_cast<int32_t>(a->history_ids.size());
  r->history_ids = a->history_ids.data();
  r->history_counts = a->history_counts.data();
  r->num_bias = static_cast<int32_t>(a->bias_ids.size());
  r->bias_ids = a->bias_ids.data();
  r->bias_values = a->bias_values.data();
  r->allowed_mask = a->allowed_mask.empty() ? nullptr : a->allowed_mask.data();
  return a->history_counts.size() == a->history_ids.size() &&
         a->bias_values.size() == a->bias_ids.size() &&
         (a->allowed_mask.empty() || std::cmp_equal(a->allowed_mask.size(), mask_words));
}

bool read_requests(Reader& reader, RankOrder* order) {
  constexpr size_t kLeastBytes = 10 * 4 + 5 * 8;  // of a request: its numbers and empty lists
  const size_t count = reader.count_of(kLeastBytes);
  order->requests.resize(count);
  order->request_arrays.resize(count);
  bool is_sound = true;
  for (size_t i = 0; i < count && is_sound; ++i)
    is_sound =
        read_request(order->mask_words, reader, &order->requests[i], &order->request_arrays[i]);
  return is_sound;
}

// The arrays of a launch refer to each other.
bool is_sound(const HostArrays& a) {
  const size_t tokens = a.token_ids.size(), ends = a.row_offsets.size();
  if (ends < 1 || a.positions.size() != tokens || a.seq_idx.size() != tokens) return false;
  if (a.row_offsets.front() != 0 || std::cmp_not_equal(a.row_offsets.back(), tokens)) return false;
  const size_t entries = (ends - 1) * static_cast<size_t>(std::max(a.table_stride, 0));
  return a.full_tables.size() == entries && a.window_tables.size() == entries;
}

// A launch of a decode loop has one token of each sequence.
bool is_sound(const RankOrder& order) {
  const HostArrays& a = order.arrays;
  const size_t rows = a.token_ids.size();
  switch (order.kind) {
    case RankOrder::Kind::kLaunch:
      return is_sound(a);
    case RankOrder::Kind::kBeginDecoding:
      return is_sound(a) && rows > 0 && a.row_offsets.size() == rows + 1 &&
             order.requests.size() == rows && a.num_fed >= 0 && a.num_fed <= DecodeLoop::kMaxFed &&
             a.fed.size() == rows * static_cast<size_t>(a.num_fed);
    case RankOrder::Kind::kDecodeNext:
      return is_sound(a) && rows > 0 && a.row_offsets.size() == rows + 1 && a.table_stride == 1;
    case RankOrder::Kind::kEndDecoding:
    case RankOrder::Kind::kCopyPage:
      return true;
    case RankOrder::Kind::kQuit:
      break;
  }
  return false;
}

}  // namespace

std::vector<std::byte> to_bytes(const RankOrder& order) {
  Writer writer;
  writer(static_cast<uint8_t>(order.kind));
  writer(static_cast<uint8_t>(order.page_kind));
  for_each_part(order, writer);
  writer(static_cast<uint64_t>(order.requests.size()));
  for (const SampleRequest& request : order.requests)
    write_request(request, order.mask_words, writer);
  return writer.take();
}

Result<RankOrder> rank_order(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  RankOrder order;
  uint8_t kind = 0, page_kind = 0;
  reader(kind);
  reader(page_kind);
  for_each_part(order, reader);
  const bool has_requests = read_requests(reader, &order);
  order.kind = static_cast<RankOrder::Kind>(kind);
  order.page_kind = static_cast<PageKind>(page_kind);
  if (!reader.is_all() || !has_requests || page_kind > static_cast<uint8_t>(PageKind::kWindow) ||
      !is_sound(order))
    return fail("an order that no rank of this build gives", "ranks",
                "start all ranks with the same build");
  return order;
}

}  // namespace moxie
