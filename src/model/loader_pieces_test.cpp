// Loading for CUDA on a machine without one: a device of that kind whose memory the test reads.
// Every packed value is compared with what the CPU's loader holds, in every form of checkpoint.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/testing/paths.h"
#include "model/loader_cuda.h"
#include "model/shard.h"
#include "model/testing/files.h"
#include "model/testing/host_cuda_device.h"
#include "model/testing/memory_checkpoint.h"
#include "weights/safetensors.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = test_data() + "/goldens/";

// Packed row `row_of(r)` of `ours` against row cpu_row_of(r) of `cpu`, and zeros elsewhere.
template <typename RowOf, typename CpuRowOf>
void expect_matrix(const PackedMatrix& ours, const PackedMatrix& cpu, const std::string& what,
                   RowOf&& row_of, CpuRowOf&& cpu_row_of) {
  ASSERT_EQ(ours.layout, PackedLayout::kFragment16x32);
  ASSERT_EQ(ours.format, cpu.format) << what;
  for (int32_t e = 0; e < ours.num_experts; ++e) {
    for (int32_t r = 0; r < ours.rows; ++r) {
      for (int32_t k = 0; k < ours.cols; ++k) {
        ASSERT_EQ(fragment_value(ours.expert(e), row_of(r), k),
                  packed_value(cpu.expert(e), cpu_row_of(r), k))
            << what << " expert " << e << " row " << r << " column " << k;
      }
    }
  }
}

void expect_floats(const float* ours, const float* cpu, int64_t count, const std::string& what) {
  ASSERT_EQ(ours == nullptr, cpu == nullptr) << what;  // a rank may lack a bias
  if (cpu == nullptr) return;
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(ours[i], cpu[i]) << what << ' ' << i;
}

void expect_same(const GptOssConfig& c, const ModelWeights& ours, const ModelWeights& cpu) {
  const auto same = [](int32_t r) { return r; };
  ASSERT_EQ(ours.embedding.format, cpu.embedding.format);
  ASSERT_EQ(std::memcmp(ours.embedding.data, cpu.embedding.data,
                        static_cast<size_t>(cpu.embedding.bytes())),
            0);
  for (size_t l = 0; l < cpu.layers.size(); ++l) {
    const LayerWeights &a = ours.layers[l], &b = cpu.layers[l];
    expect_matrix(a.qkv, b.qkv, "qkv", same,
                  [&](int32_t r) { return fragment_qkv_row(r, c.head_dim); });
    expect_matrix(a.out, b.out, "out", same, same);
    expect_matrix(a.router, b.router, "router", same, same);
    expect_matrix(a.down, b.down, "down", same, same);
    const auto gate_up_row = [](auto&& place) {
      return [place](int32_t r) { return place(r / 2, r % 2); };
    };
    expect_matrix(a.gate_up, b.gate_up, "gate_up", gate_up_row(fragment_gate_up_row),
                  gate_up_row(gate_up_packed_row));
    expect_floats(a.input_norm, b.input_norm, c.hidden, "input_norm");
    expect_floats(a.qkv_bias, b.qkv_bias, c.qkv_width(), "qkv_bias");
    expect_floats(a.sinks, b.sinks, c.num_heads, "sinks");
    expect_floats(a.out_bias, b.out_bias, c.hidden, "out_bias");
    expect_floats(a.post_norm, b.post_norm, c.hidden, "post_norm");
    expect_floats(a.router_bias, b.router_bias, c.num_experts, "router_bias");
    expect_floats(a.down_bias, b.down_bias, int64_t{c.experts_held()} * c.hidden, "down_bias");
    for (int32_t e = 0; e < c.experts_held(); ++e) {
      for (int32_t r = 0; r < a.gate_up.rows; ++r) {
        ASSERT_EQ(a.gate_up_bias[e * a.gate_up.rows + fragment_gate_up_row(r / 2, r % 2)],
                  b.gate_up_bias[e * a.gate_up.rows + gate_up_packed_row(r / 2, r % 2)]);
      }
    }
  }
  expect_floats(ours.final_norm, cpu.final_norm, c.hidden, "final_norm");
  expect_matrix(ours.head, cpu.head, "head", same, same);
}

void expect_loads_alike(const Checkpoint& checkpoint, const LoadOptions& options) {
  const auto cpu_device = make_cpu_device(2);
  HostCudaDevice device;
  auto cpu = checkpoint.load(*cpu_device, options);
  auto ours = checkpoint.load(device, options);
  ASSERT_TRUE(cpu.has_value()) << cpu.error().message();
  ASSERT_TRUE(ours.has_value()) << ours.error().message();
  LoadOptions for_cuda = options;
  for_cuda.device = DeviceKind::kCuda;
  EXPECT_EQ(checkpoint.packed_bytes(for_cuda), ours->packed_bytes);
  EXPECT_GT(ours->timeline.read_bytes, 0u);
  const auto config = config_of_rank(checkpoint.config(), options.ranks, options.rank);
  ASSERT_TRUE(config.has_value());
  expect_same(*config, *ours, *cpu);
}

// As a whole, and one rank's share of columns.
void expect_loads_alike(const std::string& model, LoadOptions options = {}) {
  auto checkpoint = open_checkpoint(model);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  expect_loads_alike(**checkpoint, options);
  if ((*checkpoint)->config().num_experts > 8) return;  // the smaller of the models is enough
  options.ranks = {.size = 4};
  options.rank = 2;
  expect_loads_alike(**checkpoint, options);
}

class PiecesOf : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Nano, PiecesOf, testing::Values("nano-a", "nano-b"),
                         [](const auto& info) { return std::string(info.param, 5, 1); });

TEST_P(PiecesOf, HuggingFace) {
  expect_loads_alike(kGoldens + GetParam());
  expect_loads_alike(kGoldens + GetParam(), {.mxfp4_layers = {true, true, true}});
}

TEST(Pieces, OfTheFirstRankAreAllRowsOfUnembedIfAsked) {
  auto checkpoint = open_checkpoint(kGoldens + "nano-a");
  ASSERT_TRUE(checkpoint.has_value());
  const GptOssConfig& whole = (*checkpoint)->config();
  LoadOptions options;
  options.ranks = {.size = 4, .first_holds_unembed = true};
  expect_loads_alike(**checkpoint, options);
  const auto device = make_cpu_device(2);
  auto alone = (*checkpoint)->load(*device, {}), first = (*checkpoint)->load(*device, options);
  ASSERT_TRUE(alone.has_value() && first.has_value());
  ASSERT_EQ(first->head.bytes(), alone->head.bytes());
  EXPECT_EQ(
      std::memcmp(first->head.data, alone->head.data, static_cast<size_t>(alone->head.bytes())), 0);
  const auto config = config_of_rank(whole, options.ranks, 0);
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(first->head_of(*config).rows, whole.vocab / 4);
  options.rank = 1;  // the others have their own
  auto second = (*checkpoint)->load(*device, options);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->head.rows, whole.vocab / 4);
}

TEST(Pieces, OfEveryRankAreItsShare) {
  auto checkpoint = open_checkpoint(kGoldens + "nano-a");
  ASSERT_TRUE(checkpoint.has_value());
  for (const bool splits_experts : {false, true}) {
    for (int32_t rank = 0; rank < 4; ++rank) {
      SCOPED_TRACE(testing::Message()
                   << "rank " << rank << (splits_experts ? " of experts" : " of columns"));
      LoadOptions options;
      options.ranks = {.size = 4, .splits_experts = splits_experts};
      options.rank = rank;
      expect_loads_alike(**checkpoint, options);
    }
  }
}

TEST_P(PiecesOf, EveryOtherForm) {
  const fs::path folder = fresh_folder();
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + GetParam());
  fs::create_directories(folder / "original");
  write(folder / "original/model.safetensors", source.original().safetensors());
  write(folder / "original/config.json", original_config_json(source.config));
  expect_loads_alike((folder / "original").string());
  fs::create_directories(folder / "dense");
  write(folder / "dense/model.safetensors", source.with_dense_experts().safetensors());
  write(folder / "dense/config.json", config_json(source.config));
  expect_loads_alike((folder / "dense").string());
  const std::string gguf = (folder / "model.gguf").string();
  for (const uint32_t dense_type : {0u, 1u, 8u, 30u}) {
    write(gguf, source.gguf({.dense_type = dense_type})[0]);
    expect_loads_alike(gguf);
  }
  write(gguf, source.gguf({.is_merged = true})[0]);
  expect_loads_alike(gguf);
  write(gguf, source.gguf({.is_old = true})[0]);
  expect_loads_alike(gguf, {.mxfp4_layers = {true, true, true}});
}

TEST(Pieces, OfAnySizeMakeTheSameModel) {
  const std::string model = kGoldens + "nano-a";
  MemoryCheckpoint source = MemoryCheckpoint::read(model);
  auto checkpoint = open_checkpoint(model);
  HostCudaDevice device;
  auto whole = (*checkpoint)->load(device, {});
  ASSERT_TRUE(whole.has_value());
  StoredWeights stored;
  FaultList faults;
  auto file = MappedFile::open(model + "/model.safetensors");
  ASSERT_TRUE(file.has_value());
  stored.files.push_back(read_safetensors(*file));
  find_weights(source.config, FileFormat::kHuggingFace, &stored, &faults);
  ASSERT_TRUE(faults.empty());
  for (const uint64_t piece_bytes : {1u, 5000u, 70000u}) {
    auto place = make_weights(source.config, packed_formats(source.config, stored, {}), device);
    ASSERT_TRUE(place.has_value());
    std::vector<std::byte> memory;
    for (const LoadPiece& cut :
         cut_into_pieces(source.config, stored, place->weights, piece_bytes)) {
      memory.assign(cut.bytes, std::byte{0x77});
      ASSERT_TRUE(read_piece(cut, memory.data()).has_value());
      int32_t nan_row = kNoNanRow;
      const LoadPiece piece = point_piece(cut, memory.data(), &nan_row);
      if (const auto* direct = std::get_if<DirectCopy>(&piece.work))
        std::memcpy(direct->target, memory.data(), piece.bytes);
      if (const auto* matrix = std::get_if<MatrixRepack>(&piece.work)) repack_on_host(*matrix);
      if (const auto* vector = std::get_if<VectorRepack>(&piece.work)) repack_on_host(*vector);
      EXPECT_EQ(nan_row, kNoNanRow);
    }
    EXPECT_EQ(std::memcmp(place->weights.storage[0].data(), whole->storage[0].data(),
                          whole->packed_bytes),
              0)
        << piece_bytes;
  }
}

TEST(Pieces, NanScalesAreNamedAndMemoryIsGivenBack) {
  const fs::path folder = fresh_folder();
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  const std::string at = "model.layers.1.mlp.experts.";
  MemoryTensor& scales = source.at(at + "gate_up_proj_scales");
  const auto row_bytes = static_cast<size_t>(scales.shape[2]);
  const auto expert_rows = static_cast<size_t>(scales.shape[1]);
  scales.bytes[(3 * expert_rows + 5) * row_bytes + 1] = '\xFF';
  write(folder / "model.safetensors", source.safetensors());
  write(folder / "config.json", config_json(source.config));
  auto checkpoint = open_checkpoint(folder.string());
  ASSERT_TRUE(checkpoint.has_value());
  HostCudaDevice device;
  const auto loaded = (*checkpoint)->load(device, {});
  ASSERT_FALSE(loaded.has_value());
  const std::string message = loaded.error().message();
  EXPECT_NE(message.find(at + "gate_up_proj_scales: found the scale byte 255 (NaN) in expert 3, "
                              "row 5"),
            std::string::npos)
      << message;
  EXPECT_EQ(device.num_allocated, 0u);
}

TEST(Pieces, AFileShortenedAfterOpeningIsAnErrorAndNoSignal) {
  const fs::path folder = fresh_folder();
  MemoryCheckpoint source = MemoryCheckpoint::read(kGoldens + "nano-a");
  write(folder / "model.safetensors", source.safetensors());
  auto file = MappedFile::open((folder / "model.safetensors").string());
  ASSERT_TRUE(file.has_value());
  const uint64_t size = (*file)->bytes().size();
  fs::resize_file(folder / "model.safetensors", size / 2);
  std::vector<std::byte> memory(1000);
  EXPECT_TRUE((*file)->read(0, 1000, memory.data()).has_value());
  const Status status = (*file)->read(size - 1000, 1000, memory.data());
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message().find("has been shortened"), std::string::npos);
}

TEST(Mxfp8Layers, AreForCudaOnlyAndEachLayerHasOneFormat) {
  auto checkpoint = open_checkpoint(kGoldens + "nano-a");
  ASSERT_TRUE(checkpoint.has_value());
  const auto cpu = make_cpu_device(1);
  const auto refused = (*checkpoint)->load(*cpu, {.mxfp8_layers = {.o = true}});
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("--mxfp8-layers"), std::string::npos);
  HostCudaDevice device;
  EXPECT_FALSE((*checkpoint)
                   ->load(device, {.mxfp4_layers = {.o = true}, .mxfp8_layers = {.o = true}})
                   .has_value());
  const auto plain = (*checkpoint)->load(device, {});
  const auto loaded = (*checkpoint)->load(device, {.mxfp8_layers = {true, true, true}});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  for (const auto& [ours, exact] : {std::pair{loaded->head, plain->head},
                                    {loaded->layers[2].qkv, plain->layers[2].qkv},
                                    {loaded->layers[2].out, plain->layers[2].out}}) {
    ASSERT_EQ(ours.format, DType::kMXFP8);
    for (int32_t r = 0; r < ours.rows; r += 7) {
      for (int32_t k = 0; k < ours.cols; ++k) {
        const double value = fragment_value(exact, r, k);
        EXPECT_NEAR(fragment_value(ours, r, k), value, std::fabs(value) / 8 + 1e-3);
      }
    }
  }
  EXPECT_TRUE(DenseLayers::parse("qkv,o", "--mxfp8-layers")->o);
  EXPECT_FALSE(DenseLayers::parse("moe", "--mxfp8-layers").has_value());
  EXPECT_TRUE(DenseLayers::parse("moe,qkv")->qkv);
}

}  // namespace
}  // namespace moxie
