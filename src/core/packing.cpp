// Packs and reads kRows16 tiles.
#include "core/packing.h"

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

// Four nibbles to the low halves of four bytes.
constexpr uint32_t spread_nibbles(uint32_t nibbles) {
  nibbles = (nibbles | nibbles << 8) & 0x00FF00FFu;
  return (nibbles | nibbles << 4) & 0x0F0F0F0Fu;
}

// The same from 16 stored bytes, four whole words at a time: files are gigabytes of these.
void put_stored_mxfp4(std::byte* block, int lane, std::byte scale, const std::byte* stored,
                      NibbleOrder order) {
  block[lane] = scale;
  std::byte* words = block + 16 + 4 * lane;
  if (order == NibbleOrder::kAdjacent) {
    for (int j = 0; j < 4; ++j) {
      const auto pairs = load<uint32_t>(stored + 4 * j);  // nibble i is element 8j + i
      const uint32_t word = spread_nibbles(pairs & 0xFFFFu) | spread_nibbles(pairs >> 16) << 4;
      std::memcpy(words + 64 * j, &word, 4);
    }
    return;
  }
  for (int j = 0; j < 4; ++j) {  // elements 0..15 are low nibbles, 16..31 high ones
    const int shift = j < 2 ? 0 : 4;
    const std::byte* at = stored + 8 * (j % 2);
    const uint32_t word = (load<uint32_t>(at) >> shift & 0x0F0F0F0Fu) |
                          (load<uint32_t>(at + 4) >> shift & 0x0F0F0F0Fu) << 4;
    std::memcpy(words + 64 * j, &word, 4);
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
    const bool is_gguf = source.kind == StoredRows::Kind::kMxfp4Gguf;
    const std::byte* base = source.data + row * source.row_stride_bytes;
    const std::byte* scales = source.scales + row * source.scale_stride_bytes;
    for (int block = 0; block < cols / 32; ++block) {
      if (is_gguf) {
        put_stored_mxfp4(tile + 272 * block, lane, base[17 * block], base + 17 * block + 1,
                         NibbleOrder::kHalves);
      } else {
        put_stored_mxfp4(tile + 272 * block, lane, scales[block], base + 16 * block,
                         NibbleOrder::kAdjacent);
      }
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
          for (int b = 0; b < 4; ++b) {
            const auto byte = static_cast<uint8_t>(at[16 + 64 * j + 4 * lane + b]);
            eight[b] = scale * e2m1_to_f32(byte & 15);
            eight[4 + b] = scale * e2m1_to_f32(byte >> 4);
          }
        }
      }
      return;
    default:
      for (int32_t k = 0; k < cols; ++k) out[k] = packed_value(matrix, row, k);
  }
}

}  // namespace moxie
