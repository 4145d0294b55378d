// Packs and reads kRows16 tiles.
#include "core/packing.h"

#include <array>
#include <vector>

namespace moxie {
namespace {

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

float load_element(StoredRows::Kind kind, const std::byte* base, int64_t i) {
  switch (kind) {
    case StoredRows::Kind::kF32:
      return load<float>(base + 4 * i);
    case StoredRows::Kind::kF16:
      return f16_to_f32(load<uint16_t>(base + 2 * i));
    case StoredRows::Kind::kBF16:
      return bf16_to_f32(load<uint16_t>(base + 2 * i));
    default:
      CHECK(false, "block formats have no single elements");
  }
  return 0;
}

int64_t element_bytes(StoredRows::Kind kind) { return kind == StoredRows::Kind::kF32 ? 4 : 2; }

// One MXFP4 block of one lane: 32 codes into the four vectors.
void put_mxfp4(std::byte* block, int lane, uint8_t scale, const uint8_t* codes) {
  block[lane] = static_cast<std::byte>(scale);
  for (int j = 0; j < 4; ++j) {
    std::byte* word = block + 16 + 64 * j + 4 * lane;
    for (int b = 0; b < 4; ++b) {
      word[b] = static_cast<std::byte>(codes[8 * j + b] | (codes[8 * j + 4 + b] << 4));
    }
  }
}

void stored_mxfp4_codes(const StoredRows& source, int64_t row, int block, uint8_t* scale,
                        uint8_t* codes) {
  const bool gguf = source.kind == StoredRows::Kind::kMxfp4Gguf;
  const std::byte* base = source.data + row * source.row_stride_bytes;
  const std::byte* at = gguf ? base + 17 * block + 1 : base + 16 * block;
  *scale = static_cast<uint8_t>(gguf ? base[17 * block]
                                     : source.scales[row * source.scale_stride_bytes + block]);
  const auto* bytes = reinterpret_cast<const uint8_t*>(at);
  const NibbleOrder order = gguf ? NibbleOrder::kHalves : NibbleOrder::kAdjacent;
  for (int i = 0; i < kMxBlock; ++i) codes[i] = mxfp4_code(bytes, i, order);
}

void put_q8(std::byte* block, int lane, uint16_t scale, const int8_t* values) {
  std::memcpy(block + 2 * lane, &scale, 2);
  for (int j = 0; j < 8; ++j) std::memcpy(block + 32 + 64 * j + 4 * lane, values + 4 * j, 4);
}

void quantize_q8(const float* values, uint16_t* scale, int8_t* codes) {
  float amax = 0;
  for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(values[i]));
  const float d = amax / 127.0f;
  const float inverse = d > 0 ? 1.0f / d : 0.0f;
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<int8_t>(std::lround(values[i] * inverse));
  *scale = f32_to_f16(d);
}

bool is_mxfp4(StoredRows::Kind kind) {
  return kind == StoredRows::Kind::kMxfp4Split || kind == StoredRows::Kind::kMxfp4Gguf;
}

void put_lane(const StoredRows& source, int64_t row, int lane, DType target, std::byte* tile,
              std::vector<float>& scratch) {
  const int32_t cols = source.cols;
  uint8_t codes[32];
  if (target == DType::kMXFP4 && is_mxfp4(source.kind)) {
    for (int block = 0; block < cols / 32; ++block) {
      uint8_t scale;
      stored_mxfp4_codes(source, row, block, &scale, codes);
      put_mxfp4(tile + 272 * block, lane, scale, codes);
    }
    return;
  }
  if (target == DType::kQ8_0 && source.kind == StoredRows::Kind::kQ8_0) {
    const std::byte* base = source.data + row * source.row_stride_bytes;
    for (int block = 0; block < cols / 32; ++block) {
      put_q8(tile + 544 * block, lane, load<uint16_t>(base + 34 * block),
             reinterpret_cast<const int8_t*>(base + 34 * block + 2));
    }
    return;
  }
  if (target == DType::kBF16 && source.kind == StoredRows::Kind::kBF16 && !source.transposed) {
    const std::byte* base = source.data + row * source.row_stride_bytes;
    for (int j = 0; j < cols / 2; ++j) std::memcpy(tile + 64 * j + 4 * lane, base + 4 * j, 4);
    return;
  }
  scratch.resize(static_cast<size_t>(cols));
  source.read_row(row, scratch.data());
  switch (target) {
    case DType::kF32:
      for (int k = 0; k < cols; ++k) std::memcpy(tile + 64 * k + 4 * lane, &scratch[k], 4);
      return;
    case DType::kBF16:
      for (int k = 0; k < cols; ++k) {
        const uint16_t bits = f32_to_bf16(scratch[k]);
        std::memcpy(tile + 64 * (k / 2) + 4 * lane + 2 * (k & 1), &bits, 2);
      }
      return;
    case DType::kQ8_0:
      for (int block = 0; block < cols / 32; ++block) {
        uint16_t scale;
        int8_t values[32];
        quantize_q8(&scratch[32 * block], &scale, values);
        put_q8(tile + 544 * block, lane, scale, values);
      }
      return;
    case DType::kMXFP4:
      for (int block = 0; block < cols / 32; ++block) {
        const uint8_t scale = quantize_mxfp4(&scratch[32 * block], codes);
        put_mxfp4(tile + 272 * block, lane, scale, codes);
      }
      return;
    default:
      CHECK(false, "not a packed format");
  }
}

// ---- Whole tiles --------------------------------------------------------------------------------
// The formats of large files: packs 16 rows at once, transposing four by four words in registers.

typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

// to[64 * j] = word j of rows[0], .., rows[3].
void store_turned(const Words rows[4], std::byte* to) {
  const Words low01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const Words low23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const Words high01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const Words high23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  const Words turned[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                           __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                           __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                           __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int j = 0; j < 4; ++j) std::memcpy(to + 64 * j, &turned[j], 16);
}

// The four words of a row's block: word j has elements 8j.. in low nibbles, 8j + 4.. in high ones.
template <NibbleOrder kOrder>
Words mxfp4_words(Bytes stored) {
  Bytes first = stored & 15, second = stored >> 4;  // elements by their order in the file
  if constexpr (kOrder == NibbleOrder::kAdjacent) {
    const Bytes low = first, high = second;
    first =
        __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    second = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
                                     30, 15, 31);
  }
  const auto a = reinterpret_cast<Words>(first), b = reinterpret_cast<Words>(second);
  return __builtin_shufflevector(a, b, 0, 2, 4, 6) | __builtin_shufflevector(a, b, 1, 3, 5, 7) << 4;
}

// Rows whose blocks lie `kBlockBytes` apart from codes[lane] on, and their scales likewise.
template <NibbleOrder kOrder, int kBlockBytes, int kScaleBytes>
void put_mxfp4_tile(const std::byte* const codes[16], const std::byte* const scales[16],
                    int num_blocks, std::byte* tile) {
  for (int block = 0; block < num_blocks; ++block, tile += 272) {
    for (int lane = 0; lane < 16; ++lane) tile[lane] = scales[lane][kScaleBytes * block];
    for (int lane = 0; lane < 16; lane += 4) {
      Words words[4];
      for (int i = 0; i < 4; ++i)
        words[i] = mxfp4_words<kOrder>(load<Bytes>(codes[lane + i] + kBlockBytes * block));
      store_turned(words, tile + 16 + 4 * lane);
    }
  }
}

void put_bf16_tile(const std::byte* const rows[16], int cols, std::byte* tile) {
  int j = 0;
  for (; j + 4 <= cols / 2; j += 4) {
    for (int lane = 0; lane < 16; lane += 4) {
      Words words[4];
      for (int i = 0; i < 4; ++i) words[i] = load<Words>(rows[lane + i] + 4 * j);
      store_turned(words, tile + 64 * j + 4 * lane);
    }
  }
  for (; j < cols / 2; ++j)
    for (int lane = 0; lane < 16; ++lane)
      std::memcpy(tile + 64 * j + 4 * lane, rows[lane] + 4 * j, 4);
}

// Packs the tile if it is of a kind above and has 16 rows; else returns false.
bool put_whole_tile(const StoredRows& source, const int64_t rows[16], DType target,
                    std::byte* tile) {
  const bool is_mx = target == DType::kMXFP4 && is_mxfp4(source.kind);
  const bool is_bf16 =
      target == DType::kBF16 && source.kind == StoredRows::Kind::kBF16 && !source.transposed;
  if (!is_mx && !is_bf16) return false;
  const std::byte *data[16], *scales[16];
  for (int lane = 0; lane < 16; ++lane) {
    data[lane] = source.data + rows[lane] * source.row_stride_bytes;
    scales[lane] = source.scales + rows[lane] * source.scale_stride_bytes;
  }
  if (is_bf16) {
    put_bf16_tile(data, source.cols, tile);
  } else if (source.kind == StoredRows::Kind::kMxfp4Split) {
    put_mxfp4_tile<NibbleOrder::kAdjacent, 16, 1>(data, scales, source.cols / 32, tile);
  } else {  // a block is its scale and its codes
    const std::byte* codes[16];
    for (int lane = 0; lane < 16; ++lane) codes[lane] = data[lane] + 1;
    put_mxfp4_tile<NibbleOrder::kHalves, 17, 17>(codes, data, source.cols / 32, tile);
  }
  return true;
}

}  // namespace

void StoredRows::read_row(int64_t r, float* out) const {
  if (transposed) {
    const int64_t size = element_bytes(kind);
    for (int32_t k = 0; k < cols; ++k) {
      out[k] = load_element(kind, data + k * row_stride_bytes + r * size, 0);
    }
    return;
  }
  if (is_mxfp4(kind)) {
    uint8_t codes[32];
    for (int block = 0; block < cols / 32; ++block) {
      uint8_t scale;
      stored_mxfp4_codes(*this, r, block, &scale, codes);
      const float factor = e8m0_to_f32(scale);
      for (int i = 0; i < 32; ++i) out[32 * block + i] = e2m1_to_f32(codes[i]) * factor;
    }
    return;
  }
  const std::byte* base = data + r * row_stride_bytes;
  if (kind == Kind::kQ8_0) {
    for (int block = 0; block < cols / 32; ++block) {
      const float d = f16_to_f32(load<uint16_t>(base + 34 * block));
      const auto* q = reinterpret_cast<const int8_t*>(base + 34 * block + 2);
      for (int i = 0; i < 32; ++i) out[32 * block + i] = d * static_cast<float>(q[i]);
    }
    return;
  }
  for (int32_t k = 0; k < cols; ++k) out[k] = load_element(kind, base, k);
}

void pack_tile_rows16(const StoredRows& source, const int64_t rows[16], DType target,
                      std::byte* tile) {
  PackedMatrix one{.format = target, .rows = 16, .cols = source.cols};
  bool padded = false;
  for (int lane = 0; lane < 16; ++lane) padded |= rows[lane] < 0;
  if (!padded && put_whole_tile(source, rows, target, tile)) return;
  if (padded) {
    std::memset(tile, 0, static_cast<size_t>(one.tile_bytes()));
    if (target == DType::kMXFP4) {
      for (int block = 0; block < source.cols / 32; ++block)
        std::memset(tile + 272 * block, 127, 16);
    }
  }
  std::vector<float> scratch;
  for (int lane = 0; lane < 16; ++lane) {
    if (rows[lane] >= 0) put_lane(source, rows[lane], lane, target, tile, scratch);
  }
}

double packed_value(const PackedMatrix& matrix, int32_t row, int32_t col) {
  const std::byte* tile = matrix.tile(0, row / 16);
  const int lane = row % 16;
  switch (matrix.format) {
    case DType::kF32:
      return load<float>(tile + int64_t{64} * col + 4 * lane);
    case DType::kBF16:
      return bf16_to_f32(load<uint16_t>(tile + int64_t{64} * (col / 2) + 4 * lane + 2 * (col & 1)));
    case DType::kQ8_0: {
      const std::byte* block = tile + int64_t{544} * (col / 32);
      const int k = col % 32;
      const double scale = f16_to_f32(load<uint16_t>(block + 2 * lane));
      return scale * load<int8_t>(block + 32 + 64 * (k / 4) + 4 * lane + k % 4);
    }
    case DType::kMXFP4: {
      const std::byte* block = tile + int64_t{272} * (col / 32);
      const int k = col % 32;
      const auto byte = static_cast<uint8_t>(block[16 + 64 * (k / 8) + 4 * lane + k % 4]);
      const auto code = static_cast<uint8_t>(k % 8 < 4 ? byte & 15 : byte >> 4);
      return static_cast<double>(e2m1_to_f32(code)) *
             e8m0_to_f32(static_cast<uint8_t>(block[lane]));
    }
    default:
      CHECK(false, "not a packed format");
  }
  return 0;
}

void read_packed_row(const PackedMatrix& matrix, int32_t row, double* out) {
  static const auto values = [] {
    std::array<double, 16> all;
    for (size_t code = 0; code < 16; ++code) all[code] = e2m1_to_f32(static_cast<uint8_t>(code));
    return all;
  }();
  const std::byte* tile = matrix.tile(0, row / 16);
  const int lane = row % 16;
  const int32_t cols = matrix.cols;
  switch (matrix.format) {
    case DType::kF32:
      for (int32_t k = 0; k < cols; ++k) out[k] = load<float>(tile + int64_t{64} * k + 4 * lane);
      return;
    case DType::kBF16:
      for (int32_t j = 0; j < cols / 2; ++j) {
        const auto pair = load<uint32_t>(tile + int64_t{64} * j + 4 * lane);
        out[2 * j] = bf16_to_f32(static_cast<uint16_t>(pair));
        out[2 * j + 1] = bf16_to_f32(static_cast<uint16_t>(pair >> 16));
      }
      return;
    case DType::kMXFP4:
      for (int32_t block = 0; block < cols / 32; ++block) {
        const std::byte* at = tile + int64_t{272} * block;
        const double scale = e8m0_to_f32(static_cast<uint8_t>(at[lane]));
        for (int j = 0; j < 4; ++j) {
          double* eight = out + 32 * block + 8 * j;
          const auto codes = load<uint32_t>(at + 16 + 64 * j + 4 * lane);
          for (int k = 0; k < 8; ++k)
            eight[k] = scale * values[codes >> (8 * (k % 4) + k / 4 * 4) & 15];
        }
      }
      return;
    default:
      for (int32_t k = 0; k < cols; ++k) out[k] = packed_value(matrix, row, k);
  }
}

}  // namespace moxie
