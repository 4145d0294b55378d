// The passes of sample_scan.h, written once over the compiler's vector types and compiled once for
// each instruction set. `V` is in an unnamed namespace of the including file, so that every
// instance is private to that file: the linker can never use one instruction set's code for
// another.
//
// V has kLanes, the vector types F (float), H (half as many floats), D (double), L (int64), I
// (int32), U (uint32), any(I), and multiply(U, factor, high, low).
#pragma once

#include <cstring>

#include "kernels/sample/sample_scan.h"

namespace moxie {

template <typename V>
struct SampleScanBody {
  using F = typename V::F;
  using I = typename V::I;
  using U = typename V::U;
  using D = typename V::D;
  using L = typename V::L;
  static constexpr int kLanes = V::kLanes;
  static constexpr float kInfinity = __builtin_inff();
  static constexpr float kGreatestFloat = 3.402823466e38f, kLeastNormal = 1.17549435e-38f;

  static void load(const float* at, F& x) { std::memcpy(&x, at, sizeof(F)); }
  static void store(float* at, const F& x) { std::memcpy(at, &x, sizeof(F)); }
  static void raise(const F& x, F& greatest) { greatest = x > greatest ? x : greatest; }

  static float greatest(const float* values, int32_t size) {
    F parts[4];
    for (F& part : parts) part = F{} - kInfinity;
    int32_t i = 0;
    for (; i + 4 * kLanes <= size; i += 4 * kLanes) {
#pragma GCC unroll 4
      for (int n = 0; n < 4; ++n) {
        F x;
        load(values + i + n * kLanes, x);
        raise(x, parts[n]);
      }
    }
    for (int n = 1; n < 4; ++n) raise(parts[n], parts[0]);
    float found = -kInfinity;
    for (int lane = 0; lane < kLanes; ++lane)
      found = parts[0][lane] > found ? parts[0][lane] : found;
    for (; i < size; ++i) found = values[i] > found ? values[i] : found;
    return found;
  }

  static int32_t first_equal(const float* values, int32_t size, float value) {
    int32_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      F x;
      load(values + i, x);
      if (V::any(x == value)) break;
    }
    for (; i < size; ++i) {
      if (values[i] == value) return i;
    }
    return -1;
  }

  static int32_t count_above(const float* values, int32_t size, float value) {
    I counts = I{};
    int32_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      F x;
      load(values + i, x);
      counts -= x > value;  // true is -1
    }
    int32_t count = 0;
    for (int lane = 0; lane < kLanes; ++lane) count += counts[lane];
    for (; i < size; ++i) count += values[i] > value;
    return count;
  }

  static void block_greatest(const float* values, int32_t size, float* greatest_of_block) {
    for (int32_t i = 0; i < size; i += kSampleBlock, ++greatest_of_block) {
      *greatest_of_block = greatest(values + i, size - i < kSampleBlock ? size - i : kSampleBlock);
    }
  }

  // exp of a double <= 0: 2^n exp(r), |r| <= ln 2 / 2, Taylor to r^11 (remainder below 1e-14).
  // Adding 1.5 * 2^52 rounds to an integer, which is then in the low bits.
  static void exp_double(const D& x, D& result) {
    constexpr double kShift = 6755399441055744.0;
    const D shifted = x * 1.4426950408889634 + kShift;
    const D n = shifted - kShift;
    D r = x - n * 0.693147180369123816490;
    r = r - n * 1.90821492927058770002e-10;
    D p = r * (1.0 / 39916800) + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    L bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + 1023) << 52;  // the bits of the added constant are shifted out
    D power;
    std::memcpy(&power, &bits, sizeof(power));
    result = x < -700.0 ? D{} : p * power;
  }

  static double sum_exp(const float* values, int32_t size, float above, double best,
                        double inverse_t) {
    constexpr int kHalf = kLanes / 2;
    D total[2] = {D{}, D{}};
    alignas(64) float tail[2 * kHalf];
    for (int32_t i = 0; i < size; i += 2 * kHalf) {
      const float* at = values + i;
      if (size - i < 2 * kHalf) {
        for (int lane = 0; lane < 2 * kHalf; ++lane)
          tail[lane] = i + lane < size ? values[i + lane] : -kInfinity;
        at = tail;
      }
#pragma GCC unroll 2
      for (int n = 0; n < 2; ++n) {
        typename V::H half;
        std::memcpy(&half, at + n * kHalf, sizeof(half));
        const D x = __builtin_convertvector(half, D);
        const D distance = (x - best) * inverse_t;
        D weight;
        exp_double(distance, weight);
        total[n] += x > static_cast<double>(above) ? weight : D{};
      }
    }
    double sum = 0;
    for (int lane = 0; lane < kHalf; ++lane) sum += total[0][lane] + total[1][lane];
    return sum;
  }

  static void clean(const float* raw, const uint32_t* mask, int32_t size, float* values) {
    U lane_bit, lane_idx;
    for (int lane = 0; lane < kLanes; ++lane) lane_idx[lane] = static_cast<uint32_t>(lane);
    lane_bit = U{} + 1u;
    lane_bit <<= lane_idx;
    const int32_t padded = (size + kSampleBlock - 1) / kSampleBlock * kSampleBlock;
    alignas(64) float tail[kLanes];
    for (int32_t i = 0; i < padded; i += kLanes) {
      const float* at = raw + i;
      if (i + kLanes > size) {
        for (int lane = 0; lane < kLanes; ++lane)
          tail[lane] = i + lane < size ? raw[i + lane] : -kInfinity;
        at = tail;
      }
      F x;
      load(at, x);
      x = x > kGreatestFloat ? F{} + kGreatestFloat : x;
      x = (x < kLeastNormal) & (x > -kLeastNormal) ? F{} : x;
      x = x == x ? x : F{} - kInfinity;
      if (mask != nullptr && i < size) {
        const uint32_t word = mask[i / 32] >> (i % 32);
        x = (lane_bit & word) != 0u ? x : F{} - kInfinity;
      }
      store(values + i, x);
    }
  }

  // exp(x) to 1e-4 of it, for x in -24 .. 4; for other x any number; for NaN NaN.
  static void rough_exp(const F& x, F& result) {
    const F shifted = x * 1.44269504f + 12582912.0f;
    const F n = shifted - 12582912.0f;
    const F r = x - n * 0.693147181f;
    F p = r * (1.0f / 24) + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    I bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + (127 - 0x4B400000)) << 23;
    F power;
    std::memcpy(&power, &bits, sizeof(power));
    result = p * power;
  }

  // Philox4x32-10 of counters (ids, step, 0), as philox.h has it; the first word.
  static void words(const SampleHope& hope, const U& ids, U& word) {
    U c0 = ids, c1 = U{} + hope.step[0], c2 = U{} + hope.step[1], c3 = U{};
    uint32_t key0 = hope.key[0], key1 = hope.key[1];
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      U high0, low0, high1, low1;
      V::multiply(c0, 0xD2511F53u, high0, low0);
      V::multiply(c2, 0xCD9E8D57u, high1, low1);
      c0 = high1 ^ c1 ^ key0;
      c1 = low1;
      c2 = high0 ^ c3 ^ key1;
      c3 = low0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    word = c0;
  }

  // An id wins if value / t + noise >= best score, so if -log(-log u) >= -x with x = (value - best)
  // / t - gap, so if -log u <= exp(x). As -log u >= 1 - u, only if 1 - u <= exp(x); and as 1 - u >=
  // 2^-33, only if x >= -22.88. Both tests have slack for the rounding of x (below 1e-5 where it
  // matters) and of exp; an id that passes is computed exactly.
  static int32_t next_hopeful(const SampleHope& hope, int32_t from) {
    constexpr float kLeastHope = -22.9f, kSlack = 1e-3f;
    U lane_idx;
    for (int lane = 0; lane < kLanes; ++lane) lane_idx[lane] = static_cast<uint32_t>(lane);
    for (int32_t i = from / kLanes * kLanes; i < hope.size; i += kLanes) {
      F value;
      load(hope.values + i, value);
      const F x = (value - hope.best) * hope.inverse_t - hope.gap;
      I hopeful = (value >= hope.least) & ~(x < kLeastHope);
      if (!V::any(hopeful)) continue;
      U word;
      words(hope, lane_idx + static_cast<uint32_t>(i), word);
      F bound;
      rough_exp(x + kSlack, bound);
      const F rest = __builtin_convertvector(~word, F) + 0.5f;  // (1 - u) 2^32
      hopeful &= ~(rest >= bound * 4294967296.0f);
      if (!V::any(hopeful)) continue;
      for (int lane = 0; lane < kLanes; ++lane) {
        if (hopeful[lane] && i + lane >= from) return i + lane;
      }
    }
    return hope.size;
  }

  static constexpr SampleScanCode code() {
    return {greatest, first_equal, count_above, block_greatest, sum_exp, clean, next_hopeful};
  }
};

}  // namespace moxie
