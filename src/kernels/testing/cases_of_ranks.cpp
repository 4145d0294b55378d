// Builds the cases of the operations between ranks.
#include <algorithm>

#include "kernels/testing/case_parts.h"

namespace moxie::testing {
namespace {

// All ranks but one stand still.
class StillLink final : public RankLink {
 public:
  StillLink(int32_t rank, std::vector<RankArray> arrays)
      : rank_(rank), arrays_(std::move(arrays)) {}
  LinkKind kind() const override { return LinkKind::kThreads; }
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return static_cast<int32_t>(arrays_.size()); }
  std::span<const RankArray> meet(RankArray mine) override {
    arrays_[static_cast<size_t>(rank_)] = mine;
    return arrays_;
  }
  void set_fault(const std::string&) override {}
  Status status() const override { return {}; }

 private:
  const int32_t rank_;
  std::vector<RankArray> arrays_;
};

}  // namespace

// ---- reduce -------------------------------------------------------------------------------------

std::string ReduceCase::name() const {
  return text("reduce", DType::kF32, {tokens, hidden, ranks, rank});
}

ReduceParams ReduceCase::sizes() const {
  return {.num_tokens = tokens, .hidden = hidden, .kind = LinkKind::kThreads, .num_ranks = ranks};
}

Built<ReduceParams> build(const ReduceCase& c) {
  Random random(1);
  Built<ReduceParams> built{.params = c.sizes()};
  const int64_t count = int64_t{c.tokens} * c.hidden;
  std::vector<RankArray> parts;
  for (int32_t rank = 0; rank < c.ranks; ++rank)
    parts.push_back({keep(built, random.uniforms(count, 2.0f)), count});
  built.params.part = parts[static_cast<size_t>(c.rank)].data;
  built.params.next_part = keep(built, random.uniforms(count));
  built.initial_x = random.uniforms(count, 30.0f);
  built.params.x = keep(built, built.initial_x);
  built.link = std::make_shared<StillLink>(c.rank, std::move(parts));
  built.params.link = built.link.get();
  return built;
}

template <>
void Built<ReduceParams>::reset() {
  std::copy(initial_x.begin(), initial_x.end(), params.x);
  std::fill_n(params.next_part, int64_t{params.num_tokens} * params.hidden, kNan);
}

template <>
std::vector<Output> Built<ReduceParams>::outputs() const {
  const int64_t count = int64_t{params.num_tokens} * params.hidden;
  return {
      {.name = "x",
       .width = params.hidden,
       .values = doubles(params.x, count),
       .rounding = f32_sum_error(params.link->size())},
      {.name = "next_part", .width = params.hidden, .values = doubles(params.next_part, count)}};
}

// ---- gather -------------------------------------------------------------------------------------

std::string GatherCase::name() const {
  return text("gather", DType::kF32, {rows, width, ranks, missing});
}

GatherParams GatherCase::sizes() const {
  return {.num_rows = rows,
          .part_width = width,
          .vocab = ranks * width - missing,
          .kind = LinkKind::kThreads};
}

Built<GatherParams> build(const GatherCase& c) {
  Random random(1);
  Built<GatherParams> built{.params = c.sizes()};
  std::vector<RankArray> parts;
  for (int32_t rank = 0; rank < c.ranks; ++rank) {
    const int64_t width = c.width - (rank + 1 == c.ranks ? c.missing : 0);
    parts.push_back({keep(built, random.uniforms(c.rows * width, 9.0f)), c.rows * width});
  }
  built.params.part = parts[0].data;
  built.params.logits =
      keep(built, std::vector<float>(static_cast<size_t>(c.rows) * built.params.vocab));
  built.link = std::make_shared<StillLink>(0, std::move(parts));
  built.params.link = built.link.get();
  return built;
}

template <>
void Built<GatherParams>::reset() {
  std::fill_n(params.logits, int64_t{params.num_rows} * params.vocab, kNan);
}

template <>
std::vector<Output> Built<GatherParams>::outputs() const {
  return {{.name = "logits",
           .width = params.vocab,
           .values = doubles(params.logits, int64_t{params.num_rows} * params.vocab)}};
}

}  // namespace moxie::testing
