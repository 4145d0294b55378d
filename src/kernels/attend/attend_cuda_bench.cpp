// Times the CUDA rows of attend side by side, at the shapes of gpt-oss-120b: prompts, chunks of
// prompts, decode tokens beside a chunk, decode tokens alone.
//   moxie_gpu_tests --gtest_also_run_disabled_tests --gtest_filter=AttendCudaTest.DISABLED_Rows*
#include <cuda_runtime_api.h>

#include <cstdio>
#include <functional>

#include "kernels/attend/attend_cuda_case.h"

namespace moxie::testing {
namespace {

struct Shape {
  const char* name;
  std::vector<Sequence> seqs;
};

std::vector<Sequence> decode_tokens(int32_t count, int32_t depth) {
  return std::vector<Sequence>(static_cast<size_t>(count), {depth - 1, 1});
}

// Microseconds of one launch: the median over graphs of several launches, each on a cache of its
// own, so that the L2 is cold.
class RowTimer {
 public:
  RowTimer(Device& device, Stream& stream) : device_(device), stream_(stream) {
    CHECK(cudaEventCreate(&begin_) == cudaSuccess && cudaEventCreate(&end_) == cudaSuccess, "");
  }
  ~RowTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  double median_us(int32_t num_launches, const std::function<void(int32_t)>& launch) {
    auto* native = static_cast<cudaStream_t>(stream_.native);
    const auto graph = device_.capture(stream_, [&] {
      for (int32_t i = 0; i < num_launches; ++i) launch(i);
    });
    CHECK(graph.has_value(), graph ? "" : graph.error().message());
    std::vector<float> times;
    for (int i = 0; i < 9; ++i) {
      cudaEventRecord(begin_, native);
      CHECK((*graph)->launch(stream_).has_value(), "graph");
      cudaEventRecord(end_, native);
      CHECK(stream_.synchronize().has_value(), "graph");
      float ms = 0;
      cudaEventElapsedTime(&ms, begin_, end_);
      if (i >= 2) times.push_back(1000 * ms / static_cast<float>(num_launches));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  Device& device_;
  Stream& stream_;
  cudaEvent_t begin_, end_;
};

TEST_F(AttendCudaTest, DISABLED_RowsSideBySide) {
  constexpr int32_t kHeads = 64, kKvHeads = 8, kDim = 64, kPage = 16;
  constexpr int64_t kCacheBytes = int64_t{5} << 30;
  Shape mix{"64 at 2,048 and a chunk of 1,024", decode_tokens(64, 2048)};
  mix.seqs.push_back({2048, 1024});
  const std::vector<Sequence> drafts(64, {2048, 8});
  const Shape shapes[] = {{"2,048 at 0", {{0, 2048}}},
                          {"8,192 at 0", {{0, 8192}}},
                          {"32,768 at 0", {{0, 32768}}},
                          {"2,048 at 30,000", {{30000, 2048}}},
                          {"64 at 4,096", {{4096, 64}}},
                          {"128 at 4,096", {{4096, 128}}},
                          {"256 at 4,096", {{4096, 256}}},
                          {"128 at 30,000", {{30000, 128}}},
                          {"256 at 30,000", {{30000, 256}}},
                          mix,
                          {"64 of 8 tokens at 2,048", drafts},
                          {"64 decode at 1,024", decode_tokens(64, 1024)},
                          {"64 decode at 8,192", decode_tokens(64, 8192)}};
  Buffer cache = take(device().allocate(kCacheBytes));
  std::mt19937 random(3);
  std::vector<uint32_t> noise(uint64_t{16} << 20);
  // BF16 and E4M3 from -2 to 2.
  for (uint32_t& x : noise) x = static_cast<uint32_t>(random()) & 0xBFBFBFBFu;
  for (int64_t at = 0; at < kCacheBytes; at += static_cast<int64_t>(noise.size()) * 4)
    done(device().copy_from_host(cache.data() + at, noise.data(), noise.size() * 4, stream()));
  done(stream().synchronize());

  RowTimer timer(device(), stream());
  std::printf("%-34s %6s %-8s %-42s %10s %8s\n", "tokens", "window", "cache", "row", "us",
              "TFLOPS");
  for (const Shape& shape : shapes) {
    std::vector<int32_t> positions, seq_idx, row_offsets{0}, table;
    int32_t stride = 0, num_pages = 0;
    for (const Sequence& seq : shape.seqs)
      stride = std::max(stride, ceil_div(seq.start + seq.count, kPage));
    for (size_t s = 0; s < shape.seqs.size(); ++s) {
      for (int32_t i = 0; i < shape.seqs[s].count; ++i) {
        positions.push_back(shape.seqs[s].start + i);
        seq_idx.push_back(static_cast<int32_t>(s));
      }
      row_offsets.push_back(static_cast<int32_t>(positions.size()));
      for (int32_t page = 0; page < stride; ++page) table.push_back(num_pages++);
    }
    std::shuffle(table.begin(), table.end(), random);
    AttendParams params{
        .launch = launch(), .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kDim};
    params.batch = {.num_tokens = static_cast<int32_t>(positions.size()),
                    .num_seqs = static_cast<int32_t>(shape.seqs.size()),
                    .positions = upload(positions),
                    .seq_idx = upload(seq_idx),
                    .row_offsets = upload(row_offsets)};
    const uint64_t count = positions.size() * kHeads * kDim;
    params.q = upload(normal_values(count, 1.0f, 4));
    params.sinks = upload(normal_values(kHeads, 1.0f, 5));
    const DeviceArray a = poisoned<float>(count);
    params.a = a.buffer.as<float>();
    params.kv = {.page_table = upload(table), .table_stride = stride, .page_tokens = kPage};
    for (const auto& [dtype, window] :
         {std::pair{DType::kBF16, 0}, std::pair{DType::kBF16, 128}, std::pair{DType::kF8E4M3, 0},
          std::pair{DType::kF8E4M3, 128}}) {
      params.kv.dtype = dtype;
      params.kv.page_stride_bytes = int64_t{2} * kKvHeads * kPage * params.kv.row_bytes(kDim);
      params.window = window;
      const int64_t layer_bytes = num_pages * params.kv.page_stride_bytes;
      const auto num_layers = static_cast<int32_t>(std::min<int64_t>(8, kCacheBytes / layer_bytes));
      double num_pairs = 0;  // pairs of a token and a key that it sees
      for (const int32_t position : positions)
        num_pairs += window > 0 ? std::min(window, position + 1) : position + 1;
      for (const auto& row : Op<AttendParams>::rows()) {
        const bool is_slow = std::string(row.name).find("_plain_") != std::string::npos;
        if (!can_run(row, params) || is_slow) continue;
        const DeviceArray workspace = poisoned<uint8_t>(row.workspace(params));
        params.launch.workspace = workspace.buffer.data();
        params.launch.workspace_bytes = workspace.bytes;
        const double us = timer.median_us(num_layers, [&](int32_t layer) {
          params.kv.k = cache.data() + layer * layer_bytes;
          params.kv.v = params.kv.k + params.kv.page_stride_bytes / 2;
          row.run(params);
        });
        std::printf("%-34s %6d %-8s %-42s %10.1f %8.1f\n", shape.name, window,
                    std::string(dtype_name(dtype)).c_str(), row.name, us,
                    num_pairs * 4 * kDim * kHeads / us / 1e6);
        std::fflush(stdout);
      }
    }
    size_t num_bad = 0;
    for (const float value : download<float>(a)) num_bad += !std::isfinite(value);
    EXPECT_EQ(num_bad, 0u) << shape.name;
    free_uploads();
  }
}

}  // namespace
}  // namespace moxie::testing
