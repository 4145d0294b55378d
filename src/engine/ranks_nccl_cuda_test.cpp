// Exchanges through NCCL, between two GPUs whose ranks are threads here: the same sums and logits
// on both, to the bit, one by one and as a graph. Processes and lost ranks:
// tests/gpu/ranks_nccl.sh.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "core/formats.h"
#include "core/rank_gather.h"
#include "kernels/gather/gather.h"
#include "kernels/reduce/reduce.h"
#include "kernels/testing/packed.h"

namespace moxie {
namespace {

constexpr int32_t kRanks = 2;

template <typename P>
const Row<P>& row_named(std::string_view name) {
  for (const Row<P>& row : Op<P>::rows())
    if (row.name == name) return row;
  CHECK(false, std::string(name));
  std::abort();
}

// A rank's device, stream and link.
struct OfRank {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<RankLink> link;

  Launch launch() const { return {.device = DeviceKind::kCuda, .stream = stream.get()}; }
  Buffer upload(const std::vector<float>& values) const {
    auto buffer = device->allocate(4 * values.size()).value();
    const auto copied =
        device->copy_from_host(buffer.data(), values.data(), 4 * values.size(), *stream);
    CHECK(copied.has_value() && stream->synchronize().has_value());
    return buffer;
  }
  std::vector<float> read(const Buffer& buffer) const {
    std::vector<float> values(buffer.bytes() / 4);
    auto status = device->copy_to_host(values.data(), buffer.data(), buffer.bytes(), *stream);
    if (status) status = stream->synchronize();
    CHECK(status.has_value(), status ? "" : status.error().message());
    return values;
  }
};

// Calls body(rank) on a thread of each rank.
template <typename Body>
void on_ranks(Body&& body) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < kRanks; ++rank) threads.emplace_back([&, rank] { body(rank); });
  for (std::thread& thread : threads) thread.join();
}

class RanksNcclCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto nccl = load_nccl();
    if (num_cuda_devices() < kRanks || !nccl)
      GTEST_SKIP() << (nccl ? "one GPU" : nccl.error().message());
    NcclId id{};
    ASSERT_EQ(nccl->get_unique_id(&id), NcclLibrary::kSuccess);
    base_ = make_thread_links(kRanks);
    on_ranks([&](size_t rank) {
      OfRank& r = ranks_[rank];
      r.device = make_cuda_device(static_cast<int>(rank)).value();
      r.stream = r.device->make_stream().value();
      auto link = make_nccl_link(*base_[rank], *nccl, id, *r.device, *r.stream);
      CHECK(link.has_value(), link ? "" : link.error().message());
      r.link = std::move(*link);
    });
  }
  void TearDown() override {
    on_ranks([&](size_t rank) { ranks_[rank].link.reset(); });
  }

  std::vector<std::unique_ptr<RankLink>> base_;
  OfRank ranks_[kRanks];
};

std::vector<float> in_form(const std::vector<float>& values, XForm form) {
  if (form == XForm::kF32) return values;
  std::vector<float> pairs;
  for (const float value : values) pairs.insert(pairs.end(), {value, 0.0f});
  return pairs;
}

TEST_F(RanksNcclCuda, EveryRankAddsAllPartsInTheOrderOfRanks) {
  constexpr int32_t kHidden = 2880;
  testing::Random random(7);
  for (const char* name : {"reduce_any_nccl_cuda", "reduce_any_bf16_nccl_cuda"}) {
    const Row<ReduceParams>& row = row_named<ReduceParams>(name);
    const bool rounds = std::string_view(name).find("bf16") != std::string_view::npos;
    for (const XForm form : {XForm::kF32, XForm::kF32Pair})
      for (const int32_t tokens : {1, 7, 300, 4000}) {
        SCOPED_TRACE(std::string(name) + ", " + std::to_string(tokens) + " tokens" +
                     (form == XForm::kF32 ? "" : ", two floats a value"));
        const int64_t count = int64_t{tokens} * kHidden;
        const std::vector<float> x = random.uniforms(count, 30.0f);
        std::vector<float> parts[kRanks], found[kRanks], left[kRanks];
        for (auto& part : parts) part = random.uniforms(count, 2.0f);
        // The second adds nothing: the first has cleared what it reads.
        on_ranks([&](size_t rank) {
          const OfRank& r = ranks_[rank];
          const Buffer of_x = r.upload(in_form(x, form));
          const Buffer mine[2] = {r.upload(in_form(parts[rank], form)),
                                  r.upload(in_form(parts[1 - rank], form))};
          for (const size_t from : {0, 1})
            row.run({.launch = r.launch(),
                     .num_tokens = tokens,
                     .hidden = kHidden,
                     .kind = LinkKind::kNccl,
                     .link = r.link.get(),
                     .part = mine[from].as<float>(),
                     .next_part = mine[1 - from].as<float>(),
                     .x = of_x.as<float>(),
                     .forms = {.x = form}});
          found[rank] = r.read(of_x);
          left[rank] = r.read(mine[0]);
        });
        int64_t num_wrong = 0;
        for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
          const auto part = [&](size_t rank) {
            return rounds ? bf16_to_f32(f32_to_bf16(parts[rank][i])) : parts[rank][i];
          };
          const float expected = x[i] + (part(0) + part(1));
          const float sum =
              form == XForm::kF32 ? found[0][i] : found[0][2 * i] + found[0][2 * i + 1];
          num_wrong += form == XForm::kF32 ? sum != expected : std::abs(sum - expected) > 1e-6;
        }
        EXPECT_EQ(num_wrong, 0) << "of " << count;
        EXPECT_EQ(found[1], found[0]);
        for (const auto& values : left) EXPECT_EQ(values, std::vector<float>(values.size(), 0.0f));
      }
  }
  EXPECT_TRUE(base_[0]->status().has_value());
}

// As a graph, which is launched twice.
TEST_F(RanksNcclCuda, EveryRankGetsAllLogits) {
  testing::Random random(8);
  const Row<GatherParams>& row = row_named<GatherParams>("gather_f32_nccl_cuda");
  for (const auto& [rows, vocab] : {std::pair{1, 201088}, {5, 1000}, {3, 777}, {100, 201088}}) {
    SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(vocab));
    const std::vector<float> logits = random.uniforms(int64_t{rows} * vocab, 9.0f);
    std::vector<float> found[kRanks];
    on_ranks([&, rows = rows, vocab = vocab](size_t rank) {
      const OfRank& r = ranks_[rank];
      const RankShare share = share_of_rank(vocab, kLogitUnit, static_cast<int32_t>(rank), kRanks);
      std::vector<float> part;
      for (int32_t i = 0; i < rows; ++i) {
        const auto begin = logits.begin() + int64_t{i} * vocab + share.first;
        part.insert(part.end(), begin, begin + share.count);
      }
      const Buffer mine = r.upload(part);
      const Buffer all = r.upload(std::vector<float>(logits.size(), NAN));
      const auto graph = r.device->capture(*r.stream, [&] {
        row.run({.launch = r.launch(),
                 .num_rows = rows,
                 .part_width = share.count,
                 .vocab = vocab,
                 .kind = LinkKind::kNccl,
                 .link = r.link.get(),
                 .part = mine.as<float>(),
                 .logits = all.as<float>()});
      });
      CHECK(graph.has_value(), graph ? "" : graph.error().message());
      for (int i = 0; i < 2; ++i) CHECK((*graph)->launch(*r.stream).has_value());
      found[rank] = r.read(all);
    });
    for (const auto& values : found) EXPECT_EQ(values, logits);
  }
}

}  // namespace
}  // namespace moxie
