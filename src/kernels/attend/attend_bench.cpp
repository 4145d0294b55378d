// How fast the CPU rows of attend read a cache that fits in no CPU cache: GB/s of K and V for one
// decode step of gpt-oss's shape (64 heads, 8 KV heads, head size 64), layer after layer.
//
//   moxie_kernels_bench --benchmark_filter=Attend    # Attend/<row>/<cache>/<keys>/<tokens>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/attend/attend.h"
#include "kernels/attend/attend_rows.h"
#include "kernels/features.h"
#include "kernels/testing/cases.h"

namespace moxie {
namespace {

constexpr int32_t kHeads = 64, kKvHeads = 8, kHeadDim = 64, kPageTokens = 16;
constexpr uint64_t kCacheBytes = uint64_t{256} << 20;

void attend(benchmark::State& state, const Row<AttendParams>& row, DType dtype, int32_t num_keys,
            int32_t num_tokens) {
  static const auto device = make_cpu_device();
  static const auto stream = device->make_stream().value();
  KvLayer kv{.page_table = nullptr, .page_tokens = kPageTokens, .dtype = dtype};
  const int64_t half_page = kKvHeads * kPageTokens * kv.row_bytes(kHeadDim);
  kv.page_stride_bytes = 2 * half_page;
  const int32_t num_pages = ceil_div(num_keys, kPageTokens);
  const auto layer_bytes = static_cast<uint64_t>(num_pages * kv.page_stride_bytes);
  const auto num_layers = static_cast<int64_t>(kCacheBytes / layer_bytes);
  const Buffer cache = device->allocate(kCacheBytes).value();
  testing::Random random(1);
  std::vector<std::byte> some(4099);  // 0 to 2 in every format
  for (std::byte& byte : some) byte = static_cast<std::byte>(random.below(0x40));
  for (uint64_t at = 0; at < kCacheBytes; at += some.size())
    std::memcpy(cache.data() + at, some.data(), std::min(some.size(), kCacheBytes - at));

  std::vector<int32_t> pages(static_cast<size_t>(num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  kv.page_table = pages.data();
  kv.table_stride = num_pages;
  std::vector<int32_t> positions(static_cast<size_t>(num_tokens));
  std::iota(positions.begin(), positions.end(), num_keys - num_tokens);
  const std::vector<int32_t> seq_idx(static_cast<size_t>(num_tokens), 0);
  const std::vector<int32_t> row_offsets = {0, num_tokens};
  const std::vector<float> q = random.uniforms(int64_t{num_tokens} * kHeads * kHeadDim);
  std::vector<float> a(q.size());
  AttendParams params;
  params.batch = {.num_tokens = num_tokens,
                  .num_seqs = 1,
                  .positions = positions.data(),
                  .seq_idx = seq_idx.data(),
                  .row_offsets = row_offsets.data()};
  params.num_heads = kHeads;
  params.num_kv_heads = kKvHeads;
  params.head_dim = kHeadDim;
  params.q = q.data();
  params.kv = kv;
  params.a = a.data();
  const Buffer workspace = device->allocate(row.workspace(params)).value();
  params.launch = {
      .stream = stream.get(), .workspace = workspace.data(), .workspace_bytes = workspace.bytes()};
  int64_t layer = 0;
  for (auto _ : state) {
    params.kv.k = cache.data() + static_cast<uint64_t>(layer) * layer_bytes;
    params.kv.v = params.kv.k + half_page;
    row.run(params);
    layer = (layer + 1) % num_layers;
  }
  state.counters["GB/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(layer_bytes) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

bool register_attend() {
  for (const Row<AttendParams>& row : Op<AttendParams>::rows()) {
    if (row.device != DeviceKind::kCpu || row.run == attend_reference ||
        (row.needs & ~cpu_features()) != 0)
      continue;
    for (DType dtype : {DType::kBF16, DType::kF8E4M3}) {
      for (int32_t num_keys : {128, 4096}) {
        for (int32_t num_tokens : {1, 8}) {
          const std::string name = std::string("Attend/") + row.name + "/" +
                                   std::string(dtype_name(dtype)) + "/" + std::to_string(num_keys) +
                                   "/" + std::to_string(num_tokens);
          benchmark::RegisterBenchmark(name.c_str(), attend, row, dtype, num_keys, num_tokens)
              ->UseRealTime()
              ->Unit(benchmark::kMicrosecond);
        }
      }
    }
  }
  return true;
}

[[maybe_unused]] const bool is_registered = register_attend();

}  // namespace
}  // namespace moxie
