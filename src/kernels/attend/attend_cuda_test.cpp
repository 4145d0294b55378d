// Every CUDA row of attend against the reference row on the CPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "kernels/attend/attend_cuda_case.h"
#include "kernels/embed/embed.h"

namespace moxie::testing {
namespace {

constexpr DType kHalfCaches[] = {DType::kBF16, DType::kF8E4M3};
constexpr DType kCaches[] = {DType::kBF16, DType::kF8E4M3, DType::kF32};

TEST_F(AttendCudaTest, EveryGroupMatchesTheReference) {
  const std::pair<int32_t, int32_t> shapes[] = {{8, 8},  {8, 2},  {4, 2},  {12, 4},
                                                {5, 1},  {14, 2}, {64, 8}, {64, 64},
                                                {18, 2}, {16, 1}, {24, 2}, {30, 2}};
  for (const auto& [heads, kv_heads] : shapes) {
    for (const DType dtype : kHalfCaches) {
      for (const int32_t window : {0, 128}) {
        AttendCudaCase test{.num_heads = heads, .num_kv_heads = kv_heads, .window = window};
        test.dtype = dtype;
        const bool is_of_prefill = heads == 8 * kv_heads;
        const int num_rows = 2 + (is_of_prefill ? static_cast<int>(prefill_rows(dtype).size()) : 0);
        test.seqs = {{150, 1}, {0, 21}};
        EXPECT_EQ(expect_rows_match(test), num_rows);
        test.seqs = {{301, 1}};
        EXPECT_EQ(expect_rows_match(test), num_rows);
      }
    }
  }
}

TEST_F(AttendCudaTest, EveryNumberOfTokensMatchesTheReference) {
  for (const int32_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33}) {
    for (const DType dtype : kHalfCaches) {
      for (const int32_t window : {0, 128}) {
        AttendCudaCase test{.num_heads = 16, .num_kv_heads = 2, .window = window, .dtype = dtype};
        test.seqs = {{190, count}};
        expect_rows_match(test);
        test.seqs.assign(static_cast<size_t>(count), {0, 1});
        for (int32_t i = 0; i < count; ++i) test.seqs[static_cast<size_t>(i)].start = 37 * i;
        expect_rows_match(test);
      }
    }
  }
}

TEST_F(AttendCudaTest, EveryPageSizeAndCacheTypeMatchesTheReference) {
  for (const int32_t page : {1, 5, 16, 64, 100}) {
    for (const DType dtype : kCaches) {
      for (const int32_t window : {0, 1, 33, 128}) {
        AttendCudaCase test{
            .num_heads = 8, .num_kv_heads = 2, .window = window, .page_tokens = page};
        test.dtype = dtype;
        test.seqs = {{0, 7}, {200, 1}, {61, 20}};
        expect_rows_match(test);
        test.seqs = {{203, 1}};
        expect_rows_match(test);
      }
    }
  }
}

TEST_F(AttendCudaTest, EveryDepthMatchesTheReference) {
  for (const int32_t depth : {0,   1,   14,  15,  16,  17,  31,  32,  33,   63,   126,  127, 128,
                              129, 143, 144, 255, 256, 257, 511, 512, 1000, 1023, 1024, 2049}) {
    for (const DType dtype : kHalfCaches) {
      for (const int32_t window : {0, 128, 300}) {
        for (const int32_t count : {1, 5}) {
          AttendCudaCase test{.num_heads = 8, .num_kv_heads = 1, .window = window, .dtype = dtype};
          test.seqs = {{depth, count}};
          expect_rows_match(test);
        }
      }
    }
  }
}

TEST_F(AttendCudaTest, FewKeysInALongTableMatchTheReference) {
  for (const int32_t depth : {0, 40, 127, 128, 300, 900, 4999}) {
    for (const DType dtype : kHalfCaches) {
      AttendCudaCase test{.num_heads = 16, .num_kv_heads = 2, .dtype = dtype};
      test.num_spare_pages = 8192;
      test.seqs = {{depth, 1}};
      expect_rows_match(test);
      test.seqs = {{depth, 3}, {depth / 2, 1}};
      expect_rows_match(test);
    }
  }
}

TEST_F(AttendCudaTest, TheShapeOfTheModelMatchesAtDepth) {
  for (const DType dtype : kHalfCaches) {
    for (const int32_t window : {0, 128}) {
      AttendCudaCase test{.window = window, .dtype = dtype};
      test.seqs = {{4999, 1}};
      expect_rows_match(test);
      test.seqs = {{2047, 4}};
      expect_rows_match(test);
    }
  }
  AttendCudaCase deep{.num_heads = 8, .num_kv_heads = 1};
  deep.seqs = {{33000, 1}};
  expect_rows_match(deep);
}

TEST_F(AttendCudaTest, RaggedMixesMatchTheReference) {
  std::mt19937 random(5);
  for (int i = 0; i < 24; ++i) {
    AttendCudaCase test{.num_heads = 8, .num_kv_heads = 2, .window = i % 2 == 0 ? 0 : 128};
    test.dtype = kHalfCaches[i / 2 % 2];
    test.seed = static_cast<uint32_t>(random());
    test.seqs.clear();
    // More than 32 sequences in one mix of six.
    const int num_seqs = (i % 6 == 0 ? 33 : 1) + static_cast<int>(random() % 5);
    for (int s = 0; s < num_seqs; ++s) {
      test.seqs.push_back({static_cast<int32_t>(random() % 400),
                           random() % 2 == 0 ? 1 : static_cast<int32_t>(random() % 30)});
    }
    test.seqs.push_back({3, 1});
    expect_rows_match(test);
  }
}

// Whole and part tiles of tokens, blocks of keys that begin and end anywhere, decode tokens beside.
TEST_F(AttendCudaTest, PrefillChunksMatchTheReference) {
  for (const DType dtype : kHalfCaches) {
    for (const int32_t window : {0, 1, 33, 128, 300}) {
      for (const bool use_sinks : {true, false}) {
        AttendCudaCase test{.window = window, .dtype = dtype, .use_sinks = use_sinks};
        test.seqs = {{0, 200}};
        expect_rows_match(test);
        test.num_heads = 16, test.num_kv_heads = 2;
        test.seqs = {{517, 77}, {40, 1}, {0, 24}, {1111, 25}, {127, 129}, {256, 23}};
        for (const int32_t page : {16, 48, 5}) {
          test.page_tokens = page;
          if (page != 5 || use_sinks) expect_rows_match(test);
        }
      }
      AttendCudaCase deep{.num_heads = 8, .num_kv_heads = 1, .window = window, .dtype = dtype};
      deep.seqs = {{6144, 100}};
      expect_rows_match(deep);
    }
  }
}

// Logits that leave the range in which weights need no maximum, in a later block than the first,
// twice; with and without the sink. A weight relative to the first block's would be infinite.
TEST_F(AttendCudaTest, PrefillFollowsLogitsThatJump) {
  for (const DType dtype : kHalfCaches) {
    for (const int32_t window : {0, 128, 300}) {
      for (const bool use_sinks : {true, false}) {
        AttendCudaCase test{.num_heads = 8,
                            .num_kv_heads = 1,
                            .window = window,
                            .dtype = dtype,
                            .use_sinks = use_sinks};
        test.loud_keys = {{300, 4.0f}, {500, 8.0f}, {700, 9.0f}};
        test.seqs = {{0, 900}, {250, 300}, {480, 250}};
        test.build();
        const std::vector<float> expected = reference(test);
        const AttendParams params = upload_case(test);
        for (const auto* row : prefill_rows(dtype))
          expect_close(run_row(*row, params, test.q.size()), expected, test, row->name);
        free_uploads();
      }
    }
  }
}

// More than a block that plans has threads.
TEST_F(AttendCudaTest, ManySequencesMatchTheReference) {
  for (const DType dtype : kHalfCaches) {
    for (const int32_t window : {0, 33}) {
      AttendCudaCase test{.num_heads = 8, .num_kv_heads = 1, .window = window, .dtype = dtype};
      test.seqs.clear();
      for (int32_t i = 0; i < 2100; ++i) test.seqs.push_back({i * 7 % 61, i % 100 == 0 ? 21 : 1});
      expect_rows_match(test);
    }
  }
}

// A warp takes a token's KV head alone, with rings of either length.
TEST_F(AttendCudaTest, WindowsOfManySequencesMatchTheReference) {
  for (const DType dtype : kHalfCaches) {
    for (const int32_t num_seqs : {90, 300}) {
      for (const int32_t group : {8, 5, 3}) {
        for (const float factor : {1.0f, 1e5f}) {
          AttendCudaCase test{.num_heads = 4 * group,
                              .num_kv_heads = 4,
                              .window = 128,
                              .dtype = dtype,
                              .use_sinks = group != 5,
                              .q_factor = factor};
          test.seqs.clear();
          for (int32_t i = 0; i < num_seqs; ++i)
            test.seqs.push_back({i * 37 % 401, i % 50 == 0 ? 2 : 1});
          expect_rows_match(test);
        }
      }
    }
  }
}

TEST_F(AttendCudaTest, WithoutSinksTheWeightsSumToOne) {
  for (const DType dtype : kCaches) {
    AttendCudaCase test{.num_heads = 8, .num_kv_heads = 2, .dtype = dtype, .use_sinks = false};
    test.seqs = {{300, 1}, {0, 20}};
    expect_rows_match(test);
    test.seqs = {{0, 1}};
    expect_rows_match(test);
  }
}

TEST_F(AttendCudaTest, GreatLogitsNeitherOverflowNorLoseTheSink) {
  for (const DType dtype : kCaches) {
    for (const float factor : {30.0f, 1000.0f, 1e6f}) {
      AttendCudaCase test{.num_heads = 8, .num_kv_heads = 2, .dtype = dtype, .q_factor = factor};
      test.seqs = {{40, 3}};
      expect_rows_match(test);
    }
  }
}

TEST_F(AttendCudaTest, EveryHeadSizeMatchesTheReference) {
  for (const int32_t dim : {16, 32, 80, 96, 128, 256, 512}) {
    for (const DType dtype : kCaches) {
      AttendCudaCase test{.num_heads = 4, .num_kv_heads = 2, .head_dim = dim, .dtype = dtype};
      test.seqs = {{70, 3}};
      EXPECT_EQ(expect_rows_match(test), 1);
    }
  }
}

TEST_F(AttendCudaTest, ARunTwiceGivesTheSameBits) {
  AttendCudaCase test;
  test.seqs = {{3000, 2}, {700, 1}, {500, 200}};
  test.build();
  const AttendParams params = upload_case(test);
  for (const auto& row : Op<AttendParams>::rows()) {
    if (!can_run(row, params)) continue;
    std::vector<float> first;
    for (int i = 0; i < 20; ++i) {
      const auto found = run_row(row, params, test.q.size());
      if (i == 0) first = found;
      ASSERT_EQ(std::memcmp(found.data(), first.data(), found.size() * 4), 0) << row.name << i;
    }
  }
}

TEST_F(AttendCudaTest, AMissingPageGivesNaN) {
  for (const DType dtype : kHalfCaches) {
    for (const int32_t count : {1, 3, 200}) {
      AttendCudaCase test{.dtype = dtype};
      test.seqs = {{1500, count}};
      if (count == 200) {  // so many that a warp takes a token's KV head alone
        test.window = 128;
        test.seqs.assign(200, {140, 1});
      }
      test.build();
      if (count == 200)
        std::ranges::fill(test.table, -1);
      else
        test.table[50] = -1;
      AttendParams params = upload_case(test);
      for (const auto& row : Op<AttendParams>::rows()) {
        if (!can_run(row, params)) continue;
        const DeviceArray a = poisoned<float>(test.q.size());
        const DeviceArray workspace = poisoned<uint8_t>(row.workspace(params));
        params.launch.workspace = workspace.buffer.data();
        params.launch.workspace_bytes = workspace.bytes;
        // Zeros: the poison is NaN as well.
        done(device().fill_zero(a.buffer.data(), a.bytes, stream()));
        params.a = a.buffer.as<float>();
        row.run(params);
        size_t num_numbers = 0;
        for (const float x : download<float>(a)) num_numbers += !std::isnan(x);
        EXPECT_EQ(num_numbers, 0u) << row.name;
      }
    }
  }
}

TEST_F(AttendCudaTest, RowsRefuseWhatTheyCannotRun) {
  AttendParams params{.num_heads = 64, .num_kv_heads = 8, .head_dim = 64};
  params.kv.page_tokens = 16;
  const auto& split = row_named("attend_any_f32_split_cuda");
  const auto& plain = row_named("attend_any_f32_plain_cuda");
  EXPECT_EQ(split.refuses(params), nullptr);
  EXPECT_EQ(plain.refuses(params), nullptr);
  EXPECT_LT(split.predict_us(params, {}), plain.predict_us(params, {}));
  const auto& prefill = row_named("attend_bf16_prefill_wgmma_sm90");
  EXPECT_EQ(prefill.refuses(params), nullptr);
  params.batch = {.num_tokens = 8, .num_seqs = 1};
  EXPECT_GT(prefill.predict_us(params, {}), split.predict_us(params, {}));
  params.batch = {.num_tokens = 64, .num_seqs = 64};
  EXPECT_GT(prefill.predict_us(params, {}), split.predict_us(params, {}));
  params.batch = {.num_tokens = 2048, .num_seqs = 1};
  EXPECT_LT(prefill.predict_us(params, {}), split.predict_us(params, {}));
  params.batch = {.num_tokens = 2048, .num_seqs = 1};
  for (const auto* row : prefill_rows(DType::kBF16)) {
    if (row == &prefill) continue;
    EXPECT_GT(row->predict_us(params, {}), prefill.predict_us(params, {})) << row->name;
    for (const int32_t window : {0, 128}) {
      AttendParams other = params;
      other.window = window;
      EXPECT_LT(row->predict_us(other, {}), split.predict_us(other, {})) << row->name;
      other.batch = {.num_tokens = 8, .num_seqs = 1};
      EXPECT_GT(row->predict_us(other, {}), split.predict_us(other, {})) << row->name;
      other.batch = {.num_tokens = 64, .num_seqs = 64};
      EXPECT_GT(row->predict_us(other, {}), split.predict_us(other, {})) << row->name;
    }
  }
  // Window layers of many sequences with a few tokens each.
  for (const auto* row : prefill_rows(DType::kBF16)) {
    if (std::string(row->name).find("_fa2_") == std::string::npos) continue;
    AttendParams other = params;
    other.batch = {.num_tokens = 512, .num_seqs = 64};
    EXPECT_GT(row->predict_us(other, {}), prefill.predict_us(other, {}));
    other.window = 128;
    EXPECT_LT(row->predict_us(other, {}), prefill.predict_us(other, {}));
    EXPECT_LT(row->predict_us(other, {}), split.predict_us(other, {}));
  }
  params.kv.page_tokens = 20;
  EXPECT_NE(prefill.refuses(params), nullptr);
  params.kv.page_tokens = 16;
  for (const DType dtype : kHalfCaches) {
    AttendParams of_cache = params;
    of_cache.kv.dtype = dtype;
    for (const auto* row : prefill_rows(dtype)) {
      AttendParams other = of_cache;
      EXPECT_EQ(row->refuses(other), nullptr) << row->name;
      EXPECT_LT(row->predict_us(other, {}), split.predict_us(other, {})) << row->name;
      other.kv.dtype = dtype == DType::kBF16 ? DType::kF8E4M3 : DType::kBF16;
      EXPECT_NE(row->refuses(other), nullptr) << row->name;
      other = of_cache;
      other.num_kv_heads = 4;
      EXPECT_NE(row->refuses(other), nullptr) << row->name;
      other = of_cache;
      other.head_dim = 128;
      EXPECT_NE(row->refuses(other), nullptr) << row->name;
    }
  }
  params.kv.dtype = DType::kF8E4M3;
  EXPECT_NE(prefill.refuses(params), nullptr);
  params.kv.dtype = DType::kF32;
  EXPECT_NE(split.refuses(params), nullptr);
  EXPECT_EQ(plain.refuses(params), nullptr);
  params.kv.dtype = DType::kF16;
  EXPECT_NE(plain.refuses(params), nullptr);
  params.kv.dtype = DType::kBF16;
  params.num_kv_heads = 2;
  EXPECT_NE(split.refuses(params), nullptr);
  EXPECT_NE(prefill.refuses(params), nullptr);
  params.num_kv_heads = 8;
  params.head_dim = 32;
  EXPECT_NE(split.refuses(params), nullptr);
  params.head_dim = 528;
  EXPECT_NE(plain.refuses(params), nullptr);
}

// A graph's launches keep their shape; positions, queries, pages and keys change below it.
TEST_F(AttendCudaTest, ACapturedLaunchFollowsThePositionsOnTheDevice) {
  std::vector<std::pair<const Row<AttendParams>*, DType>> cases;
  for (const DType dtype : kHalfCaches) {
    for (const auto* row : prefill_rows(dtype)) cases.emplace_back(row, dtype);
    cases.emplace_back(&row_named("attend_any_f32_split_cuda"), dtype);
  }
  for (const auto& [of_table, dtype] : cases) {
    const auto& row = *of_table;
    for (const int32_t window : {0, 128}) {
      AttendCudaCase deep{.window = window, .dtype = dtype};
      AttendCudaCase shallow{.window = window, .dtype = dtype};
      deep.seqs = {{1800, 1}, {333, 1}};
      shallow.seqs = {{90, 1}, {1801, 1}};
      shallow.seed = 2;
      deep.build();
      shallow.build();
      ASSERT_EQ(deep.table_stride, shallow.table_stride);
      const uint64_t cache_bytes = std::max(deep.cache.size(), shallow.cache.size());
      deep.cache.resize(cache_bytes, 0xFF);
      AttendParams params = upload_case(deep);
      const DeviceArray a = poisoned<float>(deep.q.size());
      params.a = a.buffer.as<float>();
      const DeviceArray workspace = poisoned<uint8_t>(row.workspace(params));
      params.launch.workspace = workspace.buffer.data();
      params.launch.workspace_bytes = workspace.bytes;
      const auto graph = take(device().capture(stream(), [&] { row.run(params); }));
      for (const AttendCudaCase* test : {&deep, &shallow, &deep}) {
        const auto send = [&](const void* to, const auto& values) {
          done(device().copy_from_host(const_cast<void*>(to), values.data(),
                                       values.size() * sizeof(values[0]), stream()));
        };
        send(params.batch.positions, test->positions);
        send(params.q, test->q);
        send(params.kv.page_table, test->table);
        send(params.kv.k, test->cache);
        done(graph->launch(stream()));
        expect_close(download<float>(a), reference(*test), *test, row.name);
      }
    }
  }
}

// Time of a launch in a graph of launches, each on a cache of its own so that the L2 is cold, for
// the shape of gpt-oss. "chained": attend after attend, as programmatic launches, so that a launch
// fetches its old keys while the one before it works. "alternating": with launches that see a
// window of 128 keys, whose own time when chained is taken off. "after a kernel": behind a kernel
// that it cannot overlap with (an embed of one token, whose own time is taken off).
TEST_F(AttendCudaTest, DISABLED_Bench) {
  constexpr double kPeak = 4.62e12;  // bytes a second that an H200 reads
  constexpr int32_t kHeads = 64, kKvHeads = 8, kDim = 64, kPage = 16;
  const auto& row = row_named("attend_any_f32_split_cuda");
  const auto* embed = &Op<EmbedParams>::rows()[0];
  for (const auto& other : Op<EmbedParams>::rows()) {
    if (other.device == DeviceKind::kCuda) embed = &other;
  }
  auto* native = static_cast<cudaStream_t>(stream().native);
  cudaEvent_t begin, end;
  ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  const auto time_us = [&](const std::function<void()>& launches) {
    const auto graph = take(device().capture(stream(), launches));
    std::vector<float> times;
    for (int i = 0; i < 13; ++i) {
      cudaEventRecord(begin, native);
      done(graph->launch(stream()));
      cudaEventRecord(end, native);
      done(stream().synchronize());
      float ms = 0;
      cudaEventElapsedTime(&ms, begin, end);
      if (i >= 3) times.push_back(1000 * ms);
    }
    std::sort(times.begin(), times.end());
    return static_cast<double>(times[times.size() / 2]);
  };

  constexpr uint64_t kCacheBytes = uint64_t{5} << 30;
  Buffer cache = take(device().allocate(kCacheBytes));
  std::mt19937 random(3);
  std::vector<uint32_t> noise(uint64_t{16} << 20);
  // BF16 and E4M3 of ordinary size: the exponents' top bits are cleared.
  for (uint32_t& x : noise) x = static_cast<uint32_t>(random()) & 0xBFBFBFBFu;
  for (uint64_t at = 0; at < kCacheBytes; at += noise.size() * 4) {
    done(device().copy_from_host(cache.data() + at, noise.data(), noise.size() * 4, stream()));
  }
  done(stream().synchronize());

  std::printf("%-8s %6s %6s %6s | %16s | %16s | %16s | %s\n", "cache", "depth", "window", "tokens",
              "chained us, share", "alternating", "after a kernel", "host us");
  for (const DType dtype : kHalfCaches) {
    for (const int32_t tokens : {1, 2, 4, 8, 512}) {
      for (const int32_t depth : {128, 2048, 8192, 32768}) {
        for (const int32_t window : {0, 128}) {
          if (window > 0 && depth != 2048) continue;
          if (tokens > 1 && tokens < 512 && depth != 2048 && depth != 32768) continue;
          if (tokens == 512 && depth != 2048) continue;
          const int32_t seen = window > 0 ? std::min(depth, window) : depth;
          const int32_t first_page = (depth - seen) / kPage, num_pages = ceil_div(depth, kPage);
          const int64_t row_bytes = static_cast<int64_t>(dtype_bytes(dtype, kDim));
          const int64_t page_bytes = 2 * kKvHeads * kPage * row_bytes;
          const int64_t layer_bytes = (num_pages - first_page) * page_bytes;
          const auto num_layers = static_cast<int32_t>(
              std::clamp<int64_t>((int64_t{256} << 20) / layer_bytes, 36, 720));
          ASSERT_LE(static_cast<uint64_t>((num_layers + 1) * layer_bytes), kCacheBytes);
          std::vector<int32_t> order(static_cast<size_t>(num_pages - first_page));
          for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
          std::shuffle(order.begin(), order.end(), random);
          std::vector<int32_t> table(static_cast<size_t>(num_pages), -1), positions;
          std::copy(order.begin(), order.end(), table.begin() + first_page);
          for (int32_t t = 0; t < tokens; ++t) positions.push_back(depth - tokens + t);
          const std::vector<int32_t> zeros(static_cast<size_t>(tokens), 0);
          AttendParams params{.launch = launch(),
                              .num_heads = kHeads,
                              .num_kv_heads = kKvHeads,
                              .head_dim = kDim,
                              .window = window};
          params.batch = {.num_tokens = tokens,
                          .num_seqs = 1,
                          .positions = upload(positions),
                          .seq_idx = upload(zeros),
                          .row_offsets = upload(std::vector<int32_t>{0, tokens})};
          const auto count = static_cast<uint64_t>(tokens * kHeads * kDim);
          params.q = upload(normal_values(count, 1.0f, 4));
          params.sinks = upload(normal_values(kHeads, 1.0f, 5));
          const DeviceArray a = poisoned<float>(count);
          params.a = a.buffer.as<float>();
          params.kv = {.page_stride_bytes = page_bytes,
                       .page_table = upload(table),
                       .table_stride = num_pages,
                       .page_tokens = kPage,
                       .dtype = dtype};
          const auto attend = [&](int32_t layer) {
            params.kv.k = cache.data() + layer * layer_bytes;
            params.kv.v = params.kv.k + page_bytes / 2;
            row.run(params);
          };
          const DeviceArray x = poisoned<float>(2880);
          EmbedParams small{.launch = launch(), .num_tokens = 1, .token_ids = upload(zeros)};
          small.table = {.data = cache.data(), .format = DType::kBF16, .rows = 1, .cols = 2880};
          small.x = x.buffer.as<float>();
          const auto before = std::chrono::steady_clock::now();
          for (int32_t i = 0; i < 36; ++i) attend(i);
          const std::chrono::duration<double, std::micro> host =
              std::chrono::steady_clock::now() - before;
          const double chained = time_us([&] {
                                   for (int32_t i = 0; i < num_layers; ++i) attend(i);
                                 }) /
                                 num_layers;
          // Every other launch sees a window of keys that all share, as in the model.
          AttendParams narrow = params;
          narrow.window = 128;
          narrow.kv.k = cache.data() + (num_pages - first_page) * page_bytes * num_layers;
          const auto attend_narrow = [&] {
            narrow.kv.v = narrow.kv.k + page_bytes / 2;
            row.run(narrow);
          };
          const double pairs = time_us([&] {
            for (int32_t i = 0; i < num_layers; ++i) attend_narrow(), attend(i);
          });
          const double narrows = time_us([&] {
            for (int32_t i = 0; i < num_layers; ++i) attend_narrow();
          });
          const double alternating = (pairs - narrows) / num_layers;
          const double both = time_us([&] {
            for (int32_t i = 0; i < num_layers; ++i) embed->run(small), attend(i);
          });
          const double embeds = time_us([&] {
            for (int32_t i = 0; i < num_layers; ++i) embed->run(small);
          });
          const double after = (both - embeds) / num_layers;
          const double bytes = 2.0 * kKvHeads * seen * static_cast<double>(row_bytes);
          std::printf("%-8s %6d %6d %6d | %8.2f %6.1f%% | %8.2f %6.1f%% | %8.2f %6.1f%% | %5.1f\n",
                      std::string(dtype_name(dtype)).c_str(), depth, window, tokens, chained,
                      100 * bytes / kPeak / chained * 1e6, alternating,
                      100 * bytes / kPeak / alternating * 1e6, after,
                      100 * bytes / kPeak / after * 1e6, host.count() / 36);
          size_t num_bad = 0;
          for (const float value : download<float>(a)) num_bad += !std::isfinite(value);
          EXPECT_EQ(num_bad, 0u);
          free_uploads();
        }
      }
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

}  // namespace
}  // namespace moxie::testing
