// Operands of block-scaled products against plain loops on the CPU, written from the layout's
// definition: weights unpacked from the packed layout, activations rounded to MXFP8, and what is
// written where. They run on any GPU; the products themselves need sm_100a.
#include "kernels/gemm/blocked_mx_cuda.h"

#include <cmath>
#include <numeric>

#include "kernels/experts/experts.h"
#include "kernels/gemm/add_pairs_cuda.h"
#include "kernels/testing/cuda_test.h"
#include "kernels/testing/fragment_pack.h"

namespace moxie::gemm {
namespace {

constexpr uint8_t kPoison = 0xFF;

// CUTLASS's atom of scales, ((32, 4), (32, 4)) : ((16, 4), (0, 1)) of 512 bytes; atoms along K
// first, then along the rows.
size_t scale_index(int32_t row, int32_t column, int32_t columns) {
  const int32_t atom = row / 128 * (columns / 128) + column / 128;
  return static_cast<size_t>(atom) * 512 + row % 32 * 16 + row / 32 % 4 * 4 + column / 32 % 4;
}

class BlockedMxCuda : public CudaTest {
 protected:
  void expect_unpacked(int32_t rows, int32_t cols, const std::vector<int32_t>& experts,
                       int32_t num_experts) {
    SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
    testing::Random random(11);
    const testing::PackedTensor cpu =
        testing::random_packed(DType::kMXFP4, num_experts, rows, cols, random);
    testing::PackedTensor packed =
        testing::to_fragment(cpu.matrix, DType::kMXFP4, [](int32_t row) { return row; });
    PackedMatrix matrix = packed.matrix;
    matrix.data = upload(packed.memory);
    std::vector<SlotTile> tiles;
    for (const int32_t expert : experts) tiles.push_back({expert, 0, 1});
    const auto num_groups = static_cast<int32_t>(experts.size());
    const int32_t columns = blocked_columns(cols);
    const auto code_bytes = static_cast<size_t>(blocked_code_bytes(matrix));
    const auto scale_bytes = static_cast<size_t>(blocked_scale_bytes(matrix));
    // One group more than there are: it is not touched.
    const DeviceArray codes = poisoned<uint8_t>((num_groups + 1) * code_bytes);
    const DeviceArray scales = poisoned<uint8_t>((num_groups + 1) * scale_bytes);
    unpack_weights({.matrix = matrix,
                    .tiles = upload(tiles),
                    .num_tiles = upload(std::vector<int32_t>{num_groups}),
                    .most_groups = num_groups + 1,
                    .to = {codes.buffer.data(), scales.buffer.as<uint8_t>(), columns}},
                   &stream());
    std::vector<uint8_t> of_codes = download<uint8_t>(codes);
    std::vector<uint8_t> of_scales = download<uint8_t>(scales);
    int num_wrong = 0;
    std::vector<double> values(static_cast<size_t>(cols));
    for (int32_t group = 0; group < num_groups; ++group) {
      const PackedMatrix expert = cpu.matrix.expert(experts[group]);
      for (int32_t row = 0; row < rows; ++row) {
        read_packed_row(expert, row, values.data());
        for (int32_t column = 0; column < columns; ++column) {
          const uint8_t two =
              of_codes[group * code_bytes + (static_cast<size_t>(row) * columns + column) / 2];
          const auto code = static_cast<uint8_t>(column % 2 == 0 ? two & 15 : two >> 4);
          const uint8_t scale = of_scales[group * scale_bytes + scale_index(row, column, columns)];
          const double expected = column < cols ? values[column] : 0.0;
          const double found =
              static_cast<double>(e2m1_to_f32(code)) * static_cast<double>(e8m0_to_f32(scale));
          if (found != expected && num_wrong++ == 0)
            ADD_FAILURE() << "group " << group << ", row " << row << ", column " << column << ": "
                          << found << ", not " << expected;
        }
      }
      for (int32_t row = 0; row < rows; ++row)
        for (int32_t column = 0; column < columns; column += 32)
          of_scales[group * scale_bytes + scale_index(row, column, columns)] = kPoison;
    }
    EXPECT_EQ(num_wrong, 0);
    EXPECT_EQ(std::count(of_scales.begin(), of_scales.end(), kPoison),
              static_cast<int64_t>(of_scales.size()))
        << "scales of rows that the matrix does not have";
    EXPECT_EQ(
        std::count(of_codes.end() - static_cast<int64_t>(code_bytes), of_codes.end(), kPoison),
        static_cast<int64_t>(code_bytes))
        << "a group that nobody chose";
    free_uploads();
  }

  /// Sorted pairs on the device and on the host.
  struct Pairs {
    SortShape shape;
    DeviceArray memory, groups_memory;
    SortedPairs sorted;
    SlotGroup* groups = nullptr;
    std::vector<int32_t> ids, slot_of_pair, scale_row_of_pair;
  };
  Pairs pairs_of(int32_t num_tokens, int32_t top_k, int32_t num_experts) {
    Pairs made{.shape = {.num_tokens = num_tokens,
                         .top_k = top_k,
                         .num_experts = num_experts,
                         .tile_slots = whole_groups(num_tokens, top_k)}};
    std::mt19937 random(17);
    std::vector<int32_t> experts(static_cast<size_t>(num_experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (int32_t token = 0; token < num_tokens; ++token) {
      // Every second token chooses among few experts.
      const int32_t choices = token % 2 == 0 ? num_experts : std::min(num_experts, top_k + 1);
      for (int32_t k = 0; k < top_k; ++k) {
        std::swap(experts[k], experts[k + static_cast<int32_t>(random() % (choices - k))]);
        made.ids.push_back(experts[k]);
      }
    }
    Scratch size(nullptr);
    take_sorted_pairs(made.shape, size);
    made.memory = poisoned<std::byte>(size.bytes());
    Scratch scratch(made.memory.buffer.data());
    made.sorted = take_sorted_pairs(made.shape, scratch);
    const std::vector<float> weights(made.ids.size(), 0.5f);
    sort_pairs(made.shape, upload(made.ids), upload(weights), made.sorted, &stream());
    const int32_t num_groups = made.sorted.capacity / 8;
    made.groups_memory = poisoned<SlotGroup>(static_cast<uint64_t>(num_groups));
    made.groups = made.groups_memory.buffer.as<SlotGroup>();
    find_slot_groups(made.sorted, made.shape, made.groups, &stream());
    const std::vector<SlotGroup> found = download<SlotGroup>(made.groups_memory);

    made.slot_of_pair.resize(made.ids.size()), made.scale_row_of_pair.resize(made.ids.size());
    std::vector<SlotGroup> expected(static_cast<size_t>(num_groups), SlotGroup{0, 0, 0});
    int32_t slot = 0, number = 0;
    for (int32_t expert = 0; expert < num_experts; ++expert) {
      const int32_t first = slot, first_row = (first / 128 + number) * 128;
      for (size_t pair = 0; pair < made.ids.size(); ++pair) {
        if (made.ids[pair] != expert) continue;
        SlotGroup& group = expected[slot / 8];
        if (slot % 8 == 0) group = {expert, first_row + slot - first, 0};
        ++group.num_slots;
        made.scale_row_of_pair[pair] = first_row + slot - first;
        made.slot_of_pair[pair] = slot++;
      }
      number += slot > first ? 1 : 0;
      slot = round_up(slot, 8);
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(found[i].expert, expected[i].expert) << i;
      EXPECT_EQ(found[i].first_row, expected[i].first_row) << i;
      EXPECT_EQ(found[i].num_slots, expected[i].num_slots) << i;
    }
    EXPECT_LE(number, made.shape.num_runs());
    return made;
  }

  /// A row of values as MXFP8 codes and scales, `columns` of them.
  struct Rounded {
    std::vector<uint8_t> codes, scales;
  };
  static Rounded rounded(const float* values, int32_t width, int32_t columns) {
    Rounded made{std::vector<uint8_t>(static_cast<size_t>(columns)),
                 std::vector<uint8_t>(static_cast<size_t>(columns / 32), 127)};
    for (int32_t first = 0; first < width; first += 32) {
      uint32_t amax = 0;
      const int32_t end = std::min(width, first + 32);
      for (int32_t i = first; i < end; ++i)
        amax = std::max(amax, f32_to_bits(values[i]) & 0x7FFFFFFFu);
      const uint8_t scale = mx_activation_scale(amax, 8);
      made.scales[first / 32] = scale;
      for (int32_t i = first; i < end; ++i)
        made.codes[i] = mx_activation_code(MxElement::kE4M3, values[i], scale);
    }
    return made;
  }

  struct Operands {
    DeviceArray codes, scales;
    BlockedView view;
  };
  Operands operands_of(const Pairs& pairs, int32_t columns) {
    Operands made;
    made.codes = poisoned<uint8_t>(static_cast<uint64_t>(pairs.sorted.capacity) * columns);
    made.scales = poisoned<uint8_t>(
        static_cast<uint64_t>(blocked_scale_bytes(scale_rows(pairs.shape), columns)));
    made.view = {made.codes.buffer.data(), made.scales.buffer.as<uint8_t>(), columns};
    return made;
  }

  /// rows[i]: what pair i should be. Up to a share `off` of a value's block, or to the bit.
  void expect_operands(const Pairs& pairs, const Operands& operands,
                       const std::vector<std::vector<float>>& rows, float off) {
    const int32_t columns = operands.view.columns;
    const std::vector<uint8_t> codes = download<uint8_t>(operands.codes);
    std::vector<uint8_t> scales = download<uint8_t>(operands.scales);
    int num_wrong = 0;
    std::vector<bool> is_written(static_cast<size_t>(pairs.sorted.capacity), false);
    for (size_t pair = 0; pair < rows.size(); ++pair) {
      const int32_t slot = pairs.slot_of_pair[pair], row = pairs.scale_row_of_pair[pair];
      const auto width = static_cast<int32_t>(rows[pair].size());
      is_written[slot] = true;
      const Rounded expected = rounded(rows[pair].data(), width, columns);
      for (int32_t column = 0; column < columns; ++column) {
        const uint8_t code = codes[static_cast<size_t>(slot) * columns + column];
        const uint8_t scale = scales[scale_index(row, column, columns)];
        bool is_right = code == expected.codes[column] && scale == expected.scales[column / 32];
        if (!is_right && off > 0 && column < width) {
          const float value = rows[pair][column];
          const float step = e8m0_to_f32(expected.scales[column / 32]);
          is_right = std::fabs(e4m3_to_f32(code) * e8m0_to_f32(scale) - value) <=
                     std::fabs(value) * (0x1p-4f + off) + (0x1p-9f + 448 * off) * step;
        }
        if (!is_right && num_wrong++ == 0)
          ADD_FAILURE() << "pair " << pair << ", column " << column << ": code " << int{code}
                        << ", scale " << int{scale} << ", not " << int{expected.codes[column]}
                        << ", " << int{expected.scales[column / 32]};
      }
    }
    EXPECT_EQ(num_wrong, 0);
    for (size_t pair = 0; pair < rows.size(); ++pair)
      for (int32_t column = 0; column < columns; column += 32)
        scales[scale_index(pairs.scale_row_of_pair[pair], column, columns)] = kPoison;
    EXPECT_EQ(std::count(scales.begin(), scales.end(), kPoison),
              static_cast<int64_t>(scales.size()))
        << "scales of rows without a pair";
    for (size_t slot = 0; slot < is_written.size(); ++slot) {
      if (is_written[slot]) continue;
      const auto* at = codes.data() + slot * columns;
      EXPECT_EQ(std::count(at, at + columns, kPoison), columns) << "slot " << slot;
    }
  }

  void expect_staged(int32_t num_tokens, int32_t top_k, int32_t num_experts, int32_t width,
                     bool is_normed) {
    SCOPED_TRACE(std::to_string(num_tokens) + " x " + std::to_string(top_k) + " x " +
                 std::to_string(width) + (is_normed ? ", normed" : ""));
    const Pairs pairs = pairs_of(num_tokens, top_k, num_experts);
    std::vector<float> values = normal_values(static_cast<uint64_t>(num_tokens) * width, 2.0f, 8);
    // A block of zeros, a small and a great one.
    for (int32_t i = 0; i < 32; ++i) values[i] = 0;
    if (width >= 96) {
      for (int32_t i = 32; i < 64; ++i) values[i] *= 0x1p-120f;
      for (int32_t i = 64; i < 96; ++i) values[i] *= is_normed ? 64.0f : 0x1p100f;
    }
    const std::vector<float> norm = normal_values(static_cast<uint64_t>(width), 1.0f, 9);
    const Operands operands = operands_of(pairs, blocked_columns(width));
    stage_blocked({.slots = {.num_tokens = num_tokens,
                             .top_k = top_k,
                             .values = upload(values),
                             .norm_weight = is_normed ? upload(norm) : nullptr,
                             .x_is_single = is_normed,
                             .slot_of_pair = pairs.sorted.slot_of_pair,
                             .to = {.width = width}},
                   .groups = pairs.groups,
                   .to = operands.view},
                  &stream());
    std::vector<std::vector<float>> rows;
    for (int32_t token = 0; token < num_tokens; ++token) {
      const float* from = &values[static_cast<size_t>(token) * width];
      std::vector<float> row(from, from + width);
      if (is_normed) {
        double square = 0;
        for (const float value : row) square += static_cast<double>(value) * value;
        const double factor = 1 / std::sqrt(square / width + 1e-5);
        for (int32_t i = 0; i < width; ++i) row[i] = static_cast<float>(row[i] * factor * norm[i]);
      }
      for (int32_t k = 0; k < top_k; ++k) rows.push_back(row);
    }
    expect_operands(pairs, operands, rows, is_normed ? 0x1p-18f : 0.0f);
    free_uploads();
  }

  void expect_swiglu(int32_t num_tokens, int32_t top_k, int32_t num_experts, int32_t intermediate) {
    SCOPED_TRACE(std::to_string(num_tokens) + " x " + std::to_string(intermediate));
    const Pairs pairs = pairs_of(num_tokens, top_k, num_experts);
    const int32_t rows = 2 * round_up(intermediate, 16);
    const auto products_f32 =
        normal_values(static_cast<uint64_t>(pairs.sorted.capacity) * rows, 4.0f, 12);
    std::vector<uint16_t> products;
    for (const float value : products_f32) products.push_back(f32_to_bf16(value));
    const auto bias = normal_values(static_cast<uint64_t>(num_experts) * rows, 1.0f, 13);
    const Operands operands = operands_of(pairs, blocked_columns(intermediate));
    constexpr float kAlpha = 1.702f, kLimit = 7.0f;
    stage_swiglu({.intermediate = intermediate,
                  .rows = rows,
                  .capacity = pairs.sorted.capacity,
                  .alpha = kAlpha,
                  .limit = kLimit,
                  .products = upload(products),
                  .bias = upload(bias),
                  .groups = pairs.groups,
                  .to = operands.view},
                 &stream());
    std::vector<std::vector<float>> expected;
    for (size_t pair = 0; pair < pairs.ids.size(); ++pair) {
      const uint16_t* from = &products[static_cast<size_t>(pairs.slot_of_pair[pair]) * rows];
      const float* add = &bias[static_cast<size_t>(pairs.ids[pair]) * rows];
      std::vector<float> made;
      for (int32_t i = 0; i < intermediate; ++i) {
        const int32_t gate = fragment_gate_up_row(i, 0), up = fragment_gate_up_row(i, 1);
        made.push_back(clamped_swiglu(bf16_to_f32(from[gate]) + add[gate],
                                      bf16_to_f32(from[up]) + add[up], kAlpha, kLimit));
      }
      expected.push_back(std::move(made));
    }
    expect_operands(pairs, operands, expected, 0x1p-18f);
    free_uploads();
  }
};

TEST_F(BlockedMxCuda, UnpackedWeightsAreTheSameValuesInTheOrderOfK) {
  expect_unpacked(16, 64, {0}, 1);
  expect_unpacked(40, 96, {1, 2}, 3);
  expect_unpacked(288, 128, {0, 3}, 5);
  expect_unpacked(128, 416, {2}, 3);
  expect_unpacked(320, 2880, {0, 1, 3}, 4);
  expect_unpacked(2880, 4096, {1}, 2);
}

TEST_F(BlockedMxCuda, SlotsAreRoundedToMxfp8) {
  for (const int32_t width : {32, 96, 2880, 4096, 12288}) {
    for (const bool is_normed : {false, true}) {
      expect_staged(1, 4, 8, width, is_normed);
      expect_staged(37, 4, 32, width, is_normed);
    }
  }
  expect_staged(700, 4, 5, 288, false);
  expect_staged(300, 16, 256, 96, false);
}

TEST_F(BlockedMxCuda, HiddenValuesAreRoundedToMxfp8) {
  for (const int32_t intermediate : {32, 96, 1472, 2880, 4096}) {
    expect_swiglu(1, 4, 8, intermediate);
    expect_swiglu(37, 4, 8, intermediate);
  }
  expect_swiglu(300, 4, 32, 288);
}

TEST_F(BlockedMxCuda, SumsOfPairsAddEachExpertsBias) {
  constexpr int32_t kTokens = 19, kTopK = 4, kExperts = 7, kWidth = 288;
  const Pairs pairs = pairs_of(kTokens, kTopK, kExperts);
  const auto outputs_f32 =
      normal_values(static_cast<uint64_t>(pairs.sorted.capacity) * kWidth, 1.0f, 14);
  std::vector<uint16_t> outputs;
  for (const float value : outputs_f32) outputs.push_back(f32_to_bf16(value));
  const auto bias = normal_values(uint64_t{kExperts} * kWidth, 1.0f, 15);
  const auto weights = normal_values(pairs.ids.size(), 1.0f, 16);
  const DeviceArray x = poisoned<float>(uint64_t{kTokens} * kWidth);
  add_pairs({.num_tokens = kTokens,
             .width = kWidth,
             .top_k = kTopK,
             .slot_of_pair = pairs.sorted.slot_of_pair,
             .weights = upload(weights),
             .pairs = upload(outputs),
             .x = x.buffer.as<float>(),
             .x_is_single = true,
             .overwrites = true,
             .bias = upload(bias),
             .expert_ids = upload(pairs.ids)},
            &stream());
  const std::vector<float> found = download<float>(x);
  for (int32_t token = 0; token < kTokens; ++token) {
    for (int32_t i = 0; i < kWidth; ++i) {
      double sum = 0;
      for (int32_t k = 0; k < kTopK; ++k) {
        const int32_t pair = token * kTopK + k;
        const double output =
            bf16_to_f32(outputs[static_cast<size_t>(pairs.slot_of_pair[pair]) * kWidth + i]);
        sum += weights[pair] * (output + bias[static_cast<size_t>(pairs.ids[pair]) * kWidth + i]);
      }
      ASSERT_NEAR(found[static_cast<size_t>(token) * kWidth + i], sum, 1e-5)
          << "token " << token << ", column " << i;
    }
  }
}

}  // namespace
}  // namespace moxie::gemm
