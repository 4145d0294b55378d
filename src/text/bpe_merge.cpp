// Merges one piece: always the pair of lowest rank, the leftmost of equals. Short pieces (nearly
// all) scan an array for the minimum. Long pieces keep a linked list of tokens and a queue of
// candidate pairs: a heap, or for very long pieces buckets by rank, whose work is nearly linear,
// while a heap of millions would miss the caches.
#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>

#include "core/base.h"
#include "text/bpe_tables.h"

namespace moxie {
namespace {

constexpr size_t kMaxScannedBytes = 96;
constexpr size_t kMaxHeapedBytes = size_t{1} << 16;
// Positions are 32 bits. A longer piece (one run of letters or spaces of over a gigabyte) is cut.
constexpr size_t kMaxPieceBytes = size_t{1} << 30;

uint32_t rank_of_bytes(const BpeTables& tables, std::string_view piece, size_t pos) {
  return tables.rank_of_byte_pair[static_cast<uint8_t>(piece[pos]) * 256u +
                                  static_cast<uint8_t>(piece[pos + 1])];
}

void merge_scanned(const BpeTables& tables, std::string_view piece, std::vector<int32_t>* out) {
  int32_t ids[kMaxScannedBytes];
  uint32_t ranks[kMaxScannedBytes];  // of the pair (i, i + 1)
  size_t num = piece.size();
  for (size_t i = 0; i < num; ++i) {
    ids[i] = tables.token_of_byte[static_cast<uint8_t>(piece[i])];
    ranks[i] = i + 1 < num ? rank_of_bytes(tables, piece, i) : kNoRank;
  }
  while (true) {
    size_t best = 0;
    uint32_t best_rank = kNoRank;
    for (size_t i = 0; i + 1 < num; ++i) {
      if (ranks[i] < best_rank) {
        best_rank = ranks[i];
        best = i;
      }
    }
    if (best_rank == kNoRank) break;
    --num;
    std::memmove(ids + best + 1, ids + best + 2, (num - best - 1) * sizeof(ids[0]));
    std::memmove(ranks + best, ranks + best + 1, (num - best) * sizeof(ranks[0]));
    ids[best] = tables.token_of_rank[best_rank];
    ranks[best] = best + 1 < num ? tables.merges.rank_of(ids[best], ids[best + 1]) : kNoRank;
    if (best > 0) ranks[best - 1] = tables.merges.rank_of(ids[best - 1], ids[best]);
  }
  out->insert(out->end(), ids, ids + num);
}

struct Candidate {
  uint32_t rank;
  uint32_t pos;  // of the first byte
};

class HeapQueue {
 public:
  HeapQueue(size_t num_bytes, size_t) { heap_.reserve(num_bytes); }
  void push(Candidate c) {
    heap_.push_back(static_cast<uint64_t>(c.rank) << 32 | c.pos);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  bool pop(Candidate* c) {
    if (heap_.empty()) return false;
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    *c = {static_cast<uint32_t>(heap_.back() >> 32), static_cast<uint32_t>(heap_.back())};
    heap_.pop_back();
    return true;
  }

 private:
  std::vector<uint64_t> heap_;
};

// A bucket of positions for each rank, and a heap of the ranks whose buckets are not empty. A
// bucket is sorted when it is read; positions mostly come in order already.
class BucketQueue {
 public:
  BucketQueue(size_t, size_t num_ranks) : bucket_of_rank_(num_ranks, kNoBucket) {}
  void push(Candidate c) {
    uint32_t& slot = bucket_of_rank_[c.rank];
    if (slot == kNoBucket) {
      slot = static_cast<uint32_t>(buckets_.size());
      buckets_.emplace_back();
    }
    Bucket& bucket = buckets_[slot];
    if (bucket.positions.empty()) {
      ranks_.push(c.rank);
    } else if (bucket.positions.back() > c.pos) {
      bucket.sorted = false;
    }
    bucket.positions.push_back(c.pos);
  }
  bool pop(Candidate* c) {
    if (ranks_.empty()) return false;
    const uint32_t rank = ranks_.top();
    Bucket& bucket = buckets_[bucket_of_rank_[rank]];
    if (!bucket.sorted) {
      std::sort(bucket.positions.begin() + static_cast<ptrdiff_t>(bucket.num_read),
                bucket.positions.end());
      bucket.sorted = true;
    }
    *c = {rank, bucket.positions[bucket.num_read++]};
    if (bucket.num_read == bucket.positions.size()) {
      bucket = Bucket{};  // gives its memory back
      ranks_.pop();
    }
    return true;
  }

 private:
  static constexpr uint32_t kNoBucket = UINT32_MAX;
  struct Bucket {
    std::vector<uint32_t> positions;
    size_t num_read = 0;
    bool sorted = true;
  };
  std::vector<uint32_t> bucket_of_rank_;
  std::vector<Bucket> buckets_;
  std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> ranks_;
};

template <class Queue>
void merge_queued(const BpeTables& tables, std::string_view piece, std::vector<int32_t>* out) {
  struct Node {
    int32_t id;
    uint32_t rank;  // of the pair with the next token; a candidate with another rank is stale
    uint32_t prev, next;
  };
  constexpr uint32_t kEnd = UINT32_MAX;
  const uint32_t num_bytes = static_cast<uint32_t>(piece.size());
  std::vector<Node> nodes(num_bytes);  // by the position of the token's first byte
  Queue queue(num_bytes, tables.token_of_rank.size());
  for (uint32_t i = 0; i < num_bytes; ++i) {
    const bool last = i + 1 == num_bytes;
    nodes[i] = {.id = tables.token_of_byte[static_cast<uint8_t>(piece[i])],
                .rank = last ? kNoRank : rank_of_bytes(tables, piece, i),
                .prev = i == 0 ? kEnd : i - 1,
                .next = last ? kEnd : i + 1};
    if (nodes[i].rank != kNoRank) queue.push({nodes[i].rank, i});
  }
  const auto update = [&](uint32_t pos) {
    Node& node = nodes[pos];
    node.rank = node.next == kEnd ? kNoRank : tables.merges.rank_of(node.id, nodes[node.next].id);
    if (node.rank != kNoRank) queue.push({node.rank, pos});
  };
  for (Candidate c; queue.pop(&c);) {
    Node& node = nodes[c.pos];
    if (node.rank != c.rank) continue;
    Node& gone = nodes[node.next];
    node.id = tables.token_of_rank[c.rank];
    node.next = gone.next;
    gone.rank = kNoRank;
    if (node.next != kEnd) nodes[node.next].prev = c.pos;
    update(c.pos);
    if (node.prev != kEnd) update(node.prev);
  }
  for (uint32_t i = 0; i != kEnd; i = nodes[i].next) out->push_back(nodes[i].id);
}

}  // namespace

void merge_piece(const BpeTables& tables, std::string_view piece, std::vector<int32_t>* ids) {
  for (; piece.size() > kMaxPieceBytes; piece.remove_prefix(kMaxPieceBytes)) {
    merge_queued<BucketQueue>(tables, piece.substr(0, kMaxPieceBytes), ids);
  }
  if (piece.size() <= kMaxScannedBytes) return merge_scanned(tables, piece, ids);
  if (piece.size() <= kMaxHeapedBytes) return merge_queued<HeapQueue>(tables, piece, ids);
  merge_queued<BucketQueue>(tables, piece, ids);
}

}  // namespace moxie
