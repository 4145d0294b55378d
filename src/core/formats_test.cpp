// The scalar codecs, bit for bit: every code decoded against its definition, every rounding border
// against a search for the nearest value in double precision, ties to the even code.
#include "core/formats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace moxie {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A sign bit, `exponent_bits` and `mantissa_bits`; exponent 0 is subnormal.
double decode(uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>((code >> mantissa_bits) & ((1u << exponent_bits) - 1));
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  return (code >> (exponent_bits + mantissa_bits)) & 1 ? -magnitude : magnitude;
}

// The magnitudes of a format by rising code, for a search by value.
class Magnitudes {
 public:
  /// With `saturate`, everything above the last value rounds to it; else it rounds as if the next
  /// code (infinity) had the value one step on.
  Magnitudes(std::vector<double> values, bool saturate)
      : values_(std::move(values)), saturate_(saturate) {
    const size_t n = values_.size();
    if (!saturate_) values_.push_back(2 * values_[n - 1] - values_[n - 2]);
  }
  uint32_t nearest(double magnitude) const {
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    if (above == values_.end()) return static_cast<uint32_t>(values_.size() - 1);
    const auto high = static_cast<uint32_t>(above - values_.begin());
    if (*above == magnitude || high == 0) return high;
    const double to_low = magnitude - values_[high - 1], to_high = *above - magnitude;
    if (to_low != to_high) return to_low < to_high ? high - 1 : high;
    return high % 2 == 0 ? high : high - 1;
  }
  /// All values, all middles, and the floats beside each.
  std::vector<float> borders() const {
    std::vector<float> list;
    for (size_t i = 0; i + 1 < values_.size(); ++i) {
      for (double at : {values_[i], (values_[i] + values_[i + 1]) / 2}) {
        const auto value = static_cast<float>(at);
        list.insert(list.end(), {value, std::nextafter(value, kInf), std::nextafter(value, -kInf)});
      }
    }
    return list;
  }

 private:
  std::vector<double> values_;
  bool saturate_;
};

Magnitudes bf16_magnitudes() {
  std::vector<double> values;
  for (uint32_t code = 0; code < 0x7F80; ++code) values.push_back(decode(code, 8, 7));
  return {values, false};
}
Magnitudes f16_magnitudes() {
  std::vector<double> values;
  for (uint32_t code = 0; code < 0x7C00; ++code) values.push_back(decode(code, 5, 10));
  return {values, false};
}
Magnitudes e4m3_magnitudes() {
  std::vector<double> values;
  for (uint32_t code = 0; code < 0x7F; ++code) values.push_back(decode(code, 4, 3));
  return {values, true};
}
Magnitudes e2m1_magnitudes() { return {{0, 0.5, 1, 1.5, 2, 3, 4, 6}, true}; }

// Borders of the format and floats of all sizes, with both signs: encode(v) must be the code that
// the search finds.
template <typename Encode>
void expect_nearest(const Magnitudes& magnitudes, uint32_t sign_bit, Encode encode) {
  std::vector<float> values = magnitudes.borders();
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    const float value = bits_to_f32(random());
    if (std::isfinite(value)) values.push_back(value);
  }
  values.push_back(std::numeric_limits<float>::max());
  values.push_back(std::numeric_limits<float>::denorm_min());
  int num_wrong = 0;
  for (float value : values) {
    for (float v : {value, -value}) {
      const uint32_t expected =
          magnitudes.nearest(std::fabs(static_cast<double>(v))) | (std::signbit(v) ? sign_bit : 0);
      const uint32_t found = encode(v);
      if (found != expected && ++num_wrong < 5) {
        ADD_FAILURE() << "value " << v << " (bits " << std::hex << f32_to_bits(v) << "): code "
                      << found << ", nearest " << expected;
      }
    }
  }
  EXPECT_EQ(num_wrong, 0);
}

TEST(Bf16, EveryCodeDecodesAndComesBack) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = bf16_to_f32(static_cast<uint16_t>(code));
    if ((code & 0x7FFF) > 0x7F80) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(value)))) << code;
      continue;
    }
    if ((code & 0x7FFF) == 0x7F80) {
      EXPECT_TRUE(std::isinf(value)) << code;
    } else {
      EXPECT_EQ(value, decode(code, 8, 7)) << code;
    }
    EXPECT_EQ(f32_to_bf16(value), code);
  }
}

TEST(Bf16, RoundsToNearestEven) { expect_nearest(bf16_magnitudes(), 0x8000, f32_to_bf16); }

TEST(Bf16, NanWithLowBitsOnlyStaysNan) {
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(bits_to_f32(0x7F800001)))));
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(bits_to_f32(0xFFFFFFFF)))));
}

TEST(F16, EveryCodeDecodesAndComesBack) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float value = f16_to_f32(static_cast<uint16_t>(code));
    if ((code & 0x7FFF) > 0x7C00) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value)))) << code;
      continue;
    }
    if ((code & 0x7FFF) == 0x7C00) {
      EXPECT_TRUE(std::isinf(value)) << code;
    } else {
      EXPECT_EQ(value, decode(code, 5, 10)) << code;
    }
    EXPECT_EQ(std::signbit(value), (code & 0x8000) != 0) << code;
    EXPECT_EQ(f32_to_f16(value), code);
  }
}

TEST(F16, RoundsToNearestEven) { expect_nearest(f16_magnitudes(), 0x8000, f32_to_f16); }

TEST(E4m3, EveryCodeDecodesAndComesBack) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    EXPECT_EQ(value, decode(code, 4, 3)) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
    EXPECT_EQ(f32_to_e4m3(value), code);
  }
  EXPECT_EQ(e4m3_to_f32(0x7E), 448.0f);
  EXPECT_EQ(e4m3_to_f32(0x01), 0.001953125f);
}

TEST(E4m3, RoundsToNearestEvenAndSaturates) {
  expect_nearest(e4m3_magnitudes(), 0x80, f32_to_e4m3);
  EXPECT_EQ(f32_to_e4m3(kInf), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-kInf), 0xFE);
  EXPECT_EQ(f32_to_e4m3(kNan) & 0x7F, 0x7F);
}

TEST(E2m1, EveryCodeDecodesAndComesBack) {
  const double magnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 16; ++code) {
    const float value = e2m1_to_f32(code);
    EXPECT_EQ(std::fabs(value), magnitudes[code & 7]);
    EXPECT_EQ(std::signbit(value), code >= 8);
    EXPECT_EQ(f32_to_e2m1(value), code);
  }
}

TEST(E2m1, RoundsToNearestEvenAndSaturates) {
  expect_nearest(e2m1_magnitudes(), 8, f32_to_e2m1);
  EXPECT_EQ(f32_to_e2m1(kInf), 7);
  EXPECT_EQ(f32_to_e2m1(-kInf), 15);
  const struct {
    float value;
    int code;
  } kBorders[] = {{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4}, {2.5f, 4}, {3.5f, 6}, {5, 6}};
  for (const auto& border : kBorders) EXPECT_EQ(f32_to_e2m1(border.value), border.code);
}

template <int kExponentBits, int kMantissaBits>
void expect_six_bits(float greatest) {
  const auto encode = f32_to_six_bits<kExponentBits, kMantissaBits>;
  const auto to_f32 = six_bits_to_f32<kExponentBits, kMantissaBits>;
  std::vector<double> magnitudes;
  for (uint8_t code = 0; code < 64; ++code) {
    EXPECT_EQ(to_f32(code), decode(code, kExponentBits, kMantissaBits)) << int{code};
    EXPECT_EQ(std::signbit(to_f32(code)), code >= 32);
    EXPECT_EQ(encode(to_f32(code)), code);
    if (code < 32) magnitudes.push_back(to_f32(code));
  }
  EXPECT_EQ(magnitudes.back(), greatest);
  expect_nearest({magnitudes, true}, 0x20, encode);
  EXPECT_EQ(encode(kInf), 0x1F);
  EXPECT_EQ(encode(-kInf), 0x3F);
  EXPECT_EQ(encode(kNan) & 0x1F, 0x1F);
}

TEST(E3m2, EveryCodeAndRounding) { expect_six_bits<3, 2>(28.0f); }
TEST(E2m3, EveryCodeAndRounding) { expect_six_bits<2, 3>(7.5f); }

TEST(E8m0, EveryCode) {
  for (int code = 0; code < 255; ++code) {
    const float value = e8m0_to_f32(static_cast<uint8_t>(code));
    EXPECT_EQ(value, std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(static_cast<double>(value) * e8m0_reciprocal(static_cast<uint8_t>(code)), 1.0)
        << code;
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(MxScale, IsTheExponentOfTheGreatestMagnitudeLessTheFormats) {
  std::mt19937 random(3);
  for (int i = 0; i < 100000; ++i) {
    const float amax = std::fabs(bits_to_f32(random()));
    if (!std::isfinite(amax) || amax == 0) continue;
    int exponent;
    std::frexp(static_cast<double>(amax), &exponent);  // amax = m 2^exponent, m in [0.5, 1)
    EXPECT_EQ(floor_log2(amax), exponent - 1);
    for (int emax : {2, 8}) {
      EXPECT_EQ(mx_scale_code(amax, emax), std::clamp(exponent - 1 - emax + 127, 0, 254));
    }
  }
  EXPECT_EQ(mx_scale_code(0, 2), 127);
  EXPECT_EQ(mx_scale_code(6, 2), 127);
  EXPECT_EQ(mx_scale_code(7.99f, 2), 127);
  EXPECT_EQ(mx_scale_code(8, 2), 128);
}

// OCP MX v1.0: scale floor(log2(amax)) - emax, elements to nearest even, saturating.
template <typename Quantize>
void expect_block_rule(const Magnitudes& magnitudes, int emax, uint32_t sign_bit,
                       Quantize quantize) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    float values[kMxBlock], amax = 0;
    const int exponent = static_cast<int>(random() % 270) - 145;  // subnormal to near the greatest
    for (float& value : values) {
      const double fraction = static_cast<double>(random()) * 0x1p-31 - 1.0;
      value = static_cast<float>(std::ldexp(fraction, exponent - static_cast<int>(random() % 4)));
      amax = std::max(amax, std::fabs(value));
    }
    uint8_t codes[kMxBlock];
    const uint8_t scale = quantize(values, codes);
    const int log =
        amax > 0 ? static_cast<int>(std::floor(std::log2(static_cast<double>(amax)))) : emax;
    ASSERT_EQ(scale, std::clamp(log - emax + 127, 0, 254)) << "amax " << amax;
    for (int i = 0; i < kMxBlock; ++i) {
      const double scaled = std::ldexp(std::fabs(static_cast<double>(values[i])), 127 - scale);
      const uint32_t expected =
          magnitudes.nearest(scaled) | (std::signbit(values[i]) ? sign_bit : 0);
      ASSERT_EQ(codes[i], expected) << "value " << values[i] << ", scale " << int{scale};
    }
  }
}

TEST(Mxfp4, QuantisingObeysTheRule) { expect_block_rule(e2m1_magnitudes(), 2, 8, quantize_mxfp4); }
TEST(Mxfp8, QuantisingObeysTheRule) {
  expect_block_rule(e4m3_magnitudes(), 8, 0x80, quantize_mxfp8);
}

// Activations are rounded as weights are, but for values that are no finite numbers.
TEST(MxActivations, QuantisingObeysTheRule) {
  const auto quantize = [](MxElement element) {
    return [element](const float* values, uint8_t* codes) {
      uint32_t amax_bits = 0;
      for (int i = 0; i < kMxBlock; ++i)
        amax_bits = std::max(amax_bits, f32_to_bits(values[i]) & 0x7FFFFFFFu);
      const uint8_t scale = mx_activation_scale(amax_bits, mx_emax(element));
      for (int i = 0; i < kMxBlock; ++i) codes[i] = mx_activation_code(element, values[i], scale);
      return scale;
    };
  };
  const auto six_bits = [](float (*to_f32)(uint8_t)) {
    std::vector<double> values;
    for (uint8_t code = 0; code < 32; ++code) values.push_back(to_f32(code));
    return Magnitudes(values, true);
  };
  expect_block_rule(e4m3_magnitudes(), 8, 0x80, quantize(MxElement::kE4M3));
  expect_block_rule(six_bits(e3m2_to_f32), 4, 0x20, quantize(MxElement::kE3M2));
  expect_block_rule(six_bits(e2m3_to_f32), 2, 0x20, quantize(MxElement::kE2M3));
  expect_block_rule(e2m1_magnitudes(), 2, 8, quantize(MxElement::kE2M1));
}

TEST(MxActivations, RoundedValuesAreTheirOwnAndNanReachesTheBlock) {
  std::mt19937 random(9);
  for (const MxElement element :
       {MxElement::kE4M3, MxElement::kE3M2, MxElement::kE2M3, MxElement::kE2M1}) {
    for (const int count : {32, 7}) {
      float values[kMxBlock];
      for (float& value : values) value = static_cast<float>(random() % 2000) / 64.0f - 15.0f;
      round_to_mx(element, values, count);
      float again[kMxBlock];
      std::copy(values, values + kMxBlock, again);
      round_to_mx(element, again, count);
      EXPECT_TRUE(std::equal(values, values + kMxBlock, again));
      for (const float odd : {kNan, kInf, -kInf}) {
        values[3] = odd;
        float block[kMxBlock];
        std::copy(values, values + kMxBlock, block);
        round_to_mx(element, block, count);
        for (int i = 0; i < count; ++i) EXPECT_TRUE(std::isnan(block[i])) << i;
      }
    }
  }
}

TEST(Mxfp4, BlockOfZerosHasScaleOneAndCodesZero) {
  const float zeros[kMxBlock] = {};
  uint8_t codes[kMxBlock];
  EXPECT_EQ(quantize_mxfp4(zeros, codes), 127);
  EXPECT_TRUE(std::all_of(codes, codes + kMxBlock, [](uint8_t code) { return code == 0; }));
}

TEST(Mxfp4, InfinityCountsAsTheGreatestFiniteValue) {
  float values[kMxBlock] = {};
  values[3] = -kInf;
  values[4] = 1;
  uint8_t codes[kMxBlock];
  EXPECT_EQ(quantize_mxfp4(values, codes), 127 + 127 - 2);
  EXPECT_EQ(codes[3], 15);
  EXPECT_EQ(codes[4], 0);
}

// Whatever block of codes and scale: quantising its values gives the same values.
TEST(Mxfp4, RequantisingLosesNothing) {
  std::mt19937 random(5);
  for (int scale = 0; scale <= 252; ++scale) {
    for (int greatest = 1; greatest <= 8; ++greatest) {
      float values[kMxBlock];
      for (float& value : values) {
        const auto code = static_cast<uint8_t>(random() % static_cast<unsigned>(greatest));
        value = e2m1_to_f32(static_cast<uint8_t>(code | (random() % 2 * 8))) *
                e8m0_to_f32(static_cast<uint8_t>(scale));
      }
      uint8_t codes[kMxBlock];
      const uint8_t again = quantize_mxfp4(values, codes);
      for (int i = 0; i < kMxBlock; ++i) {
        ASSERT_EQ(static_cast<double>(e2m1_to_f32(codes[i])) * e8m0_to_f32(again), values[i]);
      }
    }
  }
}

TEST(Mxfp4, KnownBytesInBothNibbleOrders) {
  const uint8_t bytes[16] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE};
  const float expected[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int i = 0; i < 16; ++i) {
    const float value = e2m1_to_f32(mxfp4_code(bytes, i, NibbleOrder::kAdjacent));
    EXPECT_EQ(std::fabs(value), expected[i % 8]);
    EXPECT_EQ(std::signbit(value), i >= 8);
  }
  EXPECT_EQ(e8m0_to_f32(120), 0x1p-7f);
  // GGUF: the first byte holds elements 0 and 16.
  EXPECT_EQ(e2m1_to_f32(mxfp4_code(bytes, 0, NibbleOrder::kHalves)), 0.0f);
  EXPECT_EQ(e2m1_to_f32(mxfp4_code(bytes, 16, NibbleOrder::kHalves)), 0.5f);
  EXPECT_EQ(e2m1_to_f32(mxfp4_code(bytes, 1, NibbleOrder::kHalves)), 1.0f);
  EXPECT_EQ(e2m1_to_f32(mxfp4_code(bytes, 23, NibbleOrder::kHalves)), -6.0f);
}

TEST(Fp8Block, ScaleMapsTheGreatestMagnitudeTo448) {
  EXPECT_EQ(fp8_block_scale(448), 1.0f);
  EXPECT_EQ(fp8_block_scale(0), 1.0f);
  for (float amax : {1e-3f, 0.7f, 12345.0f}) {
    EXPECT_EQ(f32_to_e4m3(amax / fp8_block_scale(amax)), 0x7E);
  }
}

}  // namespace
}  // namespace moxie
