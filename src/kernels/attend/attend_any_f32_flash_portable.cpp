// The attend tile in portable C++, with the compiler's vectors of four floats: every 64-bit target
// has registers for them.
#include <cstring>

#include "core/formats.h"
#include "kernels/attend/attend_tile_body.h"

namespace moxie {
namespace {

struct E4m3Values {
  float value[256];
  E4m3Values() {
    for (int code = 0; code < 256; ++code) value[code] = e4m3_to_f32(static_cast<uint8_t>(code));
  }
};
const E4m3Values kE4m3;

struct Portable {
  typedef float Vec __attribute__((vector_size(16)));
  typedef int32_t Ints __attribute__((vector_size(16)));
  static constexpr int kLanes = 4;
  static constexpr int kScoreRows = 4, kScoreVecs = 2;
  static constexpr int kSumRows = 4, kSumVecs = 2;

  static Vec zero() { return Vec{}; }
  static Vec set(float x) { return Vec{x, x, x, x}; }
  static Vec load(const float* at) { return *reinterpret_cast<const Vec*>(at); }
  static void store(float* at, Vec x) { *reinterpret_cast<Vec*>(at) = x; }
  static void storeu(float* at, Vec x) { std::memcpy(at, &x, sizeof(x)); }
  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec mul(Vec a, Vec b) { return a * b; }
  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
  static Vec max(Vec a, Vec b) { return a > b ? a : b; }
  static float greatest(Vec x) {
    const float low = x[0] > x[1] ? x[0] : x[1], high = x[2] > x[3] ? x[2] : x[3];
    return low > high ? low : high;
  }
  static bool exceeds(Vec x, Vec limit) {
    const Ints above = x > limit;
    return (above[0] | above[1] | above[2] | above[3]) != 0;
  }
  static float sum(Vec x) { return (x[0] + x[1]) + (x[2] + x[3]); }
  static float first(Vec x) { return x[0]; }

  static Vec where_between(Vec x, int base, int begin, int end, Vec y) {
    const Ints lane = Ints{base, base + 1, base + 2, base + 3};
    const Ints inside = (lane >= begin) & (lane < end);
    return inside ? x : y;
  }

  // As in the AVX-512 file: Taylor to r^7, exactly 0 below -87.3. Adding 1.5 * 2^23 rounds to an
  // integer, which is then in the low bits.
  static Vec exp(Vec x) {
    const Ints tiny = x < -87.3f;
    x = tiny ? set(-87.3f) : x;
    const Vec shifted = x * 1.44269504f + 12582912.0f;
    const Vec n = shifted - 12582912.0f;
    Vec r = n * -0.693359375f + x;
    r = n * 2.12194440e-4f + r;
    Vec p = set(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    Ints bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + (127 - 0x4B400000)) << 23;
    Vec power;
    std::memcpy(&power, &bits, sizeof(power));
    return tiny ? zero() : p * power;
  }

  static void widen(const unsigned char* row, AttendKvType type, int head_dim, float* out) {
    if (type == AttendKvType::kF32) {
      std::memcpy(out, row, sizeof(float) * static_cast<size_t>(head_dim));
    } else if (type == AttendKvType::kBF16) {
      for (int i = 0; i < head_dim; ++i) {
        uint16_t bits;
        std::memcpy(&bits, row + 2 * i, 2);
        out[i] = bf16_to_f32(bits);
      }
    } else {
      for (int i = 0; i < head_dim; ++i) out[i] = kE4m3.value[row[i]];
    }
  }
  static void load_keys(const unsigned char* const* rows, AttendKvType type, int head_dim,
                        float* columns) {
    alignas(64) float row[kAttendMaxHeadDim];
    for (int key = 0; key < kAttendChunk; ++key) {
      widen(rows[key], type, head_dim, row);
      for (int d = 0; d < head_dim; ++d) columns[d * kAttendChunk + key] = row[d];
    }
  }
};

}  // namespace

extern const AttendTileCode kAttendTilePortable = AttendTileBody<Portable>::code();

}  // namespace moxie
