// Sorting pairs by expert and staging activations on CUDA against plain loops on the CPU: every
// slot, tile and padding rule, and every byte of the staged memory.
#include "kernels/gemm/sort_cuda.h"

#include <numeric>

#include "kernels/gemm/stage_cuda.h"
#include "kernels/testing/cuda_test.h"

namespace moxie::gemm {
namespace {

/// Each token's choice of experts: different ones, as route gives them.
enum class Choice { kUniform, kSkewed, kFirst, kLast };

std::vector<int32_t> random_ids(const SortShape& shape, Choice choice, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids, experts(static_cast<size_t>(shape.num_experts));
  for (int32_t token = 0; token < shape.num_tokens; ++token) {
    std::iota(experts.begin(), experts.end(), 0);
    if (choice == Choice::kLast) std::reverse(experts.begin(), experts.end());
    for (int32_t k = 0; k < shape.top_k; ++k) {
      int32_t choices = shape.num_experts - k;
      // Nine tokens of ten choose among few experts.
      if (choice == Choice::kSkewed && random() % 10 != 0) choices = std::min(choices, 3);
      if (choice == Choice::kFirst || choice == Choice::kLast) choices = 1;
      std::swap(experts[k], experts[k + static_cast<int32_t>(random() % choices)]);
      ids.push_back(experts[k]);
    }
  }
  return ids;
}

class SortCudaTest : public CudaTest {
 protected:
  /// num_chosen: experts among which tokens choose, if these are more than are sorted.
  void expect_sorted(const SortShape& shape, Choice choice, int32_t num_chosen = 0) {
    SCOPED_TRACE(std::to_string(shape.num_tokens) + " tokens x " + std::to_string(shape.top_k) +
                 ", " + std::to_string(shape.num_experts) + " experts, tiles of " +
                 std::to_string(shape.tile_slots) + ", choice " +
                 std::to_string(static_cast<int>(choice)) + " among " + std::to_string(num_chosen) +
                 (shape.widest_first ? ", widest first" : ""));
    SortShape of_choice = shape;
    if (num_chosen > 0) of_choice.num_experts = num_chosen;
    const std::vector<int32_t> ids = random_ids(of_choice, choice, 3);
    const std::vector<float> weights = normal_values(ids.size(), 1.0f, 4);
    Scratch size(nullptr);
    take_sorted_pairs(shape, size);
    const DeviceArray memory = poisoned<std::byte>(size.bytes());
    Scratch scratch(memory.buffer.data());
    const SortedPairs sorted = take_sorted_pairs(shape, scratch);
    sort_pairs(shape, upload(ids), upload(weights), sorted, &stream());
    const std::vector<std::byte> bytes = download<std::byte>(memory);

    std::vector<int32_t> slot_of_pair(ids.size(), -1);
    std::vector<int32_t> token_of(static_cast<size_t>(sorted.capacity), -1);
    std::vector<float> weight_of(token_of.size(), 0.0f);
    std::vector<SlotTile> tiles;
    int32_t slot = 0;
    for (int32_t expert = 0; expert < shape.num_experts; ++expert) {
      const int32_t first = slot;
      for (size_t pair = 0; pair < ids.size(); ++pair) {
        if (ids[pair] - shape.first_expert != expert) continue;
        slot_of_pair[pair] = slot;
        token_of.at(slot) = static_cast<int32_t>(pair) / shape.top_k;
        weight_of[slot++] = weights[pair];
      }
      const int32_t count = slot - first, num_tiles = ceil_div(count, shape.tile_slots);
      for (int32_t i = 0; i < num_tiles; ++i) {
        const int32_t size = round_up(ceil_div(count, num_tiles), 8), begin = i * size;
        tiles.push_back({expert, first + begin, i + 1 < num_tiles ? size : count - begin, size});
        EXPECT_LE(tiles.back().num_slots, shape.tile_slots);
        EXPECT_GT(tiles.back().num_slots, 0);
      }
      slot = round_up(slot, 8);
    }
    if (shape.widest_first) {
      std::sort(tiles.begin(), tiles.end(), [](const SlotTile& a, const SlotTile& b) {
        return std::pair(-a.width, a.first_slot) < std::pair(-b.width, b.first_slot);
      });
    }
    EXPECT_LE(slot, sorted.capacity);
    ASSERT_LE(tiles.size(), static_cast<size_t>(sorted.max_tiles));

    const auto found = [&]<typename T>(const T* at, size_t count) {
      std::vector<T> values(count);
      std::memcpy(values.data(),
                  bytes.data() + (reinterpret_cast<const std::byte*>(at) - memory.buffer.data()),
                  count * sizeof(T));
      return values;
    };
    EXPECT_EQ(found(sorted.slot_of_pair, ids.size()), slot_of_pair);
    EXPECT_EQ(found(sorted.slot_token, token_of.size()), token_of);
    EXPECT_EQ(found(sorted.slot_weight, weight_of.size()), weight_of);
    EXPECT_EQ(found(sorted.num_tiles, 1)[0], static_cast<int32_t>(tiles.size()));
    const auto tiles_found = found(sorted.tiles, tiles.size());
    for (size_t i = 0; i < tiles.size(); ++i) {
      ASSERT_EQ(tiles_found[i].expert, tiles[i].expert) << "tile " << i;
      ASSERT_EQ(tiles_found[i].first_slot, tiles[i].first_slot) << "tile " << i;
      ASSERT_EQ(tiles_found[i].num_slots, tiles[i].num_slots) << "tile " << i;
      ASSERT_EQ(tiles_found[i].width, tiles[i].width) << "tile " << i;
    }
    free_uploads();
  }
};

TEST_F(SortCudaTest, AgreesWithALoopForAnyShape) {
  for (const Choice choice : {Choice::kUniform, Choice::kSkewed, Choice::kFirst, Choice::kLast}) {
    for (const int32_t tokens : {1, 2, 7, 8, 33, 64, 255, 256, 257, 1000}) {
      expect_sorted({tokens, 4, 128, 64}, choice);
    }
    expect_sorted({8192, 4, 128, 128}, choice);
    expect_sorted({8192, 4, 128, 8}, choice);
    expect_sorted({2049, 16, 256, 24}, choice);
    expect_sorted({5, 1, 3, 40}, choice);
    expect_sorted({300, 3, 3, 16}, choice);
    for (const int32_t tokens : {1, 33, 1000, 8192})
      expect_sorted({tokens, 4, 128, 144, 0, true}, choice);
    expect_sorted({8192, 4, 128, 8, 0, true}, choice);
    expect_sorted({2049, 16, 160, 288, 64, true}, choice, 256);
  }
  expect_sorted({16384, 16, 256, 128}, Choice::kSkewed);
}

// Pairs with experts before and behind the range have no slot; with kFirst no pair has one.
TEST_F(SortCudaTest, SortsARangeOfTheExperts) {
  for (const Choice choice : {Choice::kUniform, Choice::kSkewed, Choice::kFirst, Choice::kLast}) {
    for (const int32_t first : {0, 5, 64, 96}) {
      for (const int32_t tokens : {1, 2, 33, 257, 1000, 8192})
        expect_sorted({tokens, 4, 32, 64, first}, choice, 128);
      expect_sorted({2049, 16, 160, 24, first}, choice, 256);
      expect_sorted({300, 3, 1, 16, first}, choice, 100);
    }
  }
}

/// BF16 nearest even of a finite value.
uint16_t bf16(float value) {
  const uint32_t bits = f32_to_bits(value);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

class StageCudaTest : public CudaTest {
 protected:
  // The contract of staged.cuh, written another way: the position of a column in the order of the
  // fragments, its chunk of eight, the chunk's place.
  static size_t index_of(int32_t capacity, int32_t row, int32_t column) {
    const int32_t c = column % 64, j = c % 8;
    const int32_t position =
        32 * (c / 32) + 16 * (j / 4) + 8 * (j % 4 / 2) + 2 * (c % 32 / 8) + j % 2;
    const int32_t place = position / 8 ^ row % 8;
    return (static_cast<size_t>(column / 64) * capacity + row) * 64 + 8 * place + position % 8;
  }
  /// Values of one row; rows not named must keep their poison.
  struct Expected {
    int32_t row;
    const double* values;
  };
  void expect_staged(const DeviceArray& memory, int32_t capacity, int32_t width,
                     const std::vector<Expected>& rows, double relative) {
    std::vector<uint16_t> found = download<uint16_t>(memory);
    int num_wrong = 0;
    for (const Expected& expected : rows) {
      for (int32_t column = 0; column < round_up(width, 64); ++column) {
        uint16_t& word = found[index_of(capacity, expected.row, column)];
        const double value = column < width ? expected.values[column] : 0.0;
        // The nearest BF16 of any value within the error that F32 leaves.
        const double error = std::abs(value) * relative;
        const float low = static_cast<float>(value - error),
                    high = static_cast<float>(value + error);
        const bool is_right =
            word == bf16(low) || word == bf16(high) || word == bf16(static_cast<float>(value));
        if (!is_right && num_wrong++ == 0)
          ADD_FAILURE() << "row " << expected.row << ", column " << column << ": " << word
                        << ", expected " << bf16(static_cast<float>(value));
        word = 0xFFFF;
      }
    }
    EXPECT_EQ(num_wrong, 0);
    EXPECT_EQ(std::count(found.begin(), found.end(), 0xFFFF), static_cast<int64_t>(found.size()))
        << "rows written that nobody asked for";
  }
  static std::vector<double> doubles(const std::vector<float>& values) {
    return {values.begin(), values.end()};
  }

  void expect_floats_staged(int32_t rows, int32_t width) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
    const auto values = normal_values(static_cast<uint64_t>(rows) * width, 2.0f, 5);
    const int32_t capacity = round_up(rows, 8) + 8;
    const DeviceArray memory = poisoned<std::byte>(staged_bytes(capacity, width));
    stage_floats(
        {.num_rows = rows, .values = upload(values), .to = {memory.buffer.data(), capacity, width}},
        &stream());
    const std::vector<double> all = doubles(values);
    std::vector<Expected> expected;
    for (int32_t row = 0; row < rows; ++row)
      expected.push_back({row, &all[static_cast<size_t>(row) * width]});
    expect_staged(memory, capacity, width, expected, 0);
    free_uploads();
  }

  void expect_normed_staged(int32_t rows, int32_t width, bool is_gathered) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
    const int32_t tokens = rows + 5;
    const auto x = normal_values(static_cast<uint64_t>(2 * tokens) * width, 3.0f, 6);
    const auto weight = normal_values(width, 1.0f, 7);
    std::vector<int32_t> row_idx;
    for (int32_t row = 0; row < rows; ++row) row_idx.push_back((7 * row + 3) % tokens);
    const int32_t capacity = round_up(rows, 8);
    const DeviceArray memory = poisoned<std::byte>(staged_bytes(capacity, width));
    stage_normed({.num_rows = rows,
                  .rms_eps = 1e-5f,
                  .x = upload(x),
                  .row_idx = is_gathered ? upload(row_idx) : nullptr,
                  .norm_weight = upload(weight),
                  .to = {memory.buffer.data(), capacity, width}},
                 &stream());
    std::vector<double> all(static_cast<size_t>(rows) * width);
    std::vector<Expected> expected;
    for (int32_t row = 0; row < rows; ++row) {
      const float* from = &x[static_cast<size_t>(2) * width * (is_gathered ? row_idx[row] : row)];
      double* to = &all[static_cast<size_t>(row) * width];
      double sum = 0;
      for (int32_t i = 0; i < width; ++i) {
        to[i] = from[2 * i] + from[2 * i + 1];
        sum += to[i] * to[i];
      }
      for (int32_t i = 0; i < width; ++i) to[i] *= weight[i] / std::sqrt(sum / width + 1e-5);
      expected.push_back({row, to});
    }
    expect_staged(memory, capacity, width, expected, 0x1p-19);
    free_uploads();
  }

  /// has_all: else every third pair has no slot.
  void expect_slots_staged(int32_t tokens, int32_t top_k, int32_t width, bool has_all) {
    SCOPED_TRACE(std::to_string(tokens) + " x " + std::to_string(top_k) + " x " +
                 std::to_string(width) + (has_all ? "" : ", some without a slot"));
    const auto values = normal_values(static_cast<uint64_t>(tokens) * width, 2.0f, 8);
    const int32_t capacity = round_up(tokens * top_k, 8) + 16;
    std::vector<int32_t> slots(static_cast<size_t>(capacity));
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), std::mt19937(9));
    slots.resize(static_cast<size_t>(tokens * top_k));
    for (size_t pair = 0; pair < slots.size() && !has_all; pair += 3) slots[pair] = -1;
    const DeviceArray memory = poisoned<std::byte>(staged_bytes(capacity, width));
    stage_slots({.num_tokens = tokens,
                 .top_k = top_k,
                 .values = upload(values),
                 .slot_of_pair = upload(slots),
                 .to = {memory.buffer.data(), capacity, width}},
                &stream());
    const std::vector<double> all = doubles(values);
    std::vector<Expected> expected;
    for (size_t pair = 0; pair < slots.size(); ++pair)
      if (slots[pair] >= 0) expected.push_back({slots[pair], &all[pair / top_k * width]});
    expect_staged(memory, capacity, width, expected, 0);
    free_uploads();
  }
};

TEST_F(StageCudaTest, FloatsLieInFragmentOrder) {
  for (const int32_t width : {4, 32, 64, 96, 288, 2880, 4096, 5120, 5184, 12288, 18432}) {
    for (const int32_t rows : {1, 7, 8, 50}) expect_floats_staged(rows, width);
  }
}

TEST_F(StageCudaTest, NormedRowsAgreeWithDouble) {
  for (const int32_t width : {32, 96, 288, 2880, 5184, 12288}) {
    for (const int32_t rows : {1, 9, 64}) {
      expect_normed_staged(rows, width, false);
      expect_normed_staged(rows, width, true);
    }
  }
}

TEST_F(StageCudaTest, SlotsGetTheirTokens) {
  for (const int32_t width : {32, 2880, 12288}) {
    for (const int32_t top_k : {1, 4, 16})
      for (const bool has_all : {true, false}) expect_slots_staged(37, top_k, width, has_all);
  }
}

}  // namespace
}  // namespace moxie::gemm
