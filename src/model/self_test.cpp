// One launch of the test model: inputs, the rows one after another, and what is compared behind
// each.
#include "model/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/formats.h"
#include "core/threads.h"
#include "kernels/row_rounding.h"
#include "model/fold_scales_cuda.h"

namespace moxie {
namespace {

constexpr int32_t kPageTokens = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename P>
const Row<P>& reference_row() {
  const std::string name = std::string(Op<P>::info.name) + "_reference";
  for (const Row<P>& row : Op<P>::rows())
    if (name == row.name) return row;
  CHECK(false, name);
  return Op<P>::rows()[0];
}

// A value of a launch as its row left it and as the reference has it.
struct Compared {
  const char* name;
  int64_t width;  // values a token
  const float *expected, *found;
  int64_t count;
  double rounding = 0;  // share of the greatest expected value
  double relative = 0, absolute = 0;
  /// The residual before the step: `rounding` is then of what was added to it, since the residual
  /// itself would hide much. Additions to it round by `of_residual` of its greatest value.
  const float* residual = nullptr;
  double of_residual = 0;
};

struct Worst {
  double share = 0;
  std::string what;
};

Worst worst_of(const Compared& c) {
  double greatest = 0, greatest_residual = 0;
  for (int64_t i = 0; i < c.count; ++i) {
    const double residual = c.residual == nullptr ? 0 : c.residual[i];
    greatest = std::fmax(greatest, std::fabs(c.expected[i] - residual));
    greatest_residual = std::fmax(greatest_residual, std::fabs(c.expected[i]));
  }
  Worst worst;
  int64_t worst_at = -1;
  const double everywhere = c.rounding * greatest + c.of_residual * greatest_residual + c.absolute;
  for (int64_t i = 0; i < c.count; ++i) {
    const double expected = c.expected[i], found = c.found[i];
    if (std::isnan(expected) && std::isnan(found)) continue;  // not written, as it should be
    const double error = std::fabs(found - expected);
    if (error == 0) continue;
    double share = error / (everywhere + c.relative * std::fabs(expected));
    if (std::isnan(share)) share = kInfinity;
    if (share > worst.share) worst.share = share, worst_at = i;
  }
  if (worst_at >= 0)
    worst.what =
        fmt::format("{} [{}, {}] is {:.6g}, {:.6g} by the reference", c.name, worst_at / c.width,
                    worst_at % c.width, c.found[worst_at], c.expected[worst_at]);
  return worst;
}

std::vector<float> cache_values(DType dtype, const std::vector<std::byte>& bytes) {
  const auto width = static_cast<size_t>(dtype_bytes(dtype, 1));
  std::vector<float> values(bytes.size() / width);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half;
    if (dtype == DType::kF32) {
      std::memcpy(&values[i], &bytes[4 * i], 4);
    } else if (dtype == DType::kBF16) {
      std::memcpy(&half, &bytes[2 * i], 2);
      values[i] = bf16_to_f32(half);
    } else {
      values[i] = e4m3_to_f32(static_cast<uint8_t>(bytes[i]));
    }
  }
  return values;
}

void store_cached(DType dtype, float value, std::byte* to) {
  const uint16_t half = f32_to_bf16(value);
  if (dtype == DType::kF32)
    std::memcpy(to, &value, 4);
  else if (dtype == DType::kBF16)
    std::memcpy(to, &half, 2);
  else
    *to = static_cast<std::byte>(f32_to_e4m3(value));
}

// In -1..1; depends on its place alone.
float drawn(uint32_t a, uint32_t b) {
  uint32_t z = a * 0x9E3779B1u ^ (b + 0x7F4A7C15u) * 0x85EBCA77u;
  z = (z ^ (z >> 15)) * 0x2C1B3C6Du;
  z = (z ^ (z >> 12)) * 0x297A2D39u;
  return static_cast<float>(static_cast<int32_t>(z ^ (z >> 15))) * 0x1p-31f;
}

}  // namespace

std::string SelfTestLaunch::text() const {
  return fmt::format("{} token{} of {}", num_tokens, num_tokens == 1 ? "" : "s",
                     num_seqs == 1 ? "one sequence" : fmt::format("{} sequences", num_seqs));
}

// The tokens of a launch. Positions lie at the border of the window: prompts pass it, and of a
// single token the first key is out of it.
struct SelfTest::Arrays {
  std::vector<int32_t> ids, positions, seq_idx, offsets{0}, rows;
  int32_t longest = 0;
  int64_t num_visible_keys = 0;

  Arrays(const GptOssConfig& config, const SelfTestLaunch& launch) {
    const int32_t per_seq = launch.num_tokens / launch.num_seqs;
    for (int32_t s = 0; s < launch.num_seqs; ++s) {
      const int32_t count = s == 0 ? launch.num_tokens - per_seq * (launch.num_seqs - 1) : per_seq;
      const int32_t first = std::max(0, config.sliding_window + 3 * (s % 8) - count / 2);
      for (int32_t i = 0; i < count; ++i) {
        rows.push_back(static_cast<int32_t>(ids.size()));
        ids.push_back(((first + i) * 37 + s * 11 + 5) % config.vocab);
        positions.push_back(first + i);
        seq_idx.push_back(s);
        num_visible_keys += first + i + 1;
        longest = std::max(longest, first + i + 1);
      }
      offsets.push_back(static_cast<int32_t>(ids.size()));
    }
  }
};

// Where the rows of a plan run, or the reference rows: weights, activations, cache and inputs of
// one launch.
struct SelfTest::Side {
  Device& device;
  Stream& stream;
  const GptOssConfig& config;
  const ModelWeights& weights;
  bool use_sinks;
  DType activation;
  gemm::Tile tile;
  gemm::TileDevice tile_device;
  uint64_t most_shared = 0;
  int32_t floats_of_x = 1;
  Activations act;
  Buffer act_memory, kv_memory, input_memory, rotary_memory;
  std::vector<KvLayer> kv;
  Rotary rotary;
  Batch batch;
  std::optional<Pass> pass;

  Status make(DType kv_dtype, const KernelChooser& kernels, int32_t max_tokens,
              int32_t most_positions) {
    const auto bytes = activation_bytes(config, weights, kv_dtype, kernels, max_tokens, max_tokens);
    floats_of_x = bytes.floats_of_x;
    auto memory = device.allocate(bytes.total() + 16 * 256);
    if (!memory) return fail(std::move(memory.error()));
    Arena arena(std::move(*memory));
    act = make_activations(config, bytes, max_tokens, max_tokens, arena);
    act_memory = arena.release();
    std::vector<float> angles(static_cast<size_t>(most_positions * config.head_dim));
    fill_rotary_table(config, 0, most_positions, angles.data());
    auto table = device.allocate(angles.size() * sizeof(float));
    if (!table) return fail(std::move(table.error()));
    rotary_memory = std::move(*table);
    rotary = {rotary_memory.as<float>(), most_positions};
    return write(rotary_memory.data(), angles);
  }

  // The inputs of a launch; all that it writes is NaN at first.
  Status place(const Arrays& arrays, const std::vector<std::byte>& cache, const KvLayer& shape,
               const std::vector<int32_t>& page_table) {
    std::vector<int32_t> all;
    for (const auto* list : {&arrays.ids, &arrays.positions, &arrays.seq_idx, &arrays.offsets,
                             &arrays.rows, &page_table})
      all.insert(all.end(), list->begin(), list->end());
    auto inputs = device.allocate(all.size() * sizeof(int32_t));
    if (!inputs) return fail(std::move(inputs.error()));
    input_memory = std::move(*inputs);
    if (auto done = write(input_memory.data(), all); !done) return done;
    const auto* at = input_memory.as<int32_t>();
    const auto next = [&](const std::vector<int32_t>& list) {
      return std::exchange(at, at + list.size());
    };
    const auto num_tokens = static_cast<int32_t>(arrays.ids.size());
    batch.token_ids = next(arrays.ids);
    batch.ragged = {.num_tokens = num_tokens,
                    .num_seqs = static_cast<int32_t>(arrays.offsets.size()) - 1,
                    .positions = next(arrays.positions),
                    .seq_idx = next(arrays.seq_idx),
                    .row_offsets = next(arrays.offsets),
                    .num_visible_keys = arrays.num_visible_keys};
    batch.num_logit_rows = num_tokens;
    batch.logit_rows = next(arrays.rows);
    auto memory = device.allocate(cache.size());
    if (!memory) return fail(std::move(memory.error()));
    kv_memory = std::move(*memory);
    kv.assign(static_cast<size_t>(config.num_layers), shape);
    const auto half = static_cast<int64_t>(cache.size()) / (2 * config.num_layers);
    for (size_t l = 0; l < kv.size(); ++l) {
      kv[l].k = kv_memory.data() + 2 * half * static_cast<int64_t>(l);
      kv[l].v = kv[l].k + half;
      kv[l].page_table = at;
    }
    if (auto done = write(kv_memory.data(), cache); !done) return done;
    pass.emplace(Pass{.config = config,
                      .weights = weights,
                      .batch = batch,
                      .act = act,
                      .kv = kv,
                      .rotary = rotary,
                      .launch = {.device = device.kind(),
                                 .stream = &stream,
                                 .workspace = act.workspace,
                                 .workspace_bytes = act.workspace_bytes,
                                 .most_shared = most_shared},
                      .activation = activation,
                      .tile = tile,
                      .tile_device = tile_device,
                      .use_sinks = use_sinks});
    return write(act_memory.data(), std::vector<std::byte>(act_memory.bytes(), std::byte{0xFF}));
  }

  template <typename T>
  Status write(void* to, const std::vector<T>& values) {
    auto copied = device.copy_from_host(to, values.data(), values.size() * sizeof(T), stream);
    return copied ? stream.synchronize() : copied;
  }
  template <typename T>
  Status read(const void* from, std::vector<T>* values) {
    auto copied = device.copy_to_host(values->data(), from, values->size() * sizeof(T), stream);
    return copied ? stream.synchronize() : copied;
  }
  // The residual stream in one float a value.
  Status read_x(XForm form, std::vector<float>* x) {
    const size_t per_value = form == XForm::kF32Pair ? 2 : 1;
    std::vector<float> floats(x->size() * per_value);
    if (auto done = read(act.x, &floats); !done) return done;
    for (size_t i = 0; i < x->size(); ++i)
      (*x)[i] = per_value == 1
                    ? floats[i]
                    : static_cast<float>(static_cast<double>(floats[2 * i]) + floats[2 * i + 1]);
    return {};
  }
};

// Goes behind the rows of a launch: runs the reference row of each step that a row did, compares,
// and goes on from what was found.
class SelfTest::Comparison {
 public:
  Comparison(Side& device, Side& host, SelfTestOutcome* outcome)
      : device_(device),
        host_(host),
        outcome_(outcome),
        tokens_(static_cast<size_t>(host.batch.ragged.num_tokens)) {}

  // False if there was a fault.
  Result<bool> behind(const PlannedRow& row, size_t l) {
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
  bool broken(const Error& error) {
    outcome_->fault = {
        .rows = names(), .what = error.message(), .times = kInfinity, .breaks_device = true};
    return false;
  }

 private:
  const GptOssConfig& config() const { return host_.config; }
  size_t of_width(int32_t width) const { return tokens_ * static_cast<size_t>(width); }

  template <typename P>
  void refer(P params) {
    const Row<P>& row = reference_row<P>();
    workspace_.resize(row.workspace(params) + 256);
    auto* base = workspace_.data();
    params.launch.workspace = base + (256 - reinterpret_cast<uintptr_t>(base) % 256) % 256;
    params.launch.workspace_bytes = row.workspace(params);
    row.run(params);
  }

  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const PlannedRow* row : rows_)
      if (std::ranges::find(list, row->row.name) == list.end()) list.push_back(row->row.name);
    return list;
  }
  // What the rows round that answer together.
  double roundings() const {
    double sum = 0;
    for (const PlannedRow* row : rows_) {
      sum += activation_rounding(row->row.name, device_.activation);
      if (row->row.device == DeviceKind::kCuda) sum += kSplitRounding;
    }
    return sum;
  }
  void compare(const Compared& compared) {
    const Worst worst = worst_of(compared);
    for (const std::string& name : names()) {
      double& share = outcome_->shares[name];
      share = std::max(share, worst.share);
    }
    if (worst.share <= 1 || outcome_->fault) return;
    outcome_->fault = {.rows = names(), .what = worst.what, .times = worst.share};
  }
  Compared compared(const char* name, int32_t width, const float* expected,
                    const std::vector<float>& found, double rounding) const {
    return {.name = name,
            .width = width,
            .expected = expected,
            .found = found.data(),
            .count = static_cast<int64_t>(found.size()),
            .rounding = rounding};
  }
  // The rows up to here have answered.
  void settle() { rows_.clear(); }

  Status embed(const PlannedRow& row) {
    refer(host_.pass->params<EmbedParams>(0, {}));
    std::vector<float> found(of_width(config().hidden));
    if (auto done = device_.read_x(row.forms.x, &found); !done) return done;
    compare(compared("x", config().hidden, host_.act.x, found, 0));
    std::ranges::copy(found, host_.act.x);
    settle();
    return {};
  }

  Status qkv(const PlannedRow& row, size_t l) {
    const double rounding = f32_sum_error(config().hidden) + 8 * 0x1p-24 + roundings();
    refer(host_.pass->params<QkvParams>(l, {}));
    const auto cache_bytes = static_cast<size_t>(host_.kv[l].v - host_.kv[l].k);
    const DType dtype = host_.kv[l].dtype;
    for (const bool is_v : {false, true}) {
      std::byte* const expected = is_v ? host_.kv[l].v : host_.kv[l].k;
      std::vector<std::byte> found(cache_bytes);
      if (auto done = device_.read(is_v ? device_.kv[l].v : device_.kv[l].k, &found); !done)
        return done;
      const auto expected_values = cache_values(dtype, {expected, expected + cache_bytes});
      const auto found_values = cache_values(dtype, found);
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

  Status attend(const PlannedRow& row, size_t l) {
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

  // A step that adds to x what came through `num_products` products, one behind the other, whose
  // sums in F32 are as `num_sums` of `k` terms.
  template <typename P>
  Status add_to_x(const PlannedRow& row, size_t l, int64_t k, int num_sums, int num_products) {
    const size_t count = of_width(config().hidden);
    const std::vector<float> before(host_.act.x, host_.act.x + count);
    refer(host_.pass->params<P>(l, {}));
    std::vector<float> found(count);
    if (auto done = device_.read_x(row.forms.x, &found); !done) return done;
    Compared x = compared("x", config().hidden, host_.act.x, found, num_products * roundings());
    x.residual = before.data();
    x.of_residual = num_sums * f32_sum_error(k);
    compare(x);
    std::ranges::copy(found, host_.act.x);
    settle();
    return {};
  }

  Status route(const PlannedRow& row, size_t l) {
    RouteParams params = host_.pass->params<RouteParams>(l, {});
    refer(params);
    const int32_t top_k = config().top_k, num_all = std::min(config().num_experts, kMaxTopK);
    // All experts by falling logit, to tell a near tie from a wrong choice.
    std::vector<int32_t> order(of_width(num_all));
    std::vector<float> weight_of(order.size()), t(of_width(config().hidden));
    params.top_k = num_all;
    params.expert_ids = order.data(), params.expert_weights = weight_of.data();
    params.t = t.data();
    refer(params);
    std::vector<int32_t> ids(of_width(top_k));
    std::vector<float> weights(ids.size());
    if (auto done = device_.read(device_.act.expert_ids, &ids); !done) return done;
    if (auto done = device_.read(device_.act.expert_weights, &weights); !done) return done;
    // Logits are at most about 5, and a weight moves by at most the logits' error.
    const double rounding = 5 * f32_sum_error(config().hidden) + roundings();
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
            .what = fmt::format("expert_ids [{}, {}] is {}, {} by the reference", token, slot,
                                found, order[first + static_cast<size_t>(slot)]),
            .times = kInfinity};
      }
    }
    if (outcome_->fault) return {};
    compare(compared("expert_weights", top_k, host_.act.expert_weights, weights, rounding));
    std::ranges::copy(ids, host_.act.expert_ids);
    std::ranges::copy(weights, host_.act.expert_weights);
    const bool has_t = &row.row.op() == &Op<RouteParams>::info && row.forms.t == TForm::kF32;
    if (has_t) {
      if (auto done = device_.read(device_.act.t, &t); !done) return done;
      compare(compared("t", config().hidden, host_.act.t, t, 8 * 0x1p-24 + roundings()));
      std::ranges::copy(t, host_.act.t);
    }
    if (&row.row.op() == &Op<RouteParams>::info) settle();
    return {};
  }

  // Two products in a row; the activation multiplies an error of a gate by u + 1, about 2 in the
  // mean, and the second sum averages it.
  Status experts(const PlannedRow& row, size_t l) {
    return add_to_x<ExpertsParams>(row, l, config().hidden, 3, 2);
  }

  Status unembed(const PlannedRow&) {
    refer(host_.pass->params<UnembedParams>(0, {}));
    std::vector<float> found(of_width(config().vocab));
    if (auto done = device_.read(device_.act.logits, &found); !done) return done;
    const double rounding = f32_sum_error(config().hidden) + 8 * 0x1p-24 + roundings();
    compare(compared("logits", config().vocab, host_.act.logits, found, rounding));
    settle();
    return {};
  }

  Side& device_;
  Side& host_;
  SelfTestOutcome* outcome_;
  size_t tokens_;
  std::vector<const PlannedRow*> rows_;  // that have not answered yet
  std::vector<std::byte> workspace_;
};

SelfTest::SelfTest(const SelfTestSetup& setup, Device& host)
    : setup_(setup), host_(host), kernels_(setup.device.kind(), setup.features, setup.choice) {}
SelfTest::~SelfTest() = default;

Result<std::unique_ptr<SelfTest>> SelfTest::create(const SelfTestSetup& setup, Device& host) {
  std::unique_ptr<SelfTest> test(new SelfTest(setup, host));
  if (auto made = test->make(); !made) return fail(std::move(made.error()));
  return test;
}

Status SelfTest::make() {
  auto stream = setup_.device.make_stream();
  if (!stream) return fail(std::move(stream.error()));
  stream_ = std::move(*stream);
  auto host_stream = host_.make_stream();
  if (!host_stream) return fail(std::move(host_stream.error()));
  host_stream_ = std::move(*host_stream);
  auto model = make_self_test_model(setup_.config, setup_.formats, setup_.sizes, setup_.device,
                                    *stream_, *host_stream_->pool);
  if (!model) return fail(std::move(model.error()));
  model_ = std::move(*model);
  if (folds_scales(kernels_)) {
    if (auto done = fold_scales_cuda(setup_.device, *stream_, model_.weights); !done) return done;
  }
  const auto side = [&](Device& device, Stream& on, const ModelWeights& weights) {
    return std::make_unique<Side>(Side{.device = device,
                                       .stream = on,
                                       .config = model_.config,
                                       .weights = weights,
                                       .use_sinks = setup_.use_sinks,
                                       .activation = kernels_.activation(),
                                       .tile = kernels_.tile(),
                                       .tile_device = tile_device_of(kernels_.rates()),
                                       .most_shared = kernels_.launch().most_shared});
  };
  device_side_ = side(setup_.device, *stream_, model_.weights);
  host_side_ = side(host_, *host_stream_, model_.reference);
  // A row's rounding is in what it may differ by.
  host_side_->activation = DType::kBF16;
  const int32_t most_positions = model_.config.sliding_window + 3 * 8 + setup_.max_tokens;
  if (auto done = device_side_->make(setup_.kv_dtype, kernels_, setup_.max_tokens, most_positions);
      !done)
    return done;
  KernelChoice references;
  CHECK(references.add("all=reference").has_value());
  const KernelChooser plain(DeviceKind::kCpu, kFeatureNone, references);
  return host_side_->make(setup_.kv_dtype, plain, setup_.max_tokens, most_positions);
}

Result<SelfTestOutcome> SelfTest::run(const PassPlan& plan, const SelfTestLaunch& launch) {
  CHECK(launch.num_tokens <= setup_.max_tokens && launch.num_seqs <= launch.num_tokens);
  const GptOssConfig& config = model_.config;
  const Arrays arrays(config, launch);
  // Pages of the sequences, the last first.
  KvLayer shape{.table_stride = ceil_div(arrays.longest, kPageTokens),
                .page_tokens = kPageTokens,
                .dtype = setup_.kv_dtype};
  const int64_t row_bytes = shape.row_bytes(config.head_dim);
  shape.page_stride_bytes = config.num_kv_heads * kPageTokens * row_bytes;
  const int32_t num_pages = shape.table_stride * launch.num_seqs;
  std::vector<int32_t> page_table(static_cast<size_t>(num_pages));
  std::iota(page_table.rbegin(), page_table.rend(), 0);
  // What no token may see stays NaN, which is all ones in every format.
  const int64_t half = num_pages * shape.page_stride_bytes;
  std::vector<std::byte> cache(static_cast<size_t>(2 * half * config.num_layers), std::byte{0xFF});
  shape.page_table = page_table.data();
  for (int32_t s = 0; s < launch.num_seqs; ++s) {
    const auto begin = static_cast<size_t>(arrays.offsets[static_cast<size_t>(s)]);
    const auto end = static_cast<size_t>(arrays.offsets[static_cast<size_t>(s) + 1]);
    const int32_t first = arrays.positions[begin];
    // Keys that leave the window in this launch, and the next two: their values are so great that a
    // window that is off by one shows.
    const int32_t leaving = arrays.positions[end - 1] - config.sliding_window + 3;
    for (int32_t l = 0; l < config.num_layers; ++l) {
      for (int32_t position = 0; position < first; ++position) {
        for (int32_t i = 0; i < 2 * config.kv_width(); ++i) {
          const int32_t is_v = i / config.kv_width(), in_row = i % config.kv_width();
          const int64_t at = (2 * l + is_v) * half +
                             shape.offset(shape.page_of(s, position), in_row / config.head_dim,
                                          position, config.head_dim) +
                             in_row % config.head_dim * (row_bytes / config.head_dim);
          const float value = drawn(static_cast<uint32_t>((s * 64 + l) * 4096 + position),
                                    static_cast<uint32_t>(i));
          store_cached(setup_.kv_dtype, is_v != 0 && position < leaving ? 8 * value : value,
                       &cache[static_cast<size_t>(at)]);
        }
      }
    }
  }
  SelfTestOutcome outcome;
  const auto place = [&](Side& side) { return side.place(arrays, cache, shape, page_table); };
  if (auto done = place(*host_side_); !done) return fail(std::move(done.error()));
  if (auto done = place(*device_side_); !done) return fail(std::move(done.error()));
  const Pass& pass = *device_side_->pass;
  Comparison comparison(*device_side_, *host_side_, &outcome);
  // The rows of a pass and the layer of each.
  std::vector<std::pair<const PlannedRow*, size_t>> order{{&plan.embed, 0}};
  for (size_t l = 0; l < model_.kinds.size(); ++l) {
    for (const PlannedRow& row : plan.layer(model_.kinds[l]))
      if (&row.row.op() != &Op<TapParams>::info) order.emplace_back(&row, l);
  }
  order.emplace_back(&plan.unembed, 0);
  for (const auto& [row, l] : order) {
    if (const char* why = row->refuses(pass, *row, l)) {
      outcome.refusal = fmt::format("{}: {}", row->row.name, why);
      return outcome;
    }
  }
  for (const auto& [row, l] : order) {
    row->run(kernels_, pass, *row, l);
    if (auto done = stream_->synchronize(); !done) {
      outcome.fault = {.rows = {row->row.name},
                       .what = done.error().message(),
                       .times = kInfinity,
                       .breaks_device = true};
      return outcome;
    }
    auto is_sound = comparison.behind(*row, l);
    if (!is_sound) return fail(std::move(is_sound.error()));
    if (!*is_sound) return outcome;
  }
  return outcome;
}

Result<SelfTestOutcome> SelfTest::draw(const Row<SampleParams>& row, int32_t vocab,
                                       bool all_plain) {
  constexpr int32_t kRows = 8;
  const auto words = static_cast<size_t>(ceil_div(vocab, 32));
  std::vector<float> logits(static_cast<size_t>(kRows) * static_cast<size_t>(vocab));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = 4 * drawn(static_cast<uint32_t>(i), 7);
  // The greatest logit of a row twice: the lower id is drawn.
  for (size_t r = 0; r < kRows; ++r) {
    const size_t first = r * static_cast<size_t>(vocab);
    logits[first + static_cast<size_t>(vocab) / 3] =
        logits[first + static_cast<size_t>(vocab) - 1] = 4.5f;
  }
  std::vector<uint32_t> mask(words, 0x5A5A5A5Au);
  const SampleRequest plain[] = {{}, {.temperature = 1}};
  const SampleRequest others[] = {{.temperature = 0.7f, .top_k = 40, .top_p = 0.9f},
                                  {.temperature = 1.5f, .min_p = 0.05f, .num_logprobs = 3}};
  auto memory =
      setup_.device.allocate(4 * (logits.size() + words) +
                             kRows * (sizeof(SampleRequest) + sizeof(SampleAnswer)) + 4 * 256);
  if (!memory) return fail(std::move(memory.error()));
  Arena arena(std::move(*memory));
  Side& side = *device_side_;
  auto* const there_logits = arena.take_array<float>(logits.size());
  auto* const there_mask = arena.take_array<uint32_t>(words);
  auto* const there_requests = arena.take_array<SampleRequest>(kRows);
  auto* const there_answers = arena.take_array<SampleAnswer>(kRows);
  std::vector<SampleRequest> requests, there;
  for (size_t r = 0; r < kRows; ++r) {
    const bool is_plain_one = all_plain || r % 4 < 2;
    SampleRequest request = is_plain_one ? plain[r % 2] : others[r % 2];
    request.seed = 11, request.step = r;
    if (!is_plain_one && r >= 4) request.allowed_mask = mask.data();
    requests.push_back(request);
    if (request.allowed_mask != nullptr) request.allowed_mask = there_mask;
    there.push_back(request);
  }
  std::vector<SampleAnswer> expected(kRows), found(kRows, SampleAnswer{.token = -2});
  SampleParams params{.launch = {.stream = host_stream_.get()},
                      .num_rows = kRows,
                      .vocab = vocab,
                      .logits = logits.data(),
                      .requests = requests.data(),
                      .answers = expected.data(),
                      .all_plain = all_plain};
  reference_row<SampleParams>().run(params);
  SelfTestOutcome outcome;
  params.launch = kernels_.launch(stream_.get());
  params.logits = there_logits, params.requests = there_requests, params.answers = there_answers;
  if (const char* why = why_not(row, params)) {
    outcome.refusal = fmt::format("{}: {}", row.name, why);
    return outcome;
  }
  auto workspace = setup_.device.allocate(row.workspace(params) + 256);
  if (!workspace) return fail(std::move(workspace.error()));
  params.launch.workspace = workspace->data(), params.launch.workspace_bytes = workspace->bytes();
  Status done = side.write(there_logits, logits);
  if (done) done = side.write(there_mask, mask);
  if (done) done = side.write(there_requests, there);
  if (done) done = side.write(there_answers, found);
  if (!done) return fail(std::move(done.error()));
  row.run(params);
  done = side.read(there_answers, &found);
  outcome.shares[row.name] = 0;
  if (!done) {
    outcome.fault = {.rows = {row.name},
                     .what = done.error().message(),
                     .times = kInfinity,
                     .breaks_device = true};
    return outcome;
  }
  for (size_t r = 0; r < kRows && !outcome.fault; ++r) {
    // Log-probabilities are rounded to F32 once, from sums in double.
    const bool asks = requests[r].num_logprobs >= 0;
    const double off = asks ? std::fabs(found[r].logprob - expected[r].logprob) : 0;
    const double share = off / (0x1p-22 * std::fabs(expected[r].logprob) + 1e-30);
    if (found[r].token == expected[r].token && share <= 1) continue;
    outcome.fault = {.rows = {row.name},
                     .what = fmt::format("row {} of logits draws {} ({}), {} ({}) by the reference",
                                         r, found[r].token, found[r].logprob, expected[r].token,
                                         expected[r].logprob),
                     .times = kInfinity};
    outcome.shares[row.name] = kInfinity;
  }
  return outcome;
}

}  // namespace moxie
