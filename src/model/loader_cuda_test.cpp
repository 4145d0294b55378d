// Loading on a GPU: repack kernels against the host's packer byte by byte, whole checkpoints in
// every form, synthetic models against the CPU's, and faults that must leave no memory behind.
#include "model/loader_cuda.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "core/cuda.h"
#include "kernels/testing/cuda_test.h"
#include "model/checkpoint.h"
#include "model/embedded.h"
#include "model/synthetic_cuda.h"
#include "model/testing/files.h"
#include "model/testing/host_cuda_device.h"
#include "model/testing/memory_checkpoint.h"
#include "model/testing/small_config.h"
#include "weights/safetensors.h"
#include "weights/synthetic.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Kind = StoredRows::Kind;

class LoaderCuda : public CudaTest {
 protected:
  std::vector<std::byte> bytes_of(const std::byte* data, int64_t bytes) {
    std::vector<std::byte> out(static_cast<size_t>(bytes));
    done(device().copy_to_host(out.data(), data, out.size(), stream()));
    done(stream().synchronize());
    return out;
  }
  void expect_bytes(const std::byte* ours, const std::byte* expected, int64_t bytes,
                    const std::string& what) {
    const std::vector<std::byte> found = bytes_of(ours, bytes);
    int64_t num_wrong = 0, first = -1;
    for (int64_t i = 0; i < bytes; ++i) {
      if (found[static_cast<size_t>(i)] == expected[i]) continue;
      if (num_wrong++ == 0) first = i;
    }
    EXPECT_EQ(num_wrong, 0) << what << ": of " << bytes << " bytes, the first at " << first;
  }
  static uint64_t free_bytes() {
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    return available;
  }
};

struct StoredFormat {
  Kind kind;
  bool is_transposed;
  int64_t row_bytes(int64_t rows, int32_t cols) const {
    switch (kind) {
      case Kind::kF32:
        return 4 * (is_transposed ? rows : cols);
      case Kind::kQ8_0:
        return cols / 32 * 34;
      case Kind::kMxfp4Split:
        return cols / 32 * 16;
      case Kind::kMxfp4Gguf:
        return cols / 32 * 17;
      default:
        return 2 * (is_transposed ? rows : cols);
    }
  }
};

// Random stored bytes: blocks with any code, values of many sizes and some zeros, no NaN.
std::vector<std::byte> random_stored(const StoredFormat& format, int64_t rows, int32_t cols,
                                     std::mt19937& random) {
  const int64_t lines = format.is_transposed ? cols : rows;
  const int64_t row_bytes = format.row_bytes(rows, cols);
  std::vector<std::byte> bytes(static_cast<size_t>(lines * row_bytes));
  const auto put = [&](size_t at, uint64_t value, size_t count) {
    std::memcpy(bytes.data() + at, &value, count);
  };
  const auto value = [&] {
    if (random() % 8 == 0) return 0.0f;
    const float magnitude = std::ldexp(1.0f + static_cast<float>(random() % 4096) / 4096,
                                       static_cast<int>(random() % 24) - 14);
    return random() % 2 == 0 ? magnitude : -magnitude;
  };
  if (format.kind == Kind::kF32)
    for (size_t i = 0; i < bytes.size(); i += 4) put(i, f32_to_bits(value()), 4);
  else if (format.kind == Kind::kF16)
    for (size_t i = 0; i < bytes.size(); i += 2) put(i, f32_to_f16(value()), 2);
  else if (format.kind == Kind::kBF16)
    for (size_t i = 0; i < bytes.size(); i += 2) put(i, f32_to_bf16(value()), 2);
  else
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  if (format.kind == Kind::kQ8_0)
    for (size_t i = 0; i < bytes.size(); i += 34) put(i, f32_to_f16(value()), 2);
  if (format.kind == Kind::kMxfp4Gguf)
    for (size_t i = 0; i < bytes.size(); i += 17) put(i, random() % 200 + 20, 1);
  return bytes;
}

TEST_F(LoaderCuda, RepackedMatricesAreTheHostsByteByByte) {
  std::mt19937 random(11);
  const StoredFormat formats[] = {{Kind::kF32, false},        {Kind::kF16, false},
                                  {Kind::kBF16, false},       {Kind::kQ8_0, false},
                                  {Kind::kMxfp4Split, false}, {Kind::kMxfp4Gguf, false},
                                  {Kind::kF32, true},         {Kind::kBF16, true}};
  const DType targets[] = {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kMXFP4, DType::kMXFP8};
  int num_cases = 0;
  for (const StoredFormat& format : formats) {
    for (const DType target : targets) {
      if ((target == DType::kQ8_0) != (format.kind == Kind::kQ8_0) && target == DType::kQ8_0)
        continue;
      for (int n = 0; n < 6; ++n) {
        const auto order = static_cast<PackedRowOrder>(n % 3);
        const int32_t head_dim = n < 3 ? 64 : 32;
        const int32_t cols = 32 * (1 + static_cast<int32_t>(random() % 9));
        int32_t rows = 1 + static_cast<int32_t>(random() % 130);
        if (order == PackedRowOrder::kQkv) rows = round_up(rows, head_dim);
        // Sources may be rows in turn of one tensor, or a part further down.
        const int32_t step = order == PackedRowOrder::kGateUp ? 2 : 1;
        const int32_t first = order == PackedRowOrder::kGateUp ? 0 : 3;
        const int64_t stored_rows = first + int64_t{rows} * step;
        const std::vector<std::byte> stored = random_stored(format, stored_rows, cols, random);
        std::vector<std::byte> scales;
        if (format.kind == Kind::kMxfp4Split) {
          scales.resize(static_cast<size_t>(stored_rows * cols / 32));
          for (std::byte& scale : scales) scale = static_cast<std::byte>(random() % 200 + 20);
        }
        MatrixRepack repack{.order = order, .head_dim = head_dim};
        repack.sources[0] = {.rows = {.kind = format.kind,
                                      .data = stored.data(),
                                      .scales = scales.empty() ? nullptr : scales.data(),
                                      .row_stride_bytes = format.row_bytes(stored_rows, cols),
                                      .scale_stride_bytes = cols / 32,
                                      .cols = cols,
                                      .transposed = format.is_transposed},
                             .first = first,
                             .step = step,
                             .num_rows = rows};
        repack.sources[1] = repack.sources[0];
        repack.sources[1].first = 1;
        repack.target = {.format = target,
                         .layout = PackedLayout::kFragment16x32,
                         .rows = order == PackedRowOrder::kGateUp ? 2 * round_up(rows, 16) : rows,
                         .cols = cols};
        repack.num_tiles = repack.target.num_tiles();
        const auto target_bytes = static_cast<size_t>(repack.target.units_bytes());
        std::vector<std::byte> expected(static_cast<size_t>(repack.target.bytes()));
        int32_t nan_row = kNoNanRow;
        if (n == 5 && !scales.empty()) scales[static_cast<size_t>(4 * cols / 32)] = std::byte{255};
        repack.target.data = expected.data();
        repack.nan_row = &nan_row;
        repack_on_host(repack);

        const DeviceArray ours = poisoned<std::byte>(expected.size());
        MatrixRepack on_device = repack;
        for (RepackSource& source : on_device.sources) {
          source.rows.data = upload(stored);
          if (!scales.empty()) source.rows.scales = upload(scales);
        }
        on_device.target.data = ours.buffer.data();
        on_device.nan_row = upload(std::vector<int32_t>{kNoNanRow});
        repack_on_device(on_device, stream());
        std::vector<std::byte> found = download<std::byte>(ours);
        found.resize(target_bytes);
        expected.resize(target_bytes);
        // What a NaN scale makes of values is nobody's: the row is reported instead.
        EXPECT_TRUE(found == expected || nan_row != kNoNanRow) << fmt::format(
            "kind {} transposed {} to {}, order {}, {} x {}", static_cast<int>(format.kind),
            format.is_transposed, dtype_name(target), static_cast<int>(order), rows, cols);
        int32_t found_row = 0;
        done(device().copy_to_host(&found_row, on_device.nan_row, 4, stream()));
        done(stream().synchronize());
        EXPECT_EQ(found_row, nan_row);
        ++num_cases;
      }
    }
  }
  EXPECT_GT(num_cases, 150);
}

// Everything that `ours` (on the device) holds, against `expected` in memory of the host.
#define EXPECT_SAME_PART(part, bytes)                      \
  expect_bytes(reinterpret_cast<const std::byte*>(a.part), \
               reinterpret_cast<const std::byte*>(b.part), static_cast<int64_t>(bytes), #part)

class WholeModels : public LoaderCuda {
 protected:
  void expect_matrix(const PackedMatrix& ours, const PackedMatrix& expected,
                     const std::string& what) {
    ASSERT_EQ(ours.format, expected.format);
    // The few bytes between one expert and the next are nobody's.
    const int64_t used = ours.units_bytes();
    for (int32_t e = 0; e < ours.num_experts; ++e)
      expect_bytes(ours.expert(e).data, expected.expert(e).data, used,
                   what + " of expert " + std::to_string(e));
  }
  void expect_model(const GptOssConfig& c, const ModelWeights& ours, const ModelWeights& expected) {
    {
      const ModelWeights &a = ours, &b = expected;
      EXPECT_SAME_PART(embedding.data, a.embedding.bytes());
      EXPECT_SAME_PART(final_norm, 4 * c.hidden);
    }
    for (size_t l = 0; l < ours.layers.size(); ++l) {
      const LayerWeights &a = ours.layers[l], &b = expected.layers[l];
      const int64_t experts = c.num_experts;
      EXPECT_SAME_PART(input_norm, 4 * c.hidden);
      EXPECT_SAME_PART(qkv_bias, 4 * c.qkv_width());
      EXPECT_SAME_PART(sinks, 4 * c.num_heads);
      EXPECT_SAME_PART(out_bias, 4 * c.hidden);
      EXPECT_SAME_PART(post_norm, 4 * c.hidden);
      EXPECT_SAME_PART(router_bias, 4 * experts);
      EXPECT_SAME_PART(gate_up_bias, 4 * experts * a.gate_up.rows);
      EXPECT_SAME_PART(down_bias, 4 * experts * c.hidden);
      const std::string at = "layer " + std::to_string(l) + " ";
      expect_matrix(a.qkv, b.qkv, at + "qkv");
      expect_matrix(a.out, b.out, at + "out");
      expect_matrix(a.router, b.router, at + "router");
      expect_matrix(a.gate_up, b.gate_up, at + "gate_up");
      expect_matrix(a.down, b.down, at + "down");
    }
    expect_matrix(ours.head, expected.head, "head");
  }
  // On the GPU and on a device of the same kind in memory of the host.
  void expect_loads_alike(const std::string& model, LoadOptions options = {}) {
    options.show_progress = false;
    auto checkpoint = open_checkpoint(model);
    ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
    HostCudaDevice host;
    auto expected = (*checkpoint)->load(host, options);
    auto ours = (*checkpoint)->load(device(), options);
    ASSERT_TRUE(expected.has_value()) << expected.error().message();
    ASSERT_TRUE(ours.has_value()) << ours.error().message();
    EXPECT_GT(ours->timeline.copy_s, 0);
    EXPECT_GT(ours->timeline.repack_s, 0);
    expect_model((*checkpoint)->config(), *ours, *expected);
  }

  // The embedded model's files, written out.
  fs::path tiny_folder() {
    const fs::path folder =
        fs::path(testing::TempDir()) / ("moxie_tiny_" + std::to_string(::getpid()));
    if (fs::exists(folder)) return folder;
    fs::create_directories(folder);
    const EmbeddedModel& model = embedded_model();
    std::ofstream(folder / "model.safetensors", std::ios::binary)
        .write(reinterpret_cast<const char*>(model.weights.data()),
               static_cast<std::streamsize>(model.weights.size()));
    std::ofstream(folder / "config.json") << model.config_json;
    return folder;
  }
};

TEST_F(WholeModels, LoadAlikeInEveryForm) {
  expect_loads_alike("embedded");
  expect_loads_alike("embedded", {.mxfp4_layers = {true, true, true}});
  expect_loads_alike("embedded", {.mxfp8_layers = {true, true, true}});
  const fs::path folder = tiny_folder();
  expect_loads_alike(folder.string());
  MemoryCheckpoint source = MemoryCheckpoint::read(folder.string());
  write(folder / "o/model.safetensors", source.original().safetensors());
  write(folder / "o/config.json", original_config_json(source.config));
  expect_loads_alike((folder / "o").string());
  write(folder / "dense/model.safetensors", source.with_dense_experts().safetensors());
  write(folder / "dense/config.json", config_json(source.config));
  expect_loads_alike((folder / "dense").string());
  const fs::path gguf = folder / "gguf/model.gguf";
  for (const uint32_t dense_type : {0u, 1u, 8u, 30u}) {
    write(gguf, source.gguf({.dense_type = dense_type})[0]);
    expect_loads_alike(gguf.string());
  }
  write(gguf, source.gguf({.is_merged = true})[0]);
  expect_loads_alike(gguf.string(), {.mxfp4_layers = {true, true, true}});
  write(gguf, source.gguf({.is_old = true})[0]);
  expect_loads_alike(gguf.string());
}

TEST_F(WholeModels, FaultsAreNamedAndLeaveNoMemoryBehind) {
  const fs::path folder = tiny_folder();
  MemoryCheckpoint source = MemoryCheckpoint::read(folder.string());
  const std::string scales = "model.layers.1.mlp.experts.down_proj_scales";
  MemoryCheckpoint damaged = source;
  damaged.at(scales).bytes[7] = '\xFF';
  write(folder / "nan/model.safetensors", damaged.safetensors());
  write(folder / "nan/config.json", config_json(source.config));
  const uint64_t before = free_bytes();
  {
    auto checkpoint = open_checkpoint((folder / "nan").string());
    ASSERT_TRUE(checkpoint.has_value());
    const auto loaded = (*checkpoint)->load(device(), {.show_progress = false});
    ASSERT_FALSE(loaded.has_value());
    EXPECT_NE(loaded.error().message().find(scales + ": found the scale byte 255"),
              std::string::npos)
        << loaded.error().message();
  }
  {  // shortened between opening and loading, and then during loading as far as tests can say
    const fs::path file = folder / "nan/model.safetensors";
    write(file, source.safetensors());
    auto checkpoint = open_checkpoint((folder / "nan").string());
    ASSERT_TRUE(checkpoint.has_value());
    fs::resize_file(file, fs::file_size(file) / 2);
    const auto loaded = (*checkpoint)->load(device(), {.show_progress = false});
    ASSERT_FALSE(loaded.has_value());
    EXPECT_NE(loaded.error().message().find("shortened"), std::string::npos);
  }
  {  // in the middle of the pipeline
    const fs::path file = folder / "nan/model.safetensors";
    write(file, source.safetensors());
    StoredWeights stored;
    FaultList faults;
    stored.files.push_back(read_safetensors(take(MappedFile::open(file.string()))));
    find_weights(source.config, FileFormat::kHuggingFace, &stored, &faults);
    ASSERT_TRUE(faults.empty());
    auto place = make_weights(source.config, packed_formats(source.config, stored, {}), device());
    ASSERT_TRUE(place.has_value());
    fs::resize_file(file, fs::file_size(file) / 2);
    LoadProgress progress(false, "", 1);
    const Status status = load_weights_cuda(source.config, stored, device(), *place, progress);
    ASSERT_FALSE(status.has_value());
    EXPECT_NE(status.error().message().find("shortened"), std::string::npos);
  }
  {  // more memory than the device has
    auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
    std::vector<Buffer> others;
    while (free_bytes() > uint64_t{48} << 30)
      others.push_back(take(device().allocate(uint64_t{16} << 30)));
    const auto loaded = (*checkpoint)->load(device(), {.show_progress = false});
    ASSERT_FALSE(loaded.has_value());
    EXPECT_NE(loaded.error().message().find("cannot allocate"), std::string::npos)
        << loaded.error().message();
  }
  constexpr uint64_t kGrain = 2 << 20;  // in which the driver takes and gives memory
  EXPECT_GE(free_bytes() + kGrain, before);
}

TEST_F(WholeModels, SyntheticOnesHoldTheCpusValues) {
  const fs::path config = fs::path(testing::TempDir()) / "moxie_synthetic_config.json";
  const GptOssConfig small = small_config();
  write(config, config_json(small));
  auto checkpoint = open_checkpoint("synthetic:" + config.string());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  const auto cpu_device = make_cpu_device(2);
  for (const bool is_mxfp4 : {false, true}) {
    const LoadOptions options{
        .mxfp4_layers = {is_mxfp4, is_mxfp4, is_mxfp4}, .show_progress = false, .seed = 5};
    auto cpu = (*checkpoint)->load(*cpu_device, options);
    auto ours = (*checkpoint)->load(device(), options);
    ASSERT_TRUE(cpu.has_value() && ours.has_value());
    const std::vector<std::byte> memory =
        bytes_of(ours->storage[0].data(), static_cast<int64_t>(ours->packed_bytes));
    const auto on_host = [&](PackedMatrix matrix) {
      matrix.data = memory.data() + (matrix.data - ours->storage[0].data());
      return matrix;
    };
    const auto expect_matrix = [&](const PackedMatrix& made, const PackedMatrix& expected,
                                   auto&& row_of, auto&& cpu_row_of) {
      const PackedMatrix a = on_host(made);
      int64_t num_wrong = 0;
      for (int32_t e = 0; e < a.num_experts; ++e)
        for (int32_t r = 0; r < a.rows; ++r)
          for (int32_t k = 0; k < a.cols; ++k)
            num_wrong += fragment_value(a.expert(e), row_of(r), k) !=
                         packed_value(expected.expert(e), cpu_row_of(r), k);
      EXPECT_EQ(num_wrong, 0) << a.rows << " x " << a.cols;
      for (int32_t r = a.rows; r < 16 * a.num_tiles(); ++r)
        for (int32_t k = 0; k < a.cols; ++k) ASSERT_EQ(fragment_value(a, r, k), 0);
    };
    const auto same = [](int32_t r) { return r; };
    expect_bytes(ours->embedding.data, cpu->embedding.data, cpu->embedding.bytes(), "embedding");
    expect_matrix(ours->head, cpu->head, same, same);
    for (size_t l = 0; l < 2; ++l) {
      const LayerWeights &a = ours->layers[l], &b = cpu->layers[l];
      expect_matrix(a.qkv, b.qkv, same, [](int32_t r) { return fragment_qkv_row(r, 64); });
      expect_matrix(a.out, b.out, same, same);
      expect_matrix(a.router, b.router, same, same);
      expect_matrix(a.down, b.down, same, same);
      expect_matrix(
          a.gate_up, b.gate_up, [](int32_t r) { return fragment_gate_up_row(r / 2, r % 2); },
          [](int32_t r) { return gate_up_packed_row(r / 2, r % 2); });
      EXPECT_SAME_PART(post_norm, 4 * small.hidden);
      EXPECT_SAME_PART(gate_up_bias, 4 * small.num_experts * a.gate_up.rows);
      EXPECT_SAME_PART(down_bias, 4 * small.num_experts * small.hidden);
    }
  }
}

TEST_F(WholeModels, SyntheticMxfp8IsItsBf16ValuesQuantised) {
  PackedMatrix bf16{
      .format = DType::kBF16, .layout = PackedLayout::kFragment16x32, .rows = 50, .cols = 96};
  PackedMatrix mxfp8 = bf16;
  mxfp8.format = DType::kMXFP8;
  const DeviceArray exact = poisoned<std::byte>(static_cast<uint64_t>(bf16.bytes()));
  const DeviceArray ours = poisoned<std::byte>(static_cast<uint64_t>(mxfp8.bytes()));
  bf16.data = exact.buffer.data();
  mxfp8.data = ours.buffer.data();
  fill_random_matrix_cuda(bf16, PackedRowOrder::kNatural, 64, 0.02, 9, stream());
  fill_random_matrix_cuda(mxfp8, PackedRowOrder::kNatural, 64, 0.02, 9, stream());
  const std::vector<std::byte> a = download<std::byte>(exact), b = download<std::byte>(ours);
  bf16.data = a.data();
  mxfp8.data = b.data();
  for (int32_t r = 0; r < bf16.rows; ++r) {
    for (int32_t block = 0; block < 3; ++block) {
      float values[32];
      uint8_t codes[32];
      for (int k = 0; k < 32; ++k)
        values[k] = static_cast<float>(fragment_value(bf16, r, 32 * block + k));
      const float scale = e8m0_to_f32(quantize_mxfp8(values, codes));
      for (int k = 0; k < 32; ++k)
        ASSERT_EQ(fragment_value(mxfp8, r, 32 * block + k), double{e4m3_to_f32(codes[k])} * scale);
    }
  }
}

TEST_F(WholeModels, LargeSyntheticModelIsMadeInSeconds) {
  auto checkpoint = open_checkpoint("synthetic:gpt-oss-120b");
  ASSERT_TRUE(checkpoint.has_value());
  if (free_bytes() < (uint64_t{70} << 30)) GTEST_SKIP() << "needs 70 GiB of device memory";
  const auto loaded = (*checkpoint)->load(device(), {.show_progress = false});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  std::printf("synthetic:gpt-oss-120b, %.1f GB: %.3f s\n",
              static_cast<double>(loaded->packed_bytes) * 1e-9, loaded->timeline.weights_s);
  EXPECT_LT(loaded->timeline.weights_s, 5.0);
}

}  // namespace
}  // namespace moxie
