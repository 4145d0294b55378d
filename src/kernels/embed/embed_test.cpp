// embed: rows of every format, exactly as their bytes say.
#include "kernels/embed/embed.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/formats.h"

namespace moxie {
namespace {

// A table with the values that its bytes mean.
struct Table {
  std::vector<std::byte> bytes;
  std::vector<float> values;
  RowTable view;

  Table(DType format, int32_t rows, int32_t cols) {
    view = {.format = format, .rows = rows, .cols = cols};
    bytes.resize(static_cast<size_t>(view.bytes()));
    view.data = bytes.data();
    std::mt19937 random(9);
    for (int32_t row = 0; row < rows; ++row) {
      std::byte* at = bytes.data() + row * view.row_bytes();
      if (format == DType::kQ8_0) {
        for (int32_t block = 0; block < cols / 32; ++block, at += 34) {
          const auto scale = static_cast<uint16_t>(0x2C00 + random() % 0x1000);
          std::memcpy(at, &scale, 2);
          for (int i = 0; i < 32; ++i) {
            const auto code = static_cast<int8_t>(random());
            std::memcpy(at + 2 + i, &code, 1);
            values.push_back(f16_to_f32(scale) * code);
          }
        }
        continue;
      }
      for (int32_t i = 0; i < cols; ++i) {
        const float value = (static_cast<float>(random() % 2001) - 1000) / 512;
        const uint16_t half = f32_to_bf16(value);
        if (format == DType::kF32) std::memcpy(at + 4 * i, &value, 4);
        if (format == DType::kBF16) std::memcpy(at + 2 * i, &half, 2);
        values.push_back(format == DType::kF32 ? value : bf16_to_f32(half));
      }
    }
  }
};

TEST(Embed, EveryRowGathersEveryFormatExactly) {
  const auto device = make_cpu_device(3);
  const auto stream = std::move(*device->make_stream());
  for (DType format : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    for (int32_t cols : {32, 96, 2880}) {
      const Table table(format, 50, cols);
      for (int32_t num_tokens : {0, 1, 15, 100}) {
        std::vector<int32_t> ids;
        for (int32_t t = 0; t < num_tokens; ++t) ids.push_back((t * 17 + 49) % 50);
        for (const auto& row : Op<EmbedParams>::rows()) {
          if (row.device != DeviceKind::kCpu) continue;
          std::vector<float> x(static_cast<size_t>(num_tokens) * cols + 1, -7.0f);
          EmbedParams params{.num_tokens = num_tokens,
                             .token_ids = ids.data(),
                             .table = table.view,
                             .x = x.data()};
          params.launch.stream = stream.get();
          ASSERT_EQ(row.refuses(params), nullptr);
          row.run(params);
          for (int32_t t = 0; t < num_tokens; ++t) {
            EXPECT_EQ(0, std::memcmp(&x[static_cast<size_t>(t) * cols],
                                     &table.values[static_cast<size_t>(ids[t]) * cols],
                                     sizeof(float) * cols))
                << row.name << " " << dtype_name(format) << " token " << t;
          }
          EXPECT_EQ(x.back(), -7.0f) << row.name;
        }
      }
    }
  }
}

TEST(Embed, IdsOutsideTheVocabularyEndTheProcess) {
  const Table table(DType::kBF16, 4, 32);
  const auto device = make_cpu_device(1);
  const auto stream = std::move(*device->make_stream());
  std::vector<float> x(32);
  for (int32_t id : {-1, 4}) {
    EmbedParams params{.num_tokens = 1, .token_ids = &id, .table = table.view, .x = x.data()};
    params.launch.stream = stream.get();
    for (const auto& row : Op<EmbedParams>::rows()) {
      if (row.device != DeviceKind::kCpu) continue;
      EXPECT_DEATH(row.run(params), "vocabulary") << row.name;
    }
  }
}

TEST(Embed, OtherFormatsAreRefused) {
  for (const auto& row : Op<EmbedParams>::rows()) {
    EXPECT_NE(row.refuses({.table = {.format = DType::kMXFP4, .rows = 4, .cols = 32}}), nullptr);
    EXPECT_NE(row.refuses({.table = {.format = DType::kQ8_0, .rows = 4, .cols = 40}}), nullptr);
  }
}

}  // namespace
}  // namespace moxie
