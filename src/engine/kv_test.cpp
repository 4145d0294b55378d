// KvCache against a naive model: what is written at a position is what is read there later, for
// any mix of appends, forks, truncations, releases and frees.
#include "engine/kv.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>

namespace moxie {
namespace {

// Layers alternate, window first; F32, so that a content id is one element of a row.
KvShape small_shape(int32_t page_tokens = 4, int32_t window = 6) {
  return {.num_full_layers = 2,
          .num_window_layers = 2,
          .num_kv_heads = 2,
          .head_dim = 4,
          .window = window,
          .page_tokens = page_tokens,
          .dtype = DType::kF32};
}
constexpr uint8_t kKinds[] = {1, 0, 1, 0};

class KvTest : public ::testing::Test {
 protected:
  void make(const KvShape& shape, int32_t full_pages, int32_t window_pages) {
    auto cache = KvCache::create(*device_, *stream_, shape, kKinds, full_pages, window_pages);
    ASSERT_TRUE(cache.has_value()) << cache.error().message();
    kv_ = std::move(*cache);
  }
  std::unique_ptr<Device> device_ = make_cpu_device(1);
  std::unique_ptr<Stream> stream_ = std::move(*device_->make_stream());
  std::unique_ptr<KvCache> kv_;
};

// The cache beside lists of content ids: each token of each sequence has one, and every row of K
// and V of the token holds a value made of it, the layer, the head and K or V.
class Model {
 public:
  Model(KvCache& kv) : kv_(kv) {}  // NOLINT(google-explicit-constructor)

  void add() { sequences_[kv_.add_sequence()] = {}; }
  size_t num_sequences() const { return sequences_.size(); }
  SeqId pick(size_t i) const {
    auto it = sequences_.begin();
    std::advance(it, static_cast<int64_t>(i % sequences_.size()));
    return it->first;
  }

  bool append(SeqId seq, int32_t count) {
    auto& sequence = sequences_.at(seq);
    const int32_t free_full = kv_.num_free_full_pages(), free_window = kv_.num_free_window_pages();
    const int32_t before = kv_.num_tokens(seq);
    if (!kv_.append(seq, count)) {
      RC_ASSERT(kv_.num_free_full_pages() == free_full);
      RC_ASSERT(kv_.num_free_window_pages() == free_window);
      RC_ASSERT(kv_.num_tokens(seq) == before);
      return false;
    }
    for (int32_t i = 0; i < count; ++i) {
      sequence.contents.push_back(++last_content_);
      write(seq, before + i, last_content_);
    }
    return true;
  }
  void free(SeqId seq) {
    kv_.free_sequence(seq);
    sequences_.erase(seq);
  }
  void fork(SeqId seq) {
    const auto copy = kv_.fork(seq);
    RC_ASSERT(copy.has_value());
    RC_ASSERT(sequences_.count(*copy) == 0u);
    sequences_[*copy] = sequences_.at(seq);
  }
  void release(SeqId seq) {
    kv_.release_window(seq);
    auto& sequence = sequences_.at(seq);
    const auto length = static_cast<int32_t>(sequence.contents.size());
    const int32_t pt = kv_.shape().page_tokens;
    // Whole pages before the first key that the next token sees.
    const int32_t first_seen = std::max(0, length - kv_.shape().window + 1);
    sequence.first_held = std::max(sequence.first_held, first_seen / pt * pt);
  }
  void truncate(SeqId seq, int32_t length) {
    auto& sequence = sequences_.at(seq);
    const int32_t first_seen = std::max(0, length - kv_.shape().window + 1);
    bool needs_freed = false;  // by definition: some key that the next token sees is gone
    for (int32_t j = first_seen; j < length; ++j) needs_freed |= j < sequence.first_held;
    // Or the page that the next token is written into.
    needs_freed |= length % kv_.shape().page_tokens != 0 && length < sequence.first_held;
    const bool done = kv_.truncate(seq, length).has_value();
    RC_ASSERT(done == !needs_freed);
    if (!done) return;
    sequence.contents.resize(static_cast<size_t>(length));
    const int32_t pt = kv_.shape().page_tokens;
    sequence.first_held = std::min(sequence.first_held, (length + pt - 1) / pt * pt);
  }

  // Every key that must be there is there, in every layer; freed pages have entry -1.
  void check() {
    kv_.check_integrity();
    for (const auto& [seq, sequence] : sequences_) {
      RC_ASSERT(kv_.num_tokens(seq) == static_cast<int32_t>(sequence.contents.size()));
      views(seq);
      for (int32_t p = 0; p < static_cast<int32_t>(sequence.contents.size()); ++p) {
        for (size_t layer = 0; layer < views_.size(); ++layer) {
          const bool freed = kKinds[layer] == 1 && p < sequence.first_held;
          RC_ASSERT((views_[layer].page_of(0, p) < 0) == freed);
          if (!freed) check_rows(layer, p, sequence.contents[static_cast<size_t>(p)]);
        }
      }
    }
  }

 private:
  struct Sequence {
    std::vector<int32_t> contents;
    int32_t first_held = 0;  // window keys before are freed
  };

  void views(SeqId seq) {
    const auto stride = static_cast<size_t>(kv_.num_tokens(seq) / kv_.shape().page_tokens + 2);
    full_.assign(stride, -7);
    window_.assign(stride, -7);
    kv_.fill_tables(seq, full_, window_);
    kv_.layer_views(full_.data(), window_.data(), static_cast<int32_t>(stride), &views_);
    RC_ASSERT(full_.back() == -1 && window_.back() == -1);
  }
  static float value(size_t layer, int32_t head, bool is_v, int32_t content) {
    return static_cast<float>(content * 16 + static_cast<int32_t>(layer) * 4 + head * 2 + is_v);
  }
  template <typename Visit>
  void for_rows(size_t layer, int32_t position, Visit&& visit) {
    const KvShape& shape = kv_.shape();
    const KvLayer& view = views_[layer];
    const int32_t page = view.page_of(0, position);
    for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
      const int64_t at = view.offset(page, head, position, shape.head_dim);
      visit(reinterpret_cast<float*>(view.k + at), head, false);
      visit(reinterpret_cast<float*>(view.v + at), head, true);
    }
  }
  void write(SeqId seq, int32_t position, int32_t content) {
    views(seq);
    for (size_t layer = 0; layer < views_.size(); ++layer) {
      for_rows(layer, position, [&](float* row, int32_t head, bool is_v) {
        std::fill_n(row, kv_.shape().head_dim, value(layer, head, is_v, content));
      });
    }
  }
  void check_rows(size_t layer, int32_t position, int32_t content) {
    for_rows(layer, position, [&](const float* row, int32_t head, bool is_v) {
      for (int32_t i = 0; i < kv_.shape().head_dim; ++i)
        RC_ASSERT(row[i] == value(layer, head, is_v, content));
    });
  }

  KvCache& kv_;
  std::map<SeqId, Sequence> sequences_;
  int32_t last_content_ = 0;
  std::vector<int32_t> full_, window_;
  std::vector<KvLayer> views_;
};

void random_operation(Model& model, KvCache& kv) {
  const int kind = *rc::gen::inRange(0, 12);
  if (model.num_sequences() == 0 || (kind == 0 && model.num_sequences() < 6)) {
    model.add();
    return;
  }
  const SeqId seq = model.pick(*rc::gen::inRange<size_t>(0, 64));
  switch (kind) {
    case 1:
      model.free(seq);
      break;
    case 2:
      if (model.num_sequences() < 6) model.fork(seq);
      break;
    case 3:
    case 4:
      model.truncate(seq, *rc::gen::inRange(0, kv.num_tokens(seq) + 1));
      break;
    case 5:
      model.truncate(seq, std::max(0, kv.num_tokens(seq) - *rc::gen::inRange(0, 4)));
      break;
    case 6:
    case 7:
      model.release(seq);
      break;
    default:
      model.append(seq, *rc::gen::inRange(0, 9));
      break;
  }
}

TEST_F(KvTest, AnyMixOfOperationsKeepsWhatWasWritten) {
  const auto life_of_a_cache = [&] {
    const int32_t page_tokens = *rc::gen::element(1, 3, 4, 16);
    const int32_t window = *rc::gen::element(1, 2, 6, 7, 20);
    make(small_shape(page_tokens, window), *rc::gen::inRange(1, 40), *rc::gen::inRange(1, 40));
    Model model(*kv_);
    const int num_operations = *rc::gen::inRange(1, 60);
    for (int i = 0; i < num_operations; ++i) {
      random_operation(model, *kv_);
      model.check();
    }
    while (model.num_sequences() > 0) model.free(model.pick(0));
    RC_ASSERT(kv_->num_free_full_pages() == kv_->num_full_pages());
    RC_ASSERT(kv_->num_free_window_pages() == kv_->num_window_pages());
  };
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < 8; ++i) life_of_a_cache();  // 800 in all
  }));
}

TEST_F(KvTest, PlannedWindowPagesAreEnoughForOneSequenceAndNoneTooMany) {
  const bool held = rc::check([&] {
    const KvShape shape =
        small_shape(*rc::gen::element(1, 3, 4, 16), *rc::gen::element(1, 2, 6, 7, 20));
    const int32_t total = *rc::gen::inRange(1, 120), chunk = *rc::gen::inRange(1, 40);
    const auto pages = static_cast<int32_t>(shape.window_pages(total, chunk));
    make(shape, static_cast<int32_t>(shape.full_pages(total)), pages);
    const SeqId seq = kv_->add_sequence();
    for (int32_t done = 0; done < total;) {
      const int32_t count = std::min({*rc::gen::inRange(1, chunk + 1), total - done});
      RC_ASSERT(kv_->append(seq, count));
      done += count;
      kv_->release_window(seq);
      kv_->check_integrity();
    }
    RC_ASSERT(kv_->num_free_full_pages() == 0);
  });
  EXPECT_TRUE(held);

  // The bound is reached: a span that begins with the last token of a page.
  const KvShape shape = small_shape(4, 6);
  ASSERT_EQ(shape.window_pages(1000, 8), 4);  // 5 + 8 = 13 tokens from position 3 of a page
  make(shape, 250, 4);
  const SeqId seq = kv_->add_sequence();
  ASSERT_TRUE(kv_->append(seq, 8));  // the next token sees keys 3..8
  kv_->release_window(seq);
  EXPECT_EQ(kv_->num_free_window_pages(), 2);
  ASSERT_TRUE(kv_->append(seq, 8));
  EXPECT_EQ(kv_->num_free_window_pages(), 0);
}

TEST_F(KvTest, AppendTakesPagesFromBothPoolsOrFromNeither) {
  make(small_shape(), 8, 2);
  const SeqId seq = kv_->add_sequence();
  EXPECT_FALSE(kv_->append(seq, 9));  // three window pages
  EXPECT_EQ(kv_->num_free_full_pages(), 8);
  EXPECT_EQ(kv_->num_tokens(seq), 0);
  EXPECT_TRUE(kv_->append(seq, 8));
  EXPECT_FALSE(kv_->append(seq, 1));
  EXPECT_TRUE(kv_->append(seq, 0));
  kv_->check_integrity();
}

TEST_F(KvTest, ForkSharesPagesUntilOneSideWrites) {
  make(small_shape(), 8, 8);
  const SeqId first = kv_->add_sequence();
  ASSERT_TRUE(kv_->append(first, 6));
  const auto second = kv_->fork(first);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(kv_->num_free_full_pages(), 6);
  ASSERT_TRUE(kv_->append(*second, 1));  // copies the half-filled page
  EXPECT_EQ(kv_->num_free_full_pages(), 5);
  ASSERT_TRUE(kv_->append(first, 1));  // now its own: written in place
  EXPECT_EQ(kv_->num_free_full_pages(), 5);
  kv_->free_sequence(first);
  EXPECT_EQ(kv_->num_free_full_pages(), 6);
  kv_->check_integrity();
}

TEST_F(KvTest, TruncationThatNeedsFreedWindowKeysIsRefused) {
  make(small_shape(), 16, 16);
  const SeqId seq = kv_->add_sequence();
  ASSERT_TRUE(kv_->append(seq, 20));
  kv_->release_window(seq);  // the next token sees 15..20: pages of 0..11 go
  const auto refused = kv_->truncate(seq, 16);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("11"), std::string::npos);
  EXPECT_EQ(kv_->num_tokens(seq), 20);
  EXPECT_TRUE(kv_->truncate(seq, 17).has_value());  // needs 12..16
  EXPECT_TRUE(kv_->truncate(seq, 0).has_value());   // needs none
  EXPECT_EQ(kv_->num_free_window_pages(), 16);
  kv_->check_integrity();
}

TEST_F(KvTest, BytesAreThoseOfTheShape) {
  const KvShape shape = small_shape();
  // 2 layers x K and V x 2 heads x 4 tokens x 4 elements x 4 bytes
  EXPECT_EQ(shape.full_page_bytes(), 512u);
  make(shape, 3, 5);
  EXPECT_EQ(kv_->bytes(), 8u * 512u);
  const KvShape gpt_oss_20b{.num_full_layers = 12, .num_window_layers = 12, .num_kv_heads = 8};
  EXPECT_EQ(gpt_oss_20b.full_page_bytes(), 12u * 2 * 8 * 64 * 2 * 16);
  EXPECT_EQ(gpt_oss_20b.full_pages(131072), 8192);
  EXPECT_EQ(gpt_oss_20b.window_pages(131072, 1), 9);  // 128 keys, unaligned
}

TEST_F(KvTest, LayersDoNotOverlap) {
  make(small_shape(), 3, 5);
  std::vector<KvLayer> views;
  kv_->layer_views(nullptr, nullptr, 0, &views);
  ASSERT_EQ(views.size(), 4u);
  const int64_t half = views[0].page_stride_bytes / 2;
  std::vector<std::pair<std::byte*, std::byte*>> ranges;
  for (size_t layer = 0; layer < views.size(); ++layer) {
    const int32_t pages = kKinds[layer] == 1 ? 5 : 3;
    for (int32_t page = 0; page < pages; ++page) {
      for (std::byte* base : {views[layer].k, views[layer].v}) {
        std::byte* at = base + page * views[layer].page_stride_bytes;
        ranges.emplace_back(at, at + half);
      }
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) EXPECT_LE(ranges[i - 1].second, ranges[i].first);
}

TEST_F(KvTest, MisuseEndsTheProcess) {
  make(small_shape(), 3, 5);
  const SeqId seq = kv_->add_sequence();
  kv_->free_sequence(seq);
  EXPECT_DEATH(kv_->num_tokens(seq), "no sequence");
  EXPECT_DEATH(kv_->free_sequence(7), "no sequence");
}

}  // namespace
}  // namespace moxie
