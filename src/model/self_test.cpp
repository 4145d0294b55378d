// A launch of the test model: inputs, the rows one after another, and a comparison behind each.
#include "model/self_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "core/formats.h"
#include "core/threads.h"
#include "model/eight_bits_cuda.h"
#include "model/self_test_comparison.h"

namespace moxie {
namespace {

constexpr int32_t kPageTokens = 16;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

using RowInLayer = std::pair<const PlannedRow*, size_t>;

std::string text_of(const PlannedRow& row) {
  const auto [x, q, a, router, t, l1, reduce] = row.forms;
  return fmt::format(" {} {} {} {} {} {} {} {} {}", row.row.name, static_cast<int>(x),
                     static_cast<int>(q), static_cast<int>(a), static_cast<int>(router),
                     static_cast<int>(t), static_cast<int>(l1), static_cast<int>(reduce),
                     row.tile_columns);
}

// The rows from `first` on that answer together, and all but values that their results depend on:
// also the row before them, which may leave what is not compared by itself.
std::string answering_text(const std::vector<RowInLayer>& order, size_t first,
                           const SelfTestLaunch& launch) {
  std::string text = fmt::format("{} tokens:", launch.num_tokens);
  if (first > 0) text += text_of(*order[first - 1].first);
  for (size_t i = first; i < order.size(); ++i) {
    const auto& [row, l] = order[i];
    text += fmt::format(", in {}", l) + text_of(*row);
    for (const OpInfo* op : row->row.ops)  // only these see sequences
      if (op == &Op<QkvParams>::info || op == &Op<AttendParams>::info)
        text += fmt::format(" of {}", launch.num_seqs);
    if (SelfTestComparison::hands_over(*row)) break;
  }
  return text;
}

}  // namespace

std::string SelfTestLaunch::text() const {
  return fmt::format("{} token{} of {}", num_tokens, num_tokens == 1 ? "" : "s",
                     num_seqs == 1 ? "one sequence" : fmt::format("{} sequences", num_seqs));
}

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
                                    *stream_, host_, *host_stream_->pool);
  if (!model) return fail(std::move(model.error()));
  model_ = std::move(*model);
  if (takes_eight_bits(kernels_)) {
    if (auto done = add_eight_bits_cuda(setup_.device, *stream_, model_.weights); !done)
      return done;
  }
  const auto side = [&](Device& device, Stream& on, const ModelWeights& weights) {
    return std::make_unique<SelfTestSide>(
        SelfTestSide{.device = device,
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
  const SelfTestTokens arrays(config, launch);
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
  auto fill_page = [&](int64_t task, int) {
    const auto page = static_cast<int32_t>(task % shape.table_stride);
    const auto l = static_cast<int32_t>(task / shape.table_stride % config.num_layers);
    const auto s = static_cast<int32_t>(task / shape.table_stride / config.num_layers);
    const auto begin = static_cast<size_t>(arrays.offsets[static_cast<size_t>(s)]);
    const auto end = static_cast<size_t>(arrays.offsets[static_cast<size_t>(s) + 1]);
    const int32_t first = arrays.positions[begin];
    // Keys that leave the window in this launch, and the next two: their values are so great that a
    // window that is off by one shows.
    const int32_t leaving = arrays.positions[end - 1] - config.sliding_window + 3;
    for (int32_t position = page * kPageTokens;
         position < std::min(first, (page + 1) * kPageTokens); ++position) {
      for (int32_t part = 0; part < 2 * config.num_kv_heads; ++part) {
        const int32_t is_v = part / config.num_kv_heads, head = part % config.num_kv_heads;
        std::byte* to = &cache[static_cast<size_t>(
            (2 * l + is_v) * half +
            shape.offset(shape.page_of(s, position), head, position, config.head_dim))];
        for (int32_t i = 0; i < config.head_dim; ++i, to += row_bytes / config.head_dim) {
          const float value = drawn(static_cast<uint32_t>((s * 64 + l) * 4096 + position),
                                    static_cast<uint32_t>(part * config.head_dim + i));
          store_cached(setup_.kv_dtype, is_v != 0 && position < leaving ? 8 * value : value, to);
        }
      }
    }
  };
  host_stream_->pool->run(int64_t{launch.num_seqs} * config.num_layers * shape.table_stride,
                          fill_page);
  SelfTestOutcome outcome;
  const auto place = [&](SelfTestSide& side) {
    return side.place(arrays, cache, shape, page_table);
  };
  if (auto done = place(*host_side_); !done) return fail(std::move(done.error()));
  if (auto done = place(*device_side_); !done) return fail(std::move(done.error()));
  const Pass& pass = *device_side_->pass;
  SelfTestComparison comparison(*device_side_, *host_side_, &outcome);
  // The rows of a pass and the layer of each.
  std::vector<RowInLayer> order{{&plan.embed, 0}};
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
  std::string answering;  // the rows that answer together from here on; empty: not known yet
  for (size_t i = 0; i < order.size(); ++i) {
    const auto& [row, l] = order[i];
    if (answering.empty()) {
      answering = answering_text(order, i, launch);
      comparison.set_only_follows(sound_.contains(answering));
    }
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
    if (!SelfTestComparison::hands_over(*row)) continue;
    if (setup_.compares_once) sound_.insert(answering);
    answering.clear();
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
  SelfTestSide& side = *device_side_;
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
