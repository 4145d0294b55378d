// Every CUDA row of embed against the reference row, bit for bit.
#include "kernels/embed/embed.h"
#include "kernels/testing/cuda_test.h"

namespace moxie {
namespace {

class EmbedCudaTest : public CudaTest {
 protected:
  void expect_equal(DType format, int32_t tokens, int32_t vocab, int32_t cols) {
    SCOPED_TRACE(std::string(dtype_name(format)) + ", " + std::to_string(tokens) + " tokens, " +
                 std::to_string(vocab) + " x " + std::to_string(cols));
    RowTable table{.format = format, .rows = vocab, .cols = cols};
    const std::vector<uint8_t> bytes = random_table(table);
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (int32_t& id : ids) id = static_cast<int32_t>(random_() % static_cast<uint32_t>(vocab));
    ids[0] = vocab - 1;
    const auto count = static_cast<uint64_t>(tokens) * static_cast<uint64_t>(cols);

    std::vector<float> expected(count);
    EmbedParams params{.num_tokens = tokens, .token_ids = ids.data(), .table = table};
    params.table.data = reinterpret_cast<const std::byte*>(bytes.data());
    params.x = expected.data();
    for (const auto& row : Op<EmbedParams>::rows()) {
      if (std::string(row.name) == "embed_reference") row.run(params);
    }

    params.launch = launch();
    params.token_ids = upload(ids);
    params.table.data = reinterpret_cast<const std::byte*>(upload(bytes));
    int num_rows = 0;
    for (const auto& row : Op<EmbedParams>::rows()) {
      if (row.device != DeviceKind::kCuda || (row.needs & features()) != row.needs) continue;
      SCOPED_TRACE(row.name);
      ++num_rows;
      ASSERT_EQ(row.refuses(params), nullptr);
      const DeviceArray x = poisoned<float>(count * kFloatsOfCudaX);
      params.x = x.buffer.as<float>();
      params.forms.x = XForm::kF32Pair;
      row.run(params);
      const std::vector<float> found = download<float>(x);
      uint64_t num_wrong = 0;
      for (uint64_t i = 0; i < count; ++i) {
        num_wrong += f32_bits(found[2 * i] + found[2 * i + 1]) != f32_bits(expected[i]);
      }
      EXPECT_EQ(num_wrong, 0u) << "of " << count;
    }
    EXPECT_GE(num_rows, 1);
  }

 private:
  static uint32_t f32_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return bits;
  }
  // Random numbers in the table's format; Q8_0 scales are ordinary halves.
  std::vector<uint8_t> random_table(const RowTable& table) {
    std::vector<uint8_t> bytes(static_cast<size_t>(table.bytes()));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_());
    if (table.format == DType::kF32) {
      const auto values = normal_values(bytes.size() / 4, 1.0f, static_cast<uint32_t>(random_()));
      std::memcpy(bytes.data(), values.data(), bytes.size());
    } else if (table.format == DType::kBF16) {
      // No infinities or NaN: the exponent's top bit is cleared.
      for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] &= 0xBF;
    } else {
      for (size_t i = 0; i < bytes.size(); i += 34) bytes[i + 1] &= 0xBF;
    }
    return bytes;
  }
  std::mt19937 random_{20251};
};

TEST_F(EmbedCudaTest, RowsOfEveryFormatAreExact) {
  for (const DType format : {DType::kF32, DType::kBF16, DType::kQ8_0}) {
    expect_equal(format, 1, 1, 32);
    expect_equal(format, 3, 7, 64);
    expect_equal(format, 257, 1000, 2880);
    expect_equal(format, 64, 300, 4096);
  }
}

TEST_F(EmbedCudaTest, NarrowRowsAreExact) {
  for (const DType format : {DType::kF32, DType::kBF16}) {
    expect_equal(format, 5, 11, 4);
    expect_equal(format, 5, 11, 1036);
  }
}

TEST_F(EmbedCudaTest, AddressesBeyondFourGigabytesAreRight) {
  // 600,000 rows of 2880 F32 are 6.9 GB; only the rows read are filled.
  const RowTable table{.format = DType::kF32, .rows = 600000, .cols = 2880};
  auto memory = device().allocate(static_cast<uint64_t>(table.bytes()));
  if (!memory) GTEST_SKIP() << memory.error().message();
  const std::vector<int32_t> ids = {599999, 400000, 0};
  const auto rows = normal_values(ids.size() * 2880, 1.0f, 7);
  for (size_t i = 0; i < ids.size(); ++i) {
    done(device().copy_from_host(memory->data() + ids[i] * table.row_bytes(), &rows[i * 2880],
                                 static_cast<uint64_t>(table.row_bytes()), stream()));
  }
  const DeviceArray x = poisoned<float>(rows.size() * kFloatsOfCudaX);
  EmbedParams params{.launch = launch(), .num_tokens = 3, .token_ids = upload(ids), .table = table};
  params.table.data = memory->data();
  params.x = x.buffer.as<float>();
  params.forms.x = XForm::kF32Pair;
  for (const auto& row : Op<EmbedParams>::rows()) {
    if (row.device == DeviceKind::kCuda && (row.needs & features()) == row.needs) row.run(params);
  }
  const std::vector<float> pairs = download<float>(x);
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(pairs[2 * i] + pairs[2 * i + 1], rows[i]);
}

}  // namespace
}  // namespace moxie
