// Repacks stored bytes on the device: a warp a unit of 16 rows x 64 columns. Reading and copying
// bound a load at some 50 GB/s, so that these kernels need a few percent of the device's memory
// bandwidth: they load bytes where stored blocks are not aligned (GGUF) and are kept simple.
#include "core/cuda_launch.cuh"
#include "model/repack_cuda.h"
#include "model/repack_unit_cuda.cuh"

namespace moxie {
namespace {

using Kind = StoredRows::Kind;
constexpr int kWarps = 8;

template <typename T>
__device__ T load_as(const std::byte* at) {
  return *reinterpret_cast<const T*>(at);
}

__device__ float load_element(Kind kind, const std::byte* base, int64_t i) {
  if (kind == Kind::kF32) return load_as<float>(base + 4 * i);
  const auto half = load_as<uint16_t>(base + 2 * i);
  return kind == Kind::kF16 ? f16_to_f32(half) : bf16_to_f32(half);
}

__device__ bool is_mxfp4(Kind kind) {
  return kind == Kind::kMxfp4Split || kind == Kind::kMxfp4Gguf;
}

// Eight codes from column 8q of a stored block, and its scale.
__device__ uint8_t load_mxfp4(const StoredRows& rows, int64_t row, int block, int q,
                              uint8_t codes[8]) {
  const std::byte* base = rows.data + row * rows.row_stride_bytes;
  if (rows.kind == Kind::kMxfp4Split) {
    const auto eight = load_as<uint32_t>(base + 16 * block + 4 * q);
    for (int j = 0; j < 8; ++j) codes[j] = static_cast<uint8_t>(eight >> (4 * j) & 15u);
    return static_cast<uint8_t>(rows.scales[row * rows.scale_stride_bytes + block]);
  }
  const std::byte* at = base + 17 * block;  // a byte holds columns j and j + 16
  for (int j = 0; j < 8; ++j) {
    const auto byte = static_cast<uint8_t>(at[1 + 8 * (q % 2) + j]);
    codes[j] = static_cast<uint8_t>(q < 2 ? byte & 15 : byte >> 4);
  }
  return static_cast<uint8_t>(at[0]);
}

// Columns [col, col + 8) of a stored row as StoredRows::read_row gives them; zeros past the end.
__device__ void load_values(const StoredRows& rows, int64_t row, int32_t col, float values[8]) {
  const int block = col / 32, q = col % 32 / 8;
  if (is_mxfp4(rows.kind)) {
    uint8_t codes[8];
    const float factor = e8m0_to_f32(load_mxfp4(rows, row, block, q, codes));
    for (int j = 0; j < 8; ++j) values[j] = e2m1_to_f32(codes[j]) * factor;
    return;
  }
  const std::byte* base = rows.data + row * rows.row_stride_bytes;
  if (rows.kind == Kind::kQ8_0) {
    const std::byte* at = base + 34 * block;
    const float factor = f16_to_f32(load_as<uint16_t>(at));
    for (int j = 0; j < 8; ++j)
      values[j] = factor * static_cast<float>(static_cast<int8_t>(at[2 + 8 * q + j]));
    return;
  }
  for (int j = 0; j < 8; ++j) {
    if (col + j >= rows.cols)
      values[j] = 0.0f;
    else if (rows.transposed)
      values[j] = load_element(rows.kind, rows.data + (col + j) * rows.row_stride_bytes, row);
    else
      values[j] = load_element(rows.kind, base, col + j);
  }
}

// If source and target formats are the same, bits are copied; otherwise values go through F32.
template <DType kFormat>
__device__ void fill_part(const MatrixRepack& repack, LaneUnit& unit, int p, int32_t tile,
                          int32_t col, int lane) {
  const PackedRowSource place = packed_row_source(repack, tile, lane / 4 + 8 * (p % 2));
  const RepackSource& source = repack.sources[place.source];
  const StoredRows& rows = source.rows;
  const bool is_padding = place.row < 0 || col / 32 * 32 >= rows.cols;
  const int64_t row = source.first + int64_t{place.row} * source.step - source.loaded_first;
  const int block = col / 32, q = lane % 4;
  if (kFormat == DType::kMXFP4 && is_mxfp4(rows.kind)) {
    uint8_t codes[8] = {};
    unit.scale[p] = is_padding ? 127 : load_mxfp4(rows, row, block, q, codes);
    (&unit.words[0].x)[p] = fragment_mxfp4_word(codes);
  } else if constexpr (kFormat == DType::kQ8_0) {
    uint8_t codes[8] = {};
    unit.scale[p] = 0;
    if (!is_padding) {
      const std::byte* at = rows.data + row * rows.row_stride_bytes + 34 * block;
      for (int j = 0; j < 8; ++j) codes[j] = static_cast<uint8_t>(at[2 + 8 * q + j]);
      unit.scale[p] = load_as<uint16_t>(at);
    }
    memcpy(reinterpret_cast<std::byte*>(&unit.words[p % 2]) + 8 * (p / 2), codes, 8);
  } else if (kFormat == DType::kBF16 && rows.kind == Kind::kBF16 && !rows.transposed) {
    uint16_t halves[8] = {};
    const std::byte* at = rows.data + row * rows.row_stride_bytes;
    for (int j = 0; j < 8; ++j)
      if (!is_padding && col + j < rows.cols) halves[j] = load_as<uint16_t>(at + 2 * (col + j));
    memcpy(&unit.words[p], halves, 16);
  } else if constexpr (kFormat != DType::kQ8_0) {
    float values[8] = {};
    if (!is_padding) load_values(rows, row, col, values);
    set_part<kFormat>(unit, p, values);
  }
  if (repack.nan_row != nullptr && !is_padding && q == 0 && is_mxfp4(rows.kind)) {
    uint8_t codes[8];
    if (load_mxfp4(rows, row, block, q, codes) == 255)
      atomicMin(repack.nan_row, static_cast<int32_t>(row + source.loaded_first));
  }
}

struct MatrixParams {
  MatrixRepack repack;
  UnitTarget target;
};

// Five blocks of an SM leave 48 registers, so that nothing spills; by itself the assembler aims
// at 40.
template <DType kFormat>
__global__ void __launch_bounds__(32 * kWarps, 5)
    repack_matrix_kernel(const __grid_constant__ MatrixParams params) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const UnitTarget& target = params.target;
  if (i >= int64_t{params.repack.num_tiles} * target.num_units) return;
  const auto tile = static_cast<int32_t>(params.repack.first_tile + i / target.num_units);
  const auto unit_in_row = static_cast<int32_t>(i % target.num_units);
  LaneUnit unit;
  for (int p = 0; p < 4; ++p) {
    const int32_t col = 64 * unit_in_row + 32 * (p / 2) + 8 * (lane % 4);
    fill_part<kFormat>(params.repack, unit, p, tile, col, lane);
  }
  store_unit<kFormat>(target, int64_t{tile} * target.num_units + unit_in_row, lane, unit);
}

__global__ void __launch_bounds__(256)
    repack_vector_kernel(const __grid_constant__ VectorRepack repack) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= int64_t{repack.num_experts} * repack.count) return;
  const auto expert = static_cast<int32_t>(i / repack.count);
  const auto element = static_cast<int32_t>(i % repack.count);
  const int32_t place = repack.half < 0 ? element : fragment_gate_up_row(element, repack.half);
  repack.out[expert * repack.out_stride + place] =
      load_element(repack.kind, repack.data + expert * repack.expert_stride_bytes,
                   int64_t{element} * repack.step);
}

// One thread for each group of eight columns.
__global__ void __launch_bounds__(256)
    repack_table_kernel(const __grid_constant__ TableRepack repack) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int32_t groups = (repack.target.cols + 7) / 8;
  if (i >= int64_t{repack.num_rows} * groups) return;
  const auto r = static_cast<int32_t>(i / groups);
  const auto col = static_cast<int32_t>(i % groups) * 8;
  const RepackSource& source = repack.source;
  float values[8];
  load_values(source.rows, source.first + int64_t{r} * source.step - source.loaded_first, col,
              values);
  const int64_t at = int64_t{repack.first_row + r} * repack.target.cols + col;
  for (int j = 0; j < 8 && col + j < repack.target.cols; ++j) {
    auto* out = const_cast<std::byte*>(repack.target.data);
    if (repack.target.format == DType::kF32)
      reinterpret_cast<float*>(out)[at + j] = values[j];
    else
      reinterpret_cast<uint16_t*>(out)[at + j] = f32_to_bf16(values[j]);
  }
}

dim3 blocks_for(int64_t count, int per_block) {
  return dim3(static_cast<unsigned>(ceil_div<int64_t>(count, per_block)));
}

}  // namespace

void repack_on_device(const MatrixRepack& repack, Stream& stream) {
  CHECK(repack.target.layout == PackedLayout::kFragment16x32 && repack.target.num_experts == 1);
  const MatrixParams params{repack, unit_target(repack.target)};
  const int64_t num_units = int64_t{repack.num_tiles} * params.target.num_units;
  if (num_units == 0) return;
  const auto launch = [&](auto* kernel) {
    launch_kernel("repack_matrix", kernel, params, blocks_for(num_units, kWarps), 32 * kWarps, 0,
                  launch_stream(&stream));
  };
  switch (repack.target.format) {
    case DType::kF32:
      return launch(repack_matrix_kernel<DType::kF32>);
    case DType::kBF16:
      return launch(repack_matrix_kernel<DType::kBF16>);
    case DType::kQ8_0:
      CHECK(repack.sources[0].rows.kind == Kind::kQ8_0, "Q8_0 is copied, never made");
      return launch(repack_matrix_kernel<DType::kQ8_0>);
    case DType::kMXFP4:
      return launch(repack_matrix_kernel<DType::kMXFP4>);
    case DType::kMXFP8:
      return launch(repack_matrix_kernel<DType::kMXFP8>);
    default:
      CHECK(false, "not a packed format");
  }
}

void repack_on_device(const VectorRepack& repack, Stream& stream) {
  const int64_t count = int64_t{repack.num_experts} * repack.count;
  if (count == 0) return;
  launch_kernel("repack_vector", repack_vector_kernel, repack, blocks_for(count, 256), 256, 0,
                launch_stream(&stream));
}

void repack_on_device(const TableRepack& repack, Stream& stream) {
  CHECK(repack.target.format == DType::kF32 || repack.target.format == DType::kBF16);
  const int64_t count = int64_t{repack.num_rows} * ceil_div(repack.target.cols, 8);
  if (count == 0) return;
  launch_kernel("repack_table", repack_table_kernel, repack, blocks_for(count, 256), 256, 0,
                launch_stream(&stream));
}

}  // namespace moxie
