// Random weights by place: a warp makes one unit of 16 rows x 64 columns from the words that the
// CPU's layout has at those rows and columns.
#include "core/cuda_launch.cuh"
#include "model/repack_unit_cuda.cuh"
#include "model/synthetic_cuda.h"
#include "weights/synthetic_values.h"

namespace moxie {
namespace {

constexpr int kWarps = 8;

struct RandomParams {
  PackedMatrix target;  // all experts
  UnitTarget first_expert;
  int64_t expert_bytes = 0;
  int32_t num_tiles = 0, head_dim = 64;
  PackedRowOrder order = PackedRowOrder::kNatural;
  uint64_t stream = 0;
  uint64_t bf16_base = 0;   // kBF16, kMXFP8
  uint8_t mxfp4_scale = 0;  // kMXFP4
};

// The row of the CPU's packed matrix that corresponds to a packed row here.
__device__ int32_t cpu_row(const RandomParams& params, int32_t packed) {
  if (params.order == PackedRowOrder::kQkv) return fragment_qkv_row(packed, params.head_dim);
  if (params.order == PackedRowOrder::kGateUp)
    return gate_up_packed_row(packed / 16 * 8 + packed % 8, packed % 16 / 8);
  return packed;
}

// Half r % 2 of the word that holds row r of a 64-byte vector whose first word is `first`.
__device__ uint32_t row_word(uint64_t word, int r) {
  return static_cast<uint32_t>(r % 2 == 0 ? word : word >> 32);
}

template <DType kFormat>
__device__ void make_part(const RandomParams& params, LaneUnit& unit, int p, int64_t cpu_tile,
                          int r, int32_t col, bool is_padding) {
  const int block = col / 32, q = col % 32 / 8;
  if constexpr (kFormat == DType::kMXFP4) {
    unit.scale[p] = 127;
    uint8_t codes[8] = {};
    if (!is_padding) {
      const uint64_t base =
          static_cast<uint64_t>(cpu_tile * (params.target.cols / 32) + block) * kMxfp4BlockWords;
      const uint64_t scales =
          random_scale_word(params.stream, params.mxfp4_scale, base, static_cast<uint64_t>(r / 8));
      unit.scale[p] = static_cast<uint8_t>(scales >> (8 * (r % 8)));
      const uint32_t eight =
          row_word(random_word(params.stream, base + 2 + 8 * static_cast<uint64_t>(q) + r / 2), r);
      for (int j = 0; j < 4; ++j) {
        codes[j] = static_cast<uint8_t>(eight >> (8 * j) & 15u);
        codes[4 + j] = static_cast<uint8_t>(eight >> (8 * j + 4) & 15u);
      }
    }
    (&unit.words[0].x)[p] = fragment_mxfp4_word(codes);
  } else {
    float values[8] = {};
    if (!is_padding) {
      const uint64_t base = static_cast<uint64_t>(cpu_tile) * 4 * params.target.cols;
      for (int pair = 0; pair < 4; ++pair) {
        const uint64_t i = base + 8 * static_cast<uint64_t>(col / 2 + pair) + r / 2;
        const uint32_t two = row_word(random_bf16_word(params.stream, params.bf16_base, i), r);
        values[2 * pair] = bf16_to_f32(static_cast<uint16_t>(two));
        values[2 * pair + 1] = bf16_to_f32(static_cast<uint16_t>(two >> 16));
      }
    }
    set_part<kFormat>(unit, p, values);
  }
}

template <DType kFormat>
__global__ void __launch_bounds__(32 * kWarps)
    fill_random_kernel(const __grid_constant__ RandomParams params) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int32_t num_units = params.first_expert.num_units;
  const int64_t num_rows = i / num_units;  // of units, over all experts
  if (num_rows >= int64_t{params.num_tiles} * params.target.num_experts) return;
  const int64_t expert = num_rows / params.num_tiles;
  const auto tile = static_cast<int32_t>(num_rows % params.num_tiles);
  const auto unit_in_row = static_cast<int32_t>(i % num_units);
  LaneUnit unit;
  for (int p = 0; p < 4; ++p) {
    const int32_t col = 64 * unit_in_row + 32 * (p / 2) + 8 * (lane % 4);
    const int32_t packed = 16 * tile + lane / 4 + 8 * (p % 2);
    const bool is_padding = packed >= params.target.rows || col >= params.target.cols;
    const int32_t row = is_padding ? 0 : cpu_row(params, packed);
    make_part<kFormat>(params, unit, p, expert * params.num_tiles + row / 16, row % 16, col,
                       is_padding);
  }
  UnitTarget target = params.first_expert;
  target.units += expert * params.expert_bytes;
  store_unit<kFormat>(target, int64_t{tile} * num_units + unit_in_row, lane, unit);
}

struct TableParams {
  uint64_t* out = nullptr;
  int64_t num_words = 0;
  uint64_t stream = 0, base = 0;
};
__global__ void __launch_bounds__(256)
    fill_table_kernel(const __grid_constant__ TableParams params) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < params.num_words)
    params.out[i] = random_bf16_word(params.stream, params.base, static_cast<uint64_t>(i));
}

struct VectorParams {
  float* out = nullptr;
  int64_t count = 0;
  float value = 0;
};
__global__ void __launch_bounds__(256)
    fill_vector_kernel(const __grid_constant__ VectorParams params) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < params.count) params.out[i] = params.value;
}

dim3 blocks_for(int64_t count, int per_block) {
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(count, per_block)));
}

}  // namespace

void fill_random_matrix_cuda(const PackedMatrix& target, PackedRowOrder order, int32_t head_dim,
                             double deviation, uint64_t seed, Stream& stream) {
  CHECK(target.layout == PackedLayout::kFragment16x32 && target.cols % 32 == 0);
  const RandomParams params{.target = target,
                            .first_expert = unit_target(target),
                            .expert_bytes = target.expert_bytes(),
                            .num_tiles = target.num_tiles(),
                            .head_dim = head_dim,
                            .order = order,
                            .stream = random_stream(seed),
                            .bf16_base = random_bf16_base(deviation),
                            .mxfp4_scale = random_mxfp4_scale(deviation)};
  const int64_t num_units = int64_t{target.num_experts} * target.num_tiles() * target.num_units();
  if (num_units == 0) return;
  const auto launch = [&](auto* kernel) {
    launch_kernel("fill_random", kernel, params, blocks_for(num_units, kWarps), 32 * kWarps, 0,
                  launch_stream(&stream));
  };
  switch (target.format) {
    case DType::kBF16:
      return launch(fill_random_kernel<DType::kBF16>);
    case DType::kMXFP4:
      return launch(fill_random_kernel<DType::kMXFP4>);
    case DType::kMXFP8:
      return launch(fill_random_kernel<DType::kMXFP8>);
    default:
      CHECK(false, std::string(dtype_name(target.format)));
  }
}

void fill_random_table_cuda(const RowTable& target, double deviation, uint64_t seed,
                            Stream& stream) {
  CHECK(target.format == DType::kBF16 && target.bytes() % 8 == 0);
  const TableParams params{.out = reinterpret_cast<uint64_t*>(const_cast<std::byte*>(target.data)),
                           .num_words = target.bytes() / 8,
                           .stream = random_stream(seed),
                           .base = random_bf16_base(deviation)};
  launch_kernel("fill_table", fill_table_kernel, params, blocks_for(params.num_words, 256), 256, 0,
                launch_stream(&stream));
}

Status fill_vector_cuda(float* out, int64_t count, float value, Stream& stream) {
  if (count == 0) return {};
  const VectorParams params{out, count, value};
  launch_kernel("fill_vector", fill_vector_kernel, params, blocks_for(count, 256), 256, 0,
                launch_stream(&stream));
  return {};
}

}  // namespace moxie
