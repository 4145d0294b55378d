// A value of each kind is compared behind the row that hands it over; the reference goes on from
// what was found.
#include "model/self_test_comparison.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/add_once.h"
#include "core/formats.h"
#include "core/threads.h"
#include "kernels/row_rounding.h"

namespace moxie {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Worst {
  double share = 0;
  std::string what;
};

// Values that a thread looks at in one go.
constexpr int64_t kPiece = 1 << 14;

Worst worst_of(const ComparedValues& c, ThreadPool& pool) {
  struct Piece {
    double greatest = 0, greatest_residual = 0, share = 0;
    int64_t at = -1;  // of the share
  };
  std::vector<Piece> pieces(static_cast<size_t>(ceil_div<int64_t>(c.count, kPiece)));
  const auto for_each_piece = [&](auto&& look_at) {
    pool.share(c.count, kPiece, [&](int64_t begin, int64_t end) {
      look_at(pieces[static_cast<size_t>(begin / kPiece)], begin, end);
    });
  };
  // Without NaN, which compares as false.
  const auto raise = [](double& greatest, double value) {
    if (value > greatest) greatest = value;
  };
  for_each_piece([&](Piece& piece, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double residual = c.residual == nullptr ? 0 : c.residual[i];
      raise(piece.greatest, std::fabs(c.expected[i] - residual));
      raise(piece.greatest_residual, std::fabs(c.expected[i]));
    }
  });
  double greatest = 0, greatest_residual = 0;
  for (const Piece& piece : pieces) {
    raise(greatest, piece.greatest);
    raise(greatest_residual, piece.greatest_residual);
  }
  const double everywhere = c.rounding * greatest + c.of_residual * greatest_residual + c.absolute;
  for_each_piece([&](Piece& piece, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const double expected = c.expected[i], found = c.found[i];
      if (std::isnan(expected) && std::isnan(found)) continue;  // not written, as it should be
      const double error = std::fabs(found - expected);
      if (error == 0) continue;
      double share = error / (everywhere + c.relative * std::fabs(expected));
      if (std::isnan(share)) share = kInfinity;
      if (share > piece.share) piece.share = share, piece.at = i;
    }
  });
  Piece worst;
  for (const Piece& piece : pieces)
    if (piece.share > worst.share) worst = piece;
  if (worst.at < 0) return {};
  return {.share = worst.share,
          .what = fmt::format("{} [{}, {}] is {:.6g}, {:.6g} by the reference", c.name,
                              worst.at / c.width, worst.at % c.width, c.found[worst.at],
                              c.expected[worst.at])};
}

std::vector<float> cache_values(DType dtype, const std::byte* from, size_t bytes,
                                ThreadPool& pool) {
  const int64_t width = dtype_bytes(dtype, 1);
  std::vector<float> values(bytes / static_cast<size_t>(width));
  const auto fill = [&](auto&& value_of) {
    pool.share(static_cast<int64_t>(values.size()), kPiece, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        values[static_cast<size_t>(i)] = value_of(from + width * i);
    });
  };
  if (dtype == DType::kF32) {
    std::memcpy(values.data(), from, bytes);
  } else if (dtype == DType::kBF16) {
    fill([](const std::byte* at) {
      uint16_t half;
      std::memcpy(&half, at, 2);
      return bf16_to_f32(half);
    });
  } else {
    fill([](const std::byte* at) { return e4m3_to_f32(static_cast<uint8_t>(*at)); });
  }
  return values;
}

}  // namespace

SelfTestComparison::SelfTestComparison(SelfTestSide& device, SelfTestSide& host,
                                       SelfTestOutcome* outcome)
    : device_(device),
      host_(host),
      outcome_(outcome),
      tokens_(static_cast<size_t>(host.batch.ragged.num_tokens)) {}

bool SelfTestComparison::hands_over(const PlannedRow& row) {
  const OpInfo* const op = &row.row.op();
  if (op == &Op<QkvParams>::info) return row.forms.q == QForm::kF32;
  if (op == &Op<AttendParams>::info) return row.forms.a == AForm::kF32;
  return true;
}

Result<bool> SelfTestComparison::behind(const PlannedRow& row, size_t l) {
  rows_.push_back(&row);
  Status done;
  for (const OpInfo* op : row.row.ops) {
    if (!done || outcome_->fault) break;
    if (op == &Op<EmbedParams>::info) done = embed(row);
    if (op == &Op<QkvParams>::info) done = qkv(row, l);
    if (op == &Op<AttendParams>::info) done = attend(row, l);
    if (op == &Op<OutParams>::info) done = add_to_x<OutParams>(row, l, config().q_width(), 1, 1);
    if (op == &Op<RouteParams>::info) done = route(row, l);
    if (op == &Op<ExpertsParams>::info) done = experts(row, l);
    if (op == &Op<UnembedParams>::info) done = unembed(row);
  }
  if (!done) return broken(done.error());
  return !outcome_->fault;
}

bool SelfTestComparison::broken(const Error& error) {
  outcome_->fault = {
      .rows = names(), .what = error.message(), .times = kInfinity, .breaks_device = true};
  return false;
}

template <typename P>
void SelfTestComparison::refer(const P& params) {
  if (!only_follows_) run_reference(params);
}

template <typename P>
void SelfTestComparison::run_reference(P params) {
  const Row<P>& row = reference_row<P>();
  workspace_.resize(row.workspace(params) + 256);
  auto* base = workspace_.data();
  params.launch.workspace = base + (256 - reinterpret_cast<uintptr_t>(base) % 256) % 256;
  params.launch.workspace_bytes = row.workspace(params);
  row.run(params);
}

std::vector<std::string> SelfTestComparison::names() const {
  std::vector<std::string> list;
  for (const PlannedRow* row : rows_) add_once(list, row->row.name);
  return list;
}

double SelfTestComparison::roundings() const {
  double sum = 0;
  for (const PlannedRow* row : rows_) {
    sum += activation_rounding(row->row.name, device_.activation);
    if (row->row.device == DeviceKind::kCuda) sum += kSplitRounding;
  }
  return sum;
}

void SelfTestComparison::compare(const ComparedValues& compared) {
  if (only_follows_) return expect_written(compared);
  const Worst worst = worst_of(compared, pool());
  for (const std::string& name : names()) {
    double& share = outcome_->shares[name];
    share = std::max(share, worst.share);
  }
  if (worst.share <= 1 || outcome_->fault) return;
  outcome_->fault = {.rows = names(), .what = worst.what, .times = worst.share};
}

void SelfTestComparison::expect_written(const ComparedValues& compared) {
  const float* const end = compared.found + compared.count;
  const auto at = std::find_if(compared.found, end, [](float value) { return std::isnan(value); });
  if (at == end || outcome_->fault) return;
  const int64_t i = at - compared.found;
  outcome_->fault = {.rows = names(),
                     .what = fmt::format("{} [{}, {}] is {}", compared.name, i / compared.width,
                                         i % compared.width, *at),
                     .times = kInfinity};
}

ComparedValues SelfTestComparison::compared(const char* name, int32_t width, const float* expected,
                                            const std::vector<float>& found,
                                            double rounding) const {
  return {.name = name,
          .width = width,
          .expected = expected,
          .found = found.data(),
          .count = static_cast<int64_t>(found.size()),
          .rounding = rounding};
}

Status SelfTestComparison::embed(const PlannedRow& row) {
  refer(host_.pass->params<EmbedParams>(0, {}));
  std::vector<float> found(of_width(config().hidden));
  if (auto done = device_.read_x(row.forms.x, &found); !done) return done;
  compare(compared("x", config().hidden, host_.act.x, found, 0));
  std::ranges::copy(found, host_.act.x);
  settle();
  return {};
}

Status SelfTestComparison::qkv(const PlannedRow& row, size_t l) {
  const double rounding = f32_sum_error(config().hidden) + 8 * 0x1p-24 + roundings();
  refer(host_.pass->params<QkvParams>(l, {}));
  const auto cache_bytes = static_cast<size_t>(host_.kv[l].v - host_.kv[l].k);
  const DType dtype = host_.kv[l].dtype;
  for (const bool is_v : {false, true}) {
    std::byte* const expected = is_v ? host_.kv[l].v : host_.kv[l].k;
    std::vector<std::byte> found(cache_bytes);
    if (auto done = device_.read(is_v ? device_.kv[l].v : device_.kv[l].k, &found); !done)
      return done;
    if (only_follows_) {
      std::ranges::copy(found, expected);
      continue;
    }
    const auto expected_values = cache_values(dtype, expected, cache_bytes, pool());
    const auto found_values = cache_values(dtype, found.data(), cache_bytes, pool());
    // A value near the middle of two codes may go to either.
    compare({.name = is_v ? "the cache's v" : "the cache's k",
             .width = config().head_dim,
             .expected = expected_values.data(),
             .found = found_values.data(),
             .count = static_cast<int64_t>(found_values.size()),
             .rounding = rounding,
             .relative = dtype == DType::kF32    ? 0
                         : dtype == DType::kBF16 ? 0x1p-7
                                                 : 0x1p-3,
             .absolute = dtype == DType::kF8E4M3 ? 0x1p-9 : 0});
    std::ranges::copy(found, expected);
  }
  if (row.forms.q != QForm::kF32) return {};
  std::vector<float> found(of_width(config().q_width()));
  if (auto done = device_.read(device_.act.q, &found); !done) return done;
  compare(compared("q", config().q_width(), host_.act.q, found, rounding));
  std::ranges::copy(found, host_.act.q);
  settle();
  return {};
}

Status SelfTestComparison::attend(const PlannedRow& row, size_t l) {
  refer(host_.pass->params<AttendParams>(l, {}));
  if (row.forms.a != AForm::kF32) return {};
  std::vector<float> found(of_width(config().q_width()));
  if (auto done = device_.read(device_.act.a, &found); !done) return done;
  // Logits are at most about 6: their error is that much of a weight. Then two sums over keys.
  const double rounding = 6 * f32_sum_error(config().head_dim) +
                          2 * f32_sum_error(2 * config().sliding_window) + roundings();
  compare(compared("a", config().q_width(), host_.act.a, found, rounding));
  std::ranges::copy(found, host_.act.a);
  settle();
  return {};
}

template <typename P>
Status SelfTestComparison::add_to_x(const PlannedRow& row, size_t l, int64_t k, int num_sums,
                                    int num_products) {
  const size_t count = of_width(config().hidden);
  const std::vector<float> before(host_.act.x, host_.act.x + count);
  refer(host_.pass->params<P>(l, {}));
  std::vector<float> found(count);
  if (auto done = device_.read_x(row.forms.x, &found); !done) return done;
  ComparedValues x = compared("x", config().hidden, host_.act.x, found, num_products * roundings());
  x.residual = before.data();
  x.of_residual = num_sums * f32_sum_error(k);
  compare(x);
  std::ranges::copy(found, host_.act.x);
  settle();
  return {};
}

Status SelfTestComparison::route(const PlannedRow& row, size_t l) {
  const RouteParams params = host_.pass->params<RouteParams>(l, {});
  run_reference(params);  // in any case: t may have no plain form
  const int32_t top_k = config().top_k;
  std::vector<int32_t> ids(of_width(top_k));
  std::vector<float> weights(ids.size());
  if (auto done = device_.read(device_.act.expert_ids, &ids); !done) return done;
  if (auto done = device_.read(device_.act.expert_weights, &weights); !done) return done;
  // Logits are at most about 5, and a weight moves by at most the logits' error.
  const double rounding = 5 * f32_sum_error(config().hidden) + roundings();
  if (!only_follows_) compare_choice(params, ids, rounding);
  if (outcome_->fault) return {};
  compare(compared("expert_weights", top_k, host_.act.expert_weights, weights, rounding));
  std::ranges::copy(ids, host_.act.expert_ids);
  std::ranges::copy(weights, host_.act.expert_weights);
  const bool has_t = &row.row.op() == &Op<RouteParams>::info && row.forms.t == TForm::kF32;
  if (has_t) {
    std::vector<float> t(of_width(config().hidden));
    if (auto done = device_.read(device_.act.t, &t); !done) return done;
    compare(compared("t", config().hidden, host_.act.t, t, 8 * 0x1p-24 + roundings()));
    std::ranges::copy(t, host_.act.t);
  }
  if (&row.row.op() == &Op<RouteParams>::info) settle();
  return {};
}

void SelfTestComparison::compare_choice(RouteParams params, const std::vector<int32_t>& ids,
                                        double rounding) {
  const int32_t top_k = params.top_k, num_all = std::min(config().num_experts, kMaxTopK);
  // All experts by falling logit, to tell a near tie from a wrong choice.
  std::vector<int32_t> order(of_width(num_all));
  std::vector<float> weight_of(order.size()), t(of_width(config().hidden));
  params.top_k = num_all;
  params.expert_ids = order.data(), params.expert_weights = weight_of.data();
  params.t = t.data();
  run_reference(params);
  for (size_t token = 0; token < tokens_; ++token) {
    const auto first = static_cast<size_t>(num_all) * token;
    for (int32_t slot = 0; slot < top_k; ++slot) {
      const int32_t found = ids[token * static_cast<size_t>(top_k) + static_cast<size_t>(slot)];
      const float expected = weight_of[first + static_cast<size_t>(slot)];
      const auto begin = order.begin() + static_cast<int64_t>(first);
      const auto at = std::find(begin, begin + num_all, found) - begin;
      const bool exists = at < num_all;
      const float own = exists ? weight_of[first + static_cast<size_t>(at)] : 0;
      // Equal logits go to the lower index; nearly equal ones to either.
      const bool is_near = exists && own != expected && std::fabs(own - expected) <= 2 * rounding;
      if (at == slot || is_near || outcome_->fault) continue;
      outcome_->fault = {
          .rows = names(),
          .what = fmt::format("expert_ids [{}, {}] is {}, {} by the reference", token, slot, found,
                              order[first + static_cast<size_t>(slot)]),
          .times = kInfinity};
    }
  }
}

Status SelfTestComparison::experts(const PlannedRow& row, size_t l) {
  return add_to_x<ExpertsParams>(row, l, config().hidden, 3, 2);
}

Status SelfTestComparison::unembed(const PlannedRow&) {
  refer(host_.pass->params<UnembedParams>(0, {}));
  std::vector<float> found(of_width(config().vocab));
  if (auto done = device_.read(device_.act.logits, &found); !done) return done;
  const double rounding = f32_sum_error(config().hidden) + 8 * 0x1p-24 + roundings();
  compare(compared("logits", config().vocab, host_.act.logits, found, rounding));
  settle();
  return {};
}

}  // namespace moxie
