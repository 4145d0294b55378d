// A written checkpoint opens without faults, loads, holds values of the sizes meant, and depends on
// its seed alone; what cannot be written is an error.
#include "model/write_checkpoint.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "core/packing.h"
#include "model/checkpoint.h"
#include "model/testing/small_config.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

fs::path fresh_folder(const char* name) {
  const fs::path folder = fs::path(testing::TempDir()) / (std::string("moxie_write_") + name);
  fs::remove_all(folder);
  return folder;
}

std::string all_bytes(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::string all;
  for (const fs::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    all += file.filename().string();
    all.append(std::istreambuf_iterator<char>(in), {});
  }
  return all;
}

TEST(WriteCheckpoint, OpensWithoutFaultsAndHoldsPlausibleValues) {
  const fs::path folder = fresh_folder("opens");
  uint64_t last_done = 0, last_total = 1;
  const Status written = write_checkpoint(small_config(), folder.string(),
                                          {.seed = 3,
                                           .shard_bytes = 100'000,
                                           .num_threads = 2,
                                           .on_progress = [&](uint64_t done, uint64_t total) {
                                             EXPECT_GT(done, last_done);
                                             last_done = done, last_total = total;
                                           }});
  ASSERT_TRUE(written.has_value()) << written.error().message();
  EXPECT_EQ(last_done, last_total);
  int num_shards = 0;
  for (const auto& entry : fs::directory_iterator(folder))
    num_shards += entry.path().extension() == ".safetensors";
  EXPECT_GT(num_shards, 2);
  auto checkpoint = open_checkpoint(folder.string());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  for (const Fault& fault : (*checkpoint)->faults()) ADD_FAILURE() << fault.message();
  EXPECT_EQ((*checkpoint)->config().num_experts, 5);
  const auto device = make_cpu_device(2);
  auto loaded = (*checkpoint)->load(*device, {.show_progress = false});
  ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
  EXPECT_EQ(loaded->layers[1].input_norm[7], 1.0f);
  EXPECT_EQ(loaded->layers[1].down_bias[7], 0.0f);
  const auto deviation = [](const PackedMatrix& matrix) {
    double squares = 0;
    for (int32_t r = 0; r < matrix.rows; ++r)
      for (int32_t k = 0; k < matrix.cols; ++k) squares += std::pow(packed_value(matrix, r, k), 2);
    return std::sqrt(squares / (double(matrix.rows) * matrix.cols)) * std::sqrt(matrix.cols);
  };
  EXPECT_EQ(loaded->layers[0].gate_up.format, DType::kMXFP4);
  for (const auto& [matrix, gain] :
       {std::pair{loaded->layers[0].qkv, 1.0}, std::pair{loaded->layers[0].gate_up, 1.0},
        std::pair{loaded->layers[1].down, 0.5}, std::pair{loaded->head, 2.0}}) {
    EXPECT_GT(deviation(matrix), gain / 1.6);
    EXPECT_LT(deviation(matrix), gain * 1.6);
  }
}

TEST(WriteCheckpoint, BytesDependOnTheSeedAndNotOnTheThreads) {
  const auto written = [](const char* name, uint64_t seed, int num_threads) {
    const fs::path folder = fresh_folder(name);
    EXPECT_TRUE(write_checkpoint(small_config(), folder.string(),
                                 {.seed = seed, .num_threads = num_threads})
                    .has_value());
    return all_bytes(folder);
  };
  const std::string one = written("one", 3, 1);
  EXPECT_EQ(one, written("three", 3, 3));
  EXPECT_NE(one, written("other", 4, 1));
}

TEST(WriteCheckpoint, RefusesWhatItCannotDoAndSaysWhy) {
  const fs::path folder = fresh_folder("again");
  ASSERT_TRUE(write_checkpoint(small_config(), folder.string()).has_value());
  const Status again = write_checkpoint(small_config(), folder.string());
  ASSERT_FALSE(again.has_value());
  EXPECT_NE(again.error().message().find("holds a checkpoint already"), std::string::npos);
  EXPECT_FALSE(write_checkpoint(small_config(), "/proc/nothing").has_value());
  GptOssConfig absurd = small_config();
  absurd.hidden = -1;
  EXPECT_FALSE(write_checkpoint(absurd, fresh_folder("absurd").string()).has_value());
  GptOssConfig large = small_config();
  large.num_layers = 1000;
  large.is_window.assign(1000, 0);
  large.hidden = large.intermediate = 16384;
  large.num_experts = 128;
  const fs::path no_room = fresh_folder("no_room");
  const Status full = write_checkpoint(large, no_room.string());
  ASSERT_FALSE(full.has_value());
  EXPECT_NE(full.error().message().find("GB are free"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(no_room));
}

}  // namespace
}  // namespace moxie
