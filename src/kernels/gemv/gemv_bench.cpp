// How fast the tile products read weights: GB/s from memory for each variant and format, beside a
// plain read of the same memory, and GFLOP/s for groups of tokens.
//
//   moxie_kernels_bench --benchmark_filter=Read      # the machine's read bandwidth
//   moxie_kernels_bench --benchmark_filter=Product   # Product/<variant>/<format>/<tokens>
//   moxie_kernels_bench --benchmark_filter=Gemm      # Gemm/<variant>/mxfp4/<tokens>
//   moxie_kernels_bench --benchmark_filter=Experts   # Experts/<row>/mxfp4/<tokens>
//   moxie_kernels_bench --benchmark_filter=Steps     # decode steps of a small and of a 20b layer
#include <benchmark/benchmark.h>

#include <bitset>
#include <cstring>
#include <memory>
#include <string>

#include "core/device.h"
#include "kernels/experts/experts_rows.h"
#include "kernels/gemv/gemm_product.h"
#include "kernels/gemv/product.h"
#include "kernels/testing/cases.h"

namespace moxie {
namespace {

constexpr int32_t kCols = 2880;
constexpr uint64_t kMemoryBytes = uint64_t{1} << 30;  // far beyond any cache

struct Machine {
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream().value();
  Buffer memory = device->allocate(kMemoryBytes).value();
};
Machine& machine() {
  static Machine one;
  return one;
}

void read_plain(benchmark::State& state) {
  Machine& m = machine();
  std::memset(m.memory.data(), 1, kMemoryBytes);
  const auto* words = m.memory.as<uint64_t>();
  constexpr int64_t kChunkWords = 1 << 17;
  for (auto _ : state) {
    auto chunk = [&](int64_t i, int) {
      uint64_t sums[8] = {};
      const uint64_t* at = words + i * kChunkWords;
      for (int64_t j = 0; j < kChunkWords; j += 8) {
        __builtin_prefetch(at + j + 1024);
        for (int lane = 0; lane < 8; ++lane) sums[lane] += at[j + lane];
      }
      benchmark::DoNotOptimize(sums);
    };
    m.stream->pool->run(static_cast<int64_t>(kMemoryBytes / 8) / kChunkWords, chunk);
  }
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(kMemoryBytes) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

// One pass over enough rows to fill the memory.
void product(benchmark::State& state, const LaneKernels& lanes, DType format, int32_t num_tokens) {
  Machine& m = machine();
  testing::Random random(1);
  const testing::PackedTensor tile = testing::random_packed(format, 1, 16, kCols, random);
  const int64_t tile_bytes = tile.matrix.tile_bytes();
  const auto num_tiles = static_cast<int32_t>(static_cast<int64_t>(kMemoryBytes) / tile_bytes /
                                              (num_tokens > 1 ? 16 : 1));
  for (int32_t i = 0; i < num_tiles; ++i) {
    std::memcpy(m.memory.data() + i * tile_bytes, tile.memory.data(),
                static_cast<size_t>(tile_bytes));
  }
  const PackedMatrix matrix{
      .data = m.memory.data(), .format = format, .rows = num_tiles * 16, .cols = kCols};
  const std::vector<float> x = random.uniforms(int64_t{num_tokens} * kCols);
  std::vector<float> scratch(static_cast<size_t>(prepared_floats(lanes, num_tokens, kCols)));
  for (auto _ : state) {
    const Activations rows =
        prepare_rows(*m.stream->pool, lanes, x.data(), kCols, num_tokens, kCols, scratch.data());
    parallel_product(
        *m.stream->pool, lanes, matrix, rows, num_tokens,
        [](int32_t, int32_t, int32_t, const float* y) { benchmark::DoNotOptimize(y[0]); });
  }
  const auto passes = static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(1e-9 * static_cast<double>(matrix.bytes()) * passes,
                                              benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * matrix.rows * static_cast<double>(kCols) * num_tokens * passes,
                         benchmark::Counter::kIsRate);
}

#if defined(__x86_64__)
// Pairs of MXFP4 tiles from memory, times groups of 16 tokens; compare with Product at 64 tokens.
void gemm(benchmark::State& state, const GemmKernels& gemm, int32_t num_tokens) {
  Machine& m = machine();
  constexpr int32_t kNumTiles = 2048;
  const PackedMatrix matrix{
      .data = m.memory.data(), .format = DType::kMXFP4, .rows = kNumTiles * 16, .cols = kCols};
  testing::Random random(1);
  const std::vector<float> x = random.uniforms(int64_t{num_tokens} * kCols);
  std::vector<uint16_t> groups(
      static_cast<size_t>(ceil_div(num_tokens, kGroupTokens) * group_values(kCols)));
  // Any bytes are codes; scales near one keep the sums finite.
  std::memset(m.memory.data(), 0x7B, static_cast<size_t>(matrix.bytes()));
  for (auto _ : state) {
    pack_groups(
        *m.stream->pool, gemm, [&](int32_t i) { return x.data() + int64_t{i} * kCols; }, num_tokens,
        kCols, groups.data());
    parallel_gemm(*m.stream->pool, gemm, matrix, groups.data(), num_tokens,
                  [](int32_t, int32_t, const float* sums) { benchmark::DoNotOptimize(sums[0]); });
  }
  state.counters["GFLOP/s"] =
      benchmark::Counter(2e-9 * matrix.rows * static_cast<double>(kCols) * num_tokens *
                             static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}
#endif

// experts of a layer of gpt-oss-20b; each launch has other experts than the launch before.
void experts(benchmark::State& state, const Row<ExpertsParams>& row, int32_t num_tokens) {
  Machine& m = machine();
  constexpr int32_t kNumExperts = 32, kTopK = 4;
  // Any bytes are codes; scales near one keep the sums finite.
  std::memset(m.memory.data(), 0x7B, kMemoryBytes);
  const PackedMatrix gate_up{.data = m.memory.data(),
                             .format = DType::kMXFP4,
                             .num_experts = kNumExperts,
                             .rows = 2 * kCols,
                             .cols = kCols};
  PackedMatrix down = gate_up;
  down.data += gate_up.bytes();
  down.rows = kCols;
  testing::Random random(1);
  std::vector<float> t = random.uniforms(int64_t{num_tokens} * kCols), x = t;
  const std::vector<float> bias(static_cast<size_t>(kNumExperts) * gate_up.rows);
  std::vector<int32_t> ids(static_cast<size_t>(num_tokens) * kTopK);
  std::vector<float> weights(ids.size(), 0.25f);
  ExpertsParams p{.num_tokens = num_tokens,
                  .hidden = kCols,
                  .intermediate = kCols,
                  .top_k = kTopK,
                  .t = t.data(),
                  .expert_ids = ids.data(),
                  .expert_weights = weights.data(),
                  .gate_up = gate_up,
                  .gate_up_bias = bias.data(),
                  .down = down,
                  .down_bias = bias.data(),
                  .x = x.data()};
  std::vector<std::byte> workspace(row.workspace(p));
  p.launch = {
      .stream = m.stream.get(), .workspace = workspace.data(), .workspace_bytes = workspace.size()};
  int64_t bytes = 0;
  for (auto _ : state) {
    std::bitset<kNumExperts> chosen;
    for (size_t i = 0; i < ids.size(); ++i) {
      // A token's experts are eight apart, so that it has none twice.
      ids[i] = (i % kTopK == 0 ? random.below(8) : ids[i - 1] + 8);
      chosen.set(static_cast<size_t>(ids[i]));
    }
    row.run(p);
    bytes += static_cast<int64_t>(chosen.count()) * (gate_up.expert_bytes() + down.expert_bytes());
  }
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * static_cast<double>(bytes), benchmark::Counter::kIsRate);
}

// The chosen row of each step, one after another, as a decode step of one token runs them.
template <typename P>
void add_step(KernelChooser& chooser, testing::Built<P>& built, std::vector<std::byte>& workspace,
              Stream& stream) {
  P params = built.params;
  const auto row = chooser.select(params);
  CHECK(row.has_value());
  workspace.resize(std::max<size_t>(workspace.size(), (*row)->workspace(params)));
  params.launch = {
      .stream = &stream, .workspace = workspace.data(), .workspace_bytes = workspace.size()};
  chooser.run(params);
}

void steps(benchmark::State& state, int32_t hidden, int32_t heads, int32_t kv_heads,
           int32_t intermediate, int32_t experts, int32_t vocab, int32_t num_layers) {
  Machine& m = machine();
  KernelChooser chooser(DeviceKind::kCpu, cpu_features(), {});
  auto qkv = build(
      testing::QkvCase{.hidden = hidden, .heads = heads, .kv_heads = kv_heads, .head_dim = 64});
  auto out = build(testing::OutCase{.rows = hidden, .cols = heads * 64});
  auto route = build(testing::RouteCase{.hidden = hidden, .experts = experts});
  auto expert = build(
      testing::ExpertsCase{.hidden = hidden, .intermediate = intermediate, .experts = experts});
  auto unembed = build(testing::UnembedCase{.hidden = hidden, .vocab = vocab});
  std::vector<std::byte> workspace;
  for (auto _ : state) {
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      add_step(chooser, qkv, workspace, *m.stream);
      out.reset();
      add_step(chooser, out, workspace, *m.stream);
      add_step(chooser, route, workspace, *m.stream);
      expert.reset();
      add_step(chooser, expert, workspace, *m.stream);
    }
    add_step(chooser, unembed, workspace, *m.stream);
  }
}

void register_all() {
  benchmark::RegisterBenchmark("Read", read_plain)->UseRealTime()->Unit(benchmark::kMillisecond);
  const struct {
    const LaneKernels* lanes;
    Features needs;
  } kVariants[] = {
    {&kLanesPortable, kFeatureNone},
#if defined(__x86_64__)
    {&kLanesAvx2, kAvx2},
    {&kLanesAvx512, kAvx512},
    {&kLanesAvx2I16, kAvx2},
    {&kLanesAvx2I8, kAvx2},
    {&kLanesAvxVnniI16, kAvx2 | kAvxVnni},
    {&kLanesAvxVnniI8, kAvx2 | kAvxVnni},
    {&kLanesAvx512VnniI16, kAvx512 | kAvx512Vnni},
    {&kLanesAvx512VnniI8, kAvx512 | kAvx512Vnni}
#elif defined(__aarch64__)
    {&kLanesNeonDotI16, kNeonDot},
    {&kLanesNeonDotI8, kNeonDot}
#endif
  };
  for (const auto& variant : kVariants) {
    if ((variant.needs & ~cpu_features()) != 0) continue;
    for (DType format : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kMXFP4}) {
      if (products_of_format(*variant.lanes, format).tile == nullptr) continue;
      for (int32_t num_tokens : {1, 2, 8, 64}) {
        const std::string name = std::string("Product/") + variant.lanes->name + "/" +
                                 std::string(dtype_name(format)) + "/" + std::to_string(num_tokens);
        benchmark::RegisterBenchmark(name.c_str(), product, *variant.lanes, format, num_tokens)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
#if defined(__x86_64__)
  const std::pair<const GemmKernels*, Features> kGemms[] = {
      {&kGemmAmx, kAvx512 | kAvx512Bf16 | kAmxBf16}, {&kGemmAvx512Bf16, kAvx512 | kAvx512Bf16}};
  for (const auto& [kernels, needs] : kGemms) {
    if ((needs & ~cpu_features()) != 0) continue;
    for (int32_t num_tokens : {4, 8, 16, 32, 64, 128, 256, 512}) {
      const std::string name =
          std::string("Gemm/") + kernels->name + "/mxfp4/" + std::to_string(num_tokens);
      benchmark::RegisterBenchmark(name.c_str(), gemm, *kernels, num_tokens)
          ->UseRealTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
#endif
  for (const Row<ExpertsParams>& row : Op<ExpertsParams>::rows()) {
    if (row.device != DeviceKind::kCpu || row.run == experts_reference ||
        (row.needs & ~cpu_features()) != 0)
      continue;
    for (const int32_t num_tokens : {1, 2, 8}) {
      const std::string name =
          std::string("Experts/") + row.name + "/mxfp4/" + std::to_string(num_tokens);
      benchmark::RegisterBenchmark(name.c_str(), experts, row, num_tokens)
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
  benchmark::RegisterBenchmark("Steps/hidden256_8_layers", steps, 256, 4, 2, 256, 16, 6000, 8)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark("Steps/gpt-oss-20b_1_layer", steps, 2880, 64, 8, 2880, 8, 16, 1)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

[[maybe_unused]] const bool is_registered = (register_all(), true);

}  // namespace
}  // namespace moxie
