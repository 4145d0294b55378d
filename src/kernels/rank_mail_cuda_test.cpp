// Exchanges between ranks on GPUs, in kernels (rank_mail.cuh): sums in the order of ranks, all
// logits, what is drawn, and a rank that does not come. Ranks may share a GPU.
#include <gtest/gtest.h>

#include <cmath>

#include "core/device.h"
#include "core/formats.h"
#include "core/rank_link.h"
#include "kernels/gather/gather.h"
#include "kernels/reduce/reduce.h"
#include "kernels/sample/advance.h"
#include "kernels/testing/packed.h"

namespace moxie {
namespace {

int gpu_of(int rank) { return rank % num_cuda_devices(); }

// Those for GPUs of one process.
template <typename P>
std::vector<const Row<P>*> cuda_rows() {
  std::vector<const Row<P>*> rows;
  for (const Row<P>& row : Op<P>::rows())
    if (std::string_view(row.name).ends_with("_peers_cuda")) rows.push_back(&row);
  return rows;
}
std::vector<const Row<ReduceParams>*> cuda_rows_of(ReduceForm form) {
  auto rows = cuda_rows<ReduceParams>();
  std::erase_if(rows, [&](const auto* row) { return !row->forms.reduce.has(form); });
  return rows;
}
// As a unit of a rounded row holds it.
float rounded(float value) { return bf16_to_f32(f32_to_bf16(value)); }

// How a row of reduce adds a value's parts.
struct RowSum {
  bool rounds_parts = false, rounds_sum = false;

  explicit RowSum(const Row<ReduceParams>& row)
      : rounds_parts(std::string_view(row.name).find("bf16") != std::string_view::npos),
        rounds_sum(std::string_view(row.name).find("two_shot") != std::string_view::npos) {}
  template <typename Part>
  float operator()(size_t num_ranks, Part&& part) const {
    const auto sent = [&](size_t rank) { return rounds_parts ? rounded(part(rank)) : part(rank); };
    float sum = sent(0);
    for (size_t rank = 1; rank < num_ranks; ++rank) sum += sent(rank);
    return rounds_sum ? rounded(sum) : sum;
  }
};
// Values in a form of x, and back.
std::vector<float> in_form(XForm form, std::vector<float> values) {
  if (form == XForm::kF32) return values;
  std::vector<float> pairs(2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) pairs[2 * i] = values[i];
  return pairs;
}
std::vector<float> from_form(XForm form, std::vector<float> found) {
  if (form == XForm::kF32) return found;
  std::vector<float> values(found.size() / 2);
  for (size_t i = 0; i < values.size(); ++i) values[i] = found[2 * i] + found[2 * i + 1];
  return values;
}
const char* text_of(XForm form) {
  return form == XForm::kF32 ? "one float a value" : "two floats a value";
}

// Ranks with a device and a stream each, whose launches all come from this thread.
class Ranks {
 public:
  explicit Ranks(int32_t size, std::chrono::milliseconds patience = std::chrono::seconds(10)) {
    std::vector<Device*> of_ranks;
    for (int32_t rank = 0; rank < size; ++rank) {
      devices_.push_back(make_cuda_device(gpu_of(rank)).value());
      streams_.push_back(devices_.back()->make_stream().value());
      of_ranks.push_back(devices_.back().get());
    }
    auto links = make_peer_links(of_ranks, patience);
    CHECK(links.has_value(), links ? "" : links.error().message());
    links_ = std::move(*links);
  }
  /// The first of `size` without the others.
  static Ranks mirrored(int32_t size) {
    Ranks ranks(1);
    auto link = make_mirrored_link(*ranks.devices_[0], size);
    CHECK(link.has_value(), link ? "" : link.error().message());
    ranks.links_[0] = std::move(*link);
    return ranks;
  }
  size_t size() const { return links_.size(); }
  void synchronize() {
    for (const auto& stream : streams_) {
      const auto done = stream->synchronize();
      CHECK(done.has_value(), done ? "" : done.error().message());
    }
  }
  RankLink& link(size_t rank) { return *links_[rank]; }
  Launch launch(size_t rank) {
    return {.device = DeviceKind::kCuda, .stream = streams_[rank].get()};
  }
  template <typename Value>
  Buffer upload_any(size_t rank, const std::vector<Value>& values) {
    const size_t bytes = sizeof(Value) * values.size();
    auto buffer = devices_[rank]->allocate(bytes).value();
    const auto copied =
        devices_[rank]->copy_from_host(buffer.data(), values.data(), bytes, *streams_[rank]);
    CHECK(copied.has_value() && streams_[rank]->synchronize().has_value());
    return buffer;
  }
  Buffer upload(size_t rank, const std::vector<float>& values) { return upload_any(rank, values); }
  std::vector<float> read(size_t rank, const Buffer& buffer) {
    return read_any<float>(rank, buffer);
  }
  template <typename Value>
  std::vector<Value> read_any(size_t rank, const Buffer& buffer) {
    std::vector<Value> values(buffer.bytes() / sizeof(Value));
    const auto copied =
        devices_[rank]->copy_to_host(values.data(), buffer.data(), buffer.bytes(), *streams_[rank]);
    CHECK(copied.has_value());
    const auto done = streams_[rank]->synchronize();
    CHECK(done.has_value(), done ? "" : done.error().message());
    return values;
  }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::vector<std::unique_ptr<RankLink>> links_;
};

class RankMailCudaTest : public ::testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RankMailCudaTest, ::testing::Values(2, 3, 4, 8));

// Exchanges of many sizes one after another, some of several chunks, with no wait of the host in
// between: every rank gets the sums by the order of ranks, to the bit.
TEST_P(RankMailCudaTest, EveryRankAddsAllPartsInTheOrderOfRanks) {
  Ranks ranks(GetParam());
  testing::Random random(7);
  constexpr int32_t kHidden = 2880;
  struct OfRank {
    std::vector<float> part;
    Buffer x, parts[2];
  };
  ASSERT_EQ(cuda_rows<ReduceParams>().size(), 4u);
  for (int number = 0; number < 8; ++number) {
    const XForm form = number % 2 == 0 ? XForm::kF32 : XForm::kF32Pair;
    const Row<ReduceParams>& row = *cuda_rows<ReduceParams>()[static_cast<size_t>(number) / 2];
    for (const int32_t tokens : {1, 7, 300, 2, 64, 1, 2000, 33}) {
      SCOPED_TRACE(std::string(row.name) + ", " + std::to_string(tokens) + " tokens, " +
                   text_of(form));
      const int64_t count = int64_t{tokens} * kHidden;
      const std::vector<float> x = random.uniforms(count, 30.0f);
      std::vector<OfRank> all(ranks.size());
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        all[rank].part = random.uniforms(count, 2.0f);
        all[rank].x = ranks.upload(rank, in_form(form, x));
        all[rank].parts[0] = ranks.upload(rank, in_form(form, all[rank].part));
        all[rank].parts[1] = ranks.upload(rank, in_form(form, random.uniforms(count)));
      }
      // The second adds nothing: the first has cleared what it reads.
      for (const size_t from : {0, 1}) {
        for (size_t rank = 0; rank < ranks.size(); ++rank)
          row.run({.launch = ranks.launch(rank),
                   .num_tokens = tokens,
                   .hidden = kHidden,
                   .kind = LinkKind::kPeers,
                   .link = &ranks.link(rank),
                   .part = all[rank].parts[from].as<float>(),
                   .next_part = all[rank].parts[1 - from].as<float>(),
                   .x = all[rank].x.as<float>(),
                   .forms = {.x = form}});
      }
      const std::vector<float> first = ranks.read(0, all[0].x);
      const std::vector<float> found = from_form(form, first);
      const RowSum sum_of(row);
      int64_t num_wrong = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const float expected =
            x[i] + sum_of(all.size(), [&](size_t rank) { return all[rank].part[i]; });
        num_wrong +=
            form == XForm::kF32 ? found[i] != expected : std::abs(found[i] - expected) > 1e-6;
      }
      EXPECT_EQ(num_wrong, 0) << "of " << count;
      for (size_t rank = 1; rank < all.size(); ++rank)
        EXPECT_EQ(ranks.read(rank, all[rank].x), first) << "rank " << rank;
      for (size_t rank = 0; rank < all.size(); ++rank)
        for (const Buffer& part : all[rank].parts)
          EXPECT_EQ(ranks.read(rank, part), std::vector<float>(part.bytes() / 4, 0.0f));
    }
  }
}

// The parts of all ranks are then the first's.
TEST_P(RankMailCudaTest, AMirroredRankReceivesWhatItSends) {
  constexpr int32_t kHidden = 2880;
  Ranks ranks = Ranks::mirrored(GetParam());
  EXPECT_EQ(ranks.link(0).size(), GetParam());
  testing::Random random(9);
  for (const auto* row : cuda_rows<ReduceParams>()) {
    // A slice that another rank would add is not among what this one sends.
    if (std::string_view(row->name).find("two_shot") != std::string_view::npos) continue;
    for (const int32_t tokens : {1, 7, 300, 1, 2000, 33}) {
      SCOPED_TRACE(std::string(row->name) + ", " + std::to_string(tokens) + " tokens");
      const int64_t count = int64_t{tokens} * kHidden;
      const std::vector<float> part = random.uniforms(count, 2.0f);
      std::vector<float> expected = random.uniforms(count, 30.0f);
      Buffer x = ranks.upload(0, expected), own = ranks.upload(0, part);
      Buffer next = ranks.upload(0, part);
      row->run({.launch = ranks.launch(0),
                .num_tokens = tokens,
                .hidden = kHidden,
                .kind = LinkKind::kPeers,
                .link = &ranks.link(0),
                .part = own.as<float>(),
                .next_part = next.as<float>(),
                .x = x.as<float>(),
                .forms = {.x = XForm::kF32}});
      const RowSum sum_of(*row);
      for (size_t i = 0; i < expected.size(); ++i)
        expected[i] += sum_of(static_cast<size_t>(GetParam()), [&](size_t) { return part[i]; });
      EXPECT_EQ(ranks.read(0, x), expected);
    }
  }
}

// Rows share places and numbers: each follows each, with other sizes, and parts of its own. At last
// launches of many rounds, with all blocks where ranks have a GPU each.
TEST_P(RankMailCudaTest, WhateverRowComesBehindWhichAllRanksGetTheSameSums) {
  constexpr int32_t kHidden = 2880;
  constexpr std::string_view kRowOf = "00102031121322330";  // every two, one behind the other
  constexpr int32_t kTokensOf[] = {33, 700, 1, 150, 5};
  Ranks ranks(GetParam());
  const bool share_gpus = num_cuda_devices() < GetParam();
  const int32_t most_tokens = share_gpus ? 2000 : 9000;
  const auto rows = cuda_rows<ReduceParams>();
  ASSERT_EQ(rows.size(), 4u);
  struct Exchange {
    size_t row;
    int32_t tokens;
    size_t skipped;  // values before those that are a launch's parts
  };
  std::vector<Exchange> exchanges;
  const auto add = [&](size_t row, int32_t tokens) {
    exchanges.push_back({row, tokens, 4 * exchanges.size()});
  };
  for (size_t i = 0; i < 3 * kRowOf.size(); ++i)
    add(static_cast<size_t>(kRowOf[i % kRowOf.size()] - '0'), kTokensOf[i % 5]);
  for (const size_t row : {2, 3, 3, 2}) add(row, most_tokens);
  testing::Random random(9);
  const auto periodic = [&](size_t count, float scale) {
    constexpr size_t kPeriod = 100003;
    std::vector<float> values = random.uniforms(kPeriod, scale);
    for (size_t i = kPeriod; i < count; ++i) values.push_back(values[i - kPeriod]);
    return values;
  };
  for (const XForm form : {XForm::kF32, XForm::kF32Pair}) {
    SCOPED_TRACE(text_of(form));
    const size_t width = form == XForm::kF32 ? 1 : 2;
    std::vector<float> x = periodic(static_cast<size_t>(most_tokens) * kHidden, 30.0f);
    std::vector<std::vector<float>> parts(ranks.size());
    std::vector<Buffer> xs, of_parts, next;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      parts[rank] = periodic(x.size() + 4 * exchanges.size(), 2.0f);
      xs.push_back(ranks.upload(rank, in_form(form, x)));
      of_parts.push_back(ranks.upload(rank, in_form(form, parts[rank])));
      next.push_back(ranks.upload(rank, std::vector<float>(width * x.size(), 1.0f)));
    }
    for (size_t i = 0; i < exchanges.size(); ++i) {
      const Exchange& e = exchanges[i];
      for (size_t rank = 0; rank < ranks.size(); ++rank)
        rows[e.row]->run({.launch = ranks.launch(rank),
                          .num_tokens = e.tokens,
                          .hidden = kHidden,
                          .kind = LinkKind::kPeers,
                          .num_ranks = GetParam(),
                          .link = &ranks.link(rank),
                          .part = of_parts[rank].as<float>() + width * e.skipped,
                          .next_part = i % 3 == 1 ? nullptr : next[rank].as<float>(),
                          .x = xs[rank].as<float>(),
                          .forms = {.x = form}});
      // On a shared GPU a kernel that starts early may keep out one that another awaits.
      if (share_gpus && i % 2 == 1) ranks.synchronize();
    }
    for (const Exchange& e : exchanges) {
      const RowSum sum_of(*rows[e.row]);
      for (size_t i = 0; i < static_cast<size_t>(e.tokens) * kHidden; ++i)
        x[i] += sum_of(ranks.size(), [&](size_t rank) { return parts[rank][i + e.skipped]; });
    }
    const std::vector<float> first = ranks.read(0, xs[0]), found = from_form(form, first);
    int64_t num_wrong = 0;
    for (size_t i = 0; i < x.size(); ++i)
      num_wrong += form == XForm::kF32 ? found[i] != x[i] : std::abs(found[i] - x[i]) > 1e-4;
    EXPECT_EQ(num_wrong, 0) << "of " << x.size();
    const std::vector<float> zeros(first.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      EXPECT_TRUE(ranks.read(rank, xs[rank]) == first) << "rank " << rank;
      EXPECT_TRUE(ranks.read(rank, next[rank]) == zeros) << "rank " << rank;
    }
  }
}

// Parts in BF16, and the outputs of pairs, give the sums that the same parts in floats give, to the
// bit.
TEST_P(RankMailCudaTest, RoundedPartsGiveTheSameSums) {
  constexpr int32_t kHidden = 2880, kTopK = 5;
  Ranks ranks(GetParam());
  testing::Random random(11);
  const auto rows = cuda_rows_of(ReduceForm::kRounded);
  EXPECT_EQ(rows.size(), 2u);
  for (const Row<ReduceParams>* row : rows) {
    for (const int32_t tokens : {1, 37, 900}) {
      for (const bool is_of_pairs : {false, true}) {
        SCOPED_TRACE(::testing::Message()
                     << row->name << ", " << tokens << " tokens, of pairs " << is_of_pairs);
        const int64_t count = int64_t{tokens} * kHidden;
        const int32_t num_slots = tokens * kTopK + 8;
        const std::vector<float> x = random.uniforms(count, 30.0f);
        std::vector<Buffer> floats, codes, slots, weights, x_of_floats, x_found;
        for (size_t rank = 0; rank < ranks.size(); ++rank) {
          std::vector<float> part(static_cast<size_t>(count)), weight;
          const std::vector<float> outputs =
              random.uniforms(is_of_pairs ? int64_t{num_slots} * kHidden : count, 2.0f);
          std::vector<uint16_t> code(outputs.size());
          for (size_t i = 0; i < code.size(); ++i) code[i] = f32_to_bf16(outputs[i]);
          std::vector<int32_t> slot_of_pair(static_cast<size_t>(tokens) * kTopK);
          weight = random.uniforms(static_cast<int64_t>(slot_of_pair.size()));
          for (size_t pair = 0; pair < slot_of_pair.size(); ++pair) {
            const bool is_held = (pair + rank) % 7 != 0;
            slot_of_pair[pair] = is_held ? num_slots - 1 - static_cast<int32_t>(pair) : -1;
          }
          for (size_t i = 0; i < part.size(); ++i) {
            if (!is_of_pairs) {
              part[i] = bf16_to_f32(code[i]);
              continue;
            }
            const size_t token = i / kHidden, column = i % kHidden;
            for (size_t pair = token * kTopK; pair < (token + 1) * kTopK; ++pair) {
              if (slot_of_pair[pair] < 0) continue;
              const size_t at = static_cast<size_t>(slot_of_pair[pair]) * kHidden + column;
              part[i] = std::fma(weight[pair], bf16_to_f32(code[at]), part[i]);
            }
          }
          floats.push_back(ranks.upload(rank, part));
          codes.push_back(ranks.upload_any(rank, code));
          slots.push_back(ranks.upload_any(rank, slot_of_pair));
          weights.push_back(ranks.upload(rank, weight));
          x_of_floats.push_back(ranks.upload(rank, x));
          x_found.push_back(ranks.upload(rank, x));
        }
        for (const bool is_rounded : {false, true}) {
          for (size_t rank = 0; rank < ranks.size(); ++rank) {
            ReduceParams params{.launch = ranks.launch(rank),
                                .num_tokens = tokens,
                                .hidden = kHidden,
                                .kind = LinkKind::kPeers,
                                .num_ranks = GetParam(),
                                .link = &ranks.link(rank),
                                .part = floats[rank].as<float>(),
                                .x = (is_rounded ? x_found : x_of_floats)[rank].as<float>()};
            if (is_rounded) {
              params.part = nullptr;
              params.forms.reduce = ReduceForm::kRounded;
              if (!is_of_pairs) params.rounded = codes[rank].as<uint16_t>();
              params.pairs = {slots[rank].as<int32_t>(), codes[rank].as<uint16_t>()};
              params.pair_weights = weights[rank].as<float>();
              params.top_k = kTopK;
            }
            ASSERT_EQ(why_not(*row, params), nullptr);
            row->run(params);
          }
          ranks.synchronize();
        }
        for (size_t rank = 0; rank < ranks.size(); ++rank)
          EXPECT_TRUE(ranks.read(rank, x_found[rank]) == ranks.read(0, x_of_floats[0]))
              << "rank " << rank;
        EXPECT_FALSE(ranks.read(0, x_found[0]) == x);
      }
    }
  }
}

// Between two ranks reduce finds the other's part in its own memory; rows with other exchanges come
// before and behind.
TEST(RankMailCuda, PartsThatWereSentGiveTheSameSums) {
  constexpr int32_t kHidden = 2880;
  Ranks ranks(2);
  testing::Random random(17);
  const auto rows = cuda_rows_of(ReduceForm::kSent);
  EXPECT_EQ(rows.size(), 2u);
  for (const Row<ReduceParams>* row : rows) {
    for (const XForm form : {XForm::kF32, XForm::kF32Pair}) {
      for (const int32_t tokens : {1, 33, 256, 2100}) {
        SCOPED_TRACE(::testing::Message()
                     << row->name << ", " << tokens << " tokens, " << text_of(form));
        const int64_t count = int64_t{tokens} * kHidden;
        std::vector<float> x = random.uniforms(count, 30.0f), parts[2], cleared(x.size(), 1.0f);
        std::vector<Buffer> xs, floats, next, codes[2];
        for (size_t rank = 0; rank < 2; ++rank) {
          parts[rank] = random.uniforms(count, 2.0f);
          for (float& value : parts[rank]) value = rounded(value);
        }
        for (size_t rank = 0; rank < 2; ++rank) {
          xs.push_back(ranks.upload(rank, in_form(form, x)));
          floats.push_back(ranks.upload(rank, in_form(form, parts[rank])));
          next.push_back(ranks.upload(rank, in_form(form, cleared)));
          for (const size_t of : {rank, 1 - rank}) {
            std::vector<uint16_t> code(x.size());
            for (size_t i = 0; i < code.size(); ++i) code[i] = f32_to_bf16(parts[of][i]);
            codes[rank].push_back(ranks.upload_any(rank, code));
          }
        }
        for (const bool is_sent : {false, true, true, false}) {
          for (size_t rank = 0; rank < 2; ++rank) {
            ReduceParams params{.launch = ranks.launch(rank),
                                .num_tokens = tokens,
                                .hidden = kHidden,
                                .kind = LinkKind::kPeers,
                                .num_ranks = 2,
                                .link = &ranks.link(rank),
                                .part = floats[rank].as<float>(),
                                .x = xs[rank].as<float>(),
                                .forms = {.x = form, .reduce = ReduceForm::kSent}};
            if (is_sent) {
              params.part = nullptr;
              params.rounded = codes[rank][0].as<uint16_t>();
              params.received = codes[rank][1].as<uint16_t>();
              params.next_part = next[rank].as<float>();
            }
            ASSERT_EQ(why_not(*row, params), nullptr);
            row->run(params);
          }
        }
        for (int i = 0; i < 4; ++i)
          for (size_t at = 0; at < x.size(); ++at) x[at] += parts[0][at] + parts[1][at];
        for (size_t rank = 0; rank < 2; ++rank) {
          const std::vector<float> found = from_form(form, ranks.read(rank, xs[rank]));
          int64_t num_wrong = 0;
          for (size_t at = 0; at < x.size(); ++at)
            num_wrong +=
                form == XForm::kF32 ? found[at] != x[at] : std::abs(found[at] - x[at]) > 1e-5;
          EXPECT_EQ(num_wrong, 0) << "of " << x.size() << ", rank " << rank;
          EXPECT_TRUE(ranks.read(rank, next[rank]) ==
                      std::vector<float>(next[rank].bytes() / sizeof(float)));
        }
      }
    }
  }
}

// Draws by ranks that have a part of the logits each are those of one that has all of them, and
// move the streams of a decode loop on alike: here by two launches, which are fed their tokens or
// not.
TEST_P(RankMailCudaTest, RanksDrawFromTheirOwnLogitsWhatOneDrawsFromAll) {
  Ranks ranks(GetParam());
  testing::Random random(13);
  constexpr int32_t kVocab = 20107;
  const auto row_of = [](std::string_view name) {
    for (const Row<SampleParams>& row : Op<SampleParams>::rows())
      if (name == row.name) return &row;
    CHECK(false, std::string(name));
    return static_cast<const Row<SampleParams>*>(nullptr);
  };
  // Blocks of all ranks that share a GPU wait for each other: so many must run at the same time.
  for (const int32_t rows : {1, 3, GetParam() == 8 ? 16 : 40}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows");
    std::vector<float> logits = random.uniforms(int64_t{rows} * kVocab, 5.0f);
    std::vector<SampleRequest> requests(static_cast<size_t>(rows));
    for (size_t r = 0; r < requests.size(); ++r) {
      requests[r] = {.temperature = r % 3 == 0 ? 0.0f : 0.5f * static_cast<float>(r % 3),
                     .seed = 100 + r,
                     .step = r};
    }
    if (rows > 1) {  // none is left of any rank; the first rank has none
      std::fill_n(logits.begin() + kVocab, kVocab, -INFINITY);
      std::fill_n(logits.begin() + 2 * kVocab, kVocab / GetParam(), -INFINITY);
    }
    constexpr int32_t kSlots = 8;
    constexpr uint32_t kFirst = 7;  // number of the first launch
    const auto num_rows = static_cast<size_t>(rows);
    const int32_t num_fed = rows == 1 ? 0 : 2, last_fed = 4321;
    const std::vector<int32_t> fed(2 * num_rows, last_fed), at(num_rows, 100);
    const std::vector<AdvanceCounters> counters = {{.number = kFirst, .num_fed = num_fed}};
    std::vector<std::vector<SampleAnswer>> found;
    std::vector<std::vector<uint64_t>> found_words;
    for (const bool is_part : {false, true}) {
      std::vector<Buffer> of_logits, of_requests, answers, workspaces, of_fed, token_ids, positions,
          of_counters, words;
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const RankShare share =
            share_of_rank(kVocab, kLogitUnit, static_cast<int32_t>(rank), GetParam());
        SampleParams params{
            .launch = ranks.launch(rank), .num_rows = rows, .vocab = kVocab, .all_plain = true};
        std::vector<float> held = logits;
        if (is_part) {
          params.kind = LinkKind::kPeers, params.link = &ranks.link(rank);
          params.first_id = share.first, params.part_width = share.count;
          held.clear();
          for (int32_t r = 0; r < rows; ++r) {
            const auto begin = logits.begin() + int64_t{r} * kVocab + share.first;
            held.insert(held.end(), begin, begin + share.count);
          }
        }
        of_logits.push_back(ranks.upload(rank, held));
        of_requests.push_back(ranks.upload_any(rank, requests));
        answers.push_back(
            ranks.upload_any(rank, std::vector<SampleAnswer>(static_cast<size_t>(rows))));
        const auto& row =
            *row_of(is_part ? "sample_f32_gumbel_peers_cuda" : "sample_f32_gumbel_cuda");
        ASSERT_EQ(row.refuses(params), nullptr);
        workspaces.push_back(ranks.upload(rank, std::vector<float>(row.workspace(params) / 4 + 4)));
        params.launch.workspace = workspaces.back().as<std::byte>();
        params.logits = of_logits.back().as<float>();
        params.requests = of_requests.back().as<SampleRequest>();
        params.answers = answers.back().as<SampleAnswer>();
        of_fed.push_back(ranks.upload_any(rank, fed));
        token_ids.push_back(ranks.upload_any(rank, at));
        positions.push_back(ranks.upload_any(rank, at));
        of_counters.push_back(ranks.upload_any(rank, counters));
        words.push_back(ranks.upload_any(rank, std::vector<uint64_t>(kSlots * num_rows)));
        const AdvanceParams advance{.requests = of_requests.back().as<SampleRequest>(),
                                    .token_ids = token_ids.back().as<int32_t>(),
                                    .positions = positions.back().as<int32_t>(),
                                    .fed = of_fed.back().as<int32_t>(),
                                    .fed_stride = 2,
                                    .counters = of_counters.back().as<AdvanceCounters>(),
                                    .words = words.back().as<uint64_t>(),
                                    .num_slots = kSlots,
                                    .row_stride = rows};
        params.advance = &advance;
        for (int launch = 0; launch < 2; ++launch) row.run(params);
      }
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        SCOPED_TRACE(::testing::Message() << "rank " << rank << (is_part ? ", a part" : ""));
        found.push_back(ranks.read_any<SampleAnswer>(rank, answers[rank]));
        found_words.push_back(ranks.read_any<uint64_t>(rank, words[rank]));
        const auto next = ranks.read_any<int32_t>(rank, token_ids[rank]);
        const auto moved = ranks.read_any<int32_t>(rank, positions[rank]);
        const auto after = ranks.read_any<SampleRequest>(rank, of_requests[rank]);
        const auto count = ranks.read_any<AdvanceCounters>(rank, of_counters[rank])[0];
        EXPECT_EQ(count.number, kFirst + 2);
        EXPECT_EQ(count.round, 2);
        EXPECT_EQ(count.num_fed, num_fed);
        for (size_t r = 0; r < num_rows; ++r) {
          const int32_t token = found.back()[r].token;
          EXPECT_EQ(next[r], num_fed > 0 ? last_fed : token);
          EXPECT_EQ(moved[r], at[r] + 2);
          EXPECT_EQ(after[r].step, requests[r].step + 2);
          EXPECT_EQ(found_words.back()[(kFirst + 1) % kSlots * num_rows + r],
                    uint64_t{kFirst + 1} << 32 | static_cast<uint32_t>(token));
          EXPECT_EQ(found_words.back()[kFirst % kSlots * num_rows + r] >> 32, kFirst);
        }
      }
    }
    for (const auto& of_rank : found_words) EXPECT_EQ(of_rank, found_words[0]);
    for (const auto& answers : found)
      for (size_t r = 0; r < answers.size(); ++r)
        EXPECT_EQ(answers[r].token, found[0][r].token) << "row " << r;
  }
}

TEST_P(RankMailCudaTest, EveryRankGetsAllLogits) {
  Ranks ranks(GetParam());
  testing::Random random(8);
  ASSERT_EQ(cuda_rows<GatherParams>().size(), 2u);
  for (const auto& [number, rows, vocab] : {std::tuple{0, 1, 201088},
                                            {0, 5, 1000},
                                            {1, 1, 201088},
                                            {0, 16, 201088},
                                            {0, 3, 777},
                                            {1, 16, 201088},
                                            {1, 5, 1040},
                                            {1, 48, 201088}}) {
    const Row<GatherParams>& row = *cuda_rows<GatherParams>()[static_cast<size_t>(number)];
    SCOPED_TRACE(std::string(row.name) + ", " + std::to_string(rows) + " rows of " +
                 std::to_string(vocab));
    const std::vector<float> logits = random.uniforms(int64_t{rows} * vocab, 9.0f);
    std::vector<Buffer> parts, found;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const RankShare share = share_of_rank(vocab, kLogitUnit, static_cast<int32_t>(rank),
                                            static_cast<int32_t>(ranks.size()));
      std::vector<float> part;
      for (int32_t r = 0; r < rows; ++r) {
        const auto begin = logits.begin() + int64_t{r} * vocab + share.first;
        part.insert(part.end(), begin, begin + share.count);
      }
      parts.push_back(ranks.upload(rank, part));
      found.push_back(ranks.upload(rank, std::vector<float>(logits.size(), NAN)));
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto width = static_cast<int32_t>(parts[rank].bytes() / 4 / static_cast<size_t>(rows));
      row.run({.launch = ranks.launch(rank),
               .num_rows = rows,
               .part_width = width,
               .vocab = vocab,
               .kind = LinkKind::kPeers,
               .link = &ranks.link(rank),
               .part = parts[rank].as<float>(),
               .logits = found[rank].as<float>()});
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      EXPECT_EQ(ranks.read(rank, found[rank]), logits) << "rank " << rank;
  }
}

// A kernel ends, and so does every other's, with a fault that names the rank.
TEST(RankMailCuda, ARankThatDoesNotComeIsNamed) {
  for (const Row<ReduceParams>* row : cuda_rows<ReduceParams>()) {
    Ranks ranks(3, std::chrono::milliseconds(200));
    const auto part = ranks.upload(0, std::vector<float>(64));
    const std::vector<float> before = {1, 2, 3, 4, 5, 6, 7, 8};
    const auto next = ranks.upload(0, std::vector<float>(64)), x = ranks.upload(0, before);
    EXPECT_TRUE(ranks.link(0).status().has_value());
    for (const size_t rank : {0, 2}) {
      row->run({.launch = ranks.launch(rank),
                .num_tokens = 1,
                .hidden = 8,
                .kind = LinkKind::kPeers,
                .link = &ranks.link(rank),
                .part = part.as<float>(),
                .next_part = next.as<float>(),
                .x = x.as<float>(),
                .forms = {.x = XForm::kF32}});
    }
    EXPECT_EQ(ranks.read(0, x), before);
    for (const size_t rank : {0, 1, 2}) {
      const auto status = ranks.link(rank).status();
      ASSERT_FALSE(status.has_value());
      EXPECT_NE(status.error().message().find("rank 1 has not answered"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace moxie
