// The atoms of mx_atom.cuh on fragments laid out by the tables of the PTX ISA's section on
// block-scaled matrix fragments, against sums in double precision: every code of every element,
// every scale, scales in each byte. Where the device has the instruction, it is the instruction
// that runs.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "kernels/testing/cuda_test.h"
#include "kernels/testing/mx_atom_probe.h"

namespace moxie::testing {
namespace {

constexpr MxElement kElements[] = {MxElement::kE4M3, MxElement::kE3M2, MxElement::kE2M3,
                                   MxElement::kE2M1};
int num_codes(MxElement element) {
  return element == MxElement::kE4M3 ? 256 : element == MxElement::kE2M1 ? 16 : 64;
}

// One product: 16 x K codes of E2M1, K x 8 of an element, and a scale for 32 of K of each row and
// column.
struct Product {
  bool is_k64;
  MxElement element;
  uint8_t a[16][64], b[64][8], scale_a[16][2], scale_b[8][2];
  float before[16][8];

  int k() const { return is_k64 ? 64 : 32; }

  double scaled(int row, int column, double* magnitudes) const {
    double sum = before[row][column];
    *magnitudes = std::fabs(sum);
    for (int block = 0; block < k() / 32; ++block) {
      double products = 0, sizes = 0;
      for (int i = 32 * block; i < 32 * block + 32; ++i) {
        const double product = static_cast<double>(e2m1_to_f32(a[row][i])) *
                               static_cast<double>(mx_element_to_f32(element, b[i][column]));
        products += product;
        sizes += std::fabs(product);
      }
      const int code_a = scale_a[row][block], code_b = scale_b[column][block];
      if (code_a == 255 || code_b == 255) products = std::numeric_limits<double>::quiet_NaN();
      sum += std::ldexp(products, code_a + code_b - 254);
      *magnitudes += std::ldexp(sizes, code_a + code_b - 254);
    }
    return sum;
  }
};

class MxAtomCuda : public CudaTest {
 protected:
  std::mt19937 random_{5};

  uint32_t any() { return static_cast<uint32_t>(random_()); }

  // Codes in turn, so that all occur; scales around 1 unless `any_scale`.
  Product product(bool is_k64, MxElement element, int number, bool any_scale) {
    Product made{.is_k64 = is_k64, .element = element};
    int code = number * 256;
    for (auto& row : made.a)
      for (uint8_t& one : row) one = static_cast<uint8_t>(any() % 16);
    for (auto& row : made.b) {
      for (uint8_t& one : row) {
        one = static_cast<uint8_t>(code++ % num_codes(element));
        // NaN would hide the other products: a test of its own.
        if (element == MxElement::kE4M3 && (one & 0x7F) == 0x7F) one = 0x7E;
      }
    }
    for (auto* scales : {&made.scale_a[0], &made.scale_b[0]}) {
      const int count = scales == &made.scale_a[0] ? 16 : 8;
      for (int i = 0; i < count; ++i)
        for (uint8_t& one : scales[i])
          one = static_cast<uint8_t>(any_scale ? any() % 256 : 117 + any() % 20);
    }
    for (auto& row : made.before)
      for (float& one : row) one = any_scale ? 0.0f : static_cast<float>(any() % 64) - 32;
    return made;
  }

  // As the tables have it; what no lane reads is noise.
  MxFragments fragments_of(const Product& p, int byte_a, int byte_b) {
    MxFragments made{};
    const int up = p.element == MxElement::kE2M1 ? 2 : 0;
    for (int lane = 0; lane < 32; ++lane) {
      const int g = lane / 4, q = lane % 4;
      for (int r = 0; r < 4; ++r) {
        const int row = g + 8 * (r % 2);
        for (int i = 0; i < (p.is_k64 ? 8 : 4); ++i) {
          if (p.is_k64) {
            made.a[lane][r] |= uint32_t{p.a[row][8 * q + i + 32 * (r / 2)]} << (4 * i);
          } else {
            made.a[lane][r] |= uint32_t{p.a[row][4 * q + i + 16 * (r / 2)]} << (8 * i + 2);
          }
        }
      }
      for (int r = 0; r < 2; ++r) {
        for (int i = 0; i < (p.is_k64 ? 8 : 4); ++i) {
          if (p.is_k64) {
            made.b[lane][r] |= uint32_t{p.b[8 * q + i + 32 * r][g]} << (4 * i);
          } else {
            made.b[lane][r] |= uint32_t{p.b[4 * q + i + 16 * r][g]} << (8 * i + up);
          }
        }
      }
      const auto put = [&](uint32_t& word, int byte, const uint8_t(&scales)[2]) {
        const uint32_t keep = p.is_k64 ? 0xFFFF0000u : ~(0xFFu << (8 * byte));
        const uint32_t value =
            p.is_k64 ? scales[0] | uint32_t{scales[1]} << 8 : uint32_t{scales[0]} << (8 * byte);
        word = (word & keep) | value;
      };
      made.scale_a[lane] = any();
      made.scale_b[lane] = any();
      if (q < 2) put(made.scale_a[lane], byte_a, p.scale_a[g + 8 * q]);
      if (q == 0) put(made.scale_b[lane], byte_b, p.scale_b[g]);
      for (int i = 0; i < 4; ++i) made.sums[lane][i] = p.before[g + i / 2 * 8][2 * q + i % 2];
    }
    return made;
  }

  void expect_products(const std::vector<Product>& products, int byte_id) {
    const Product& first = products[0];
    std::vector<MxFragments> cases;
    for (const Product& one : products) cases.push_back(fragments_of(one, byte_id, 3 - byte_id));
    MxFragments* there = upload(cases);
    const auto count = static_cast<int>(cases.size());
    if (first.is_k64) {
      run_mx_k64(there, count, &stream());
    } else {
      run_mx_k32(first.element, byte_id, there, count, &stream());
    }
    done(device().copy_to_host(cases.data(), there, cases.size() * sizeof(MxFragments), stream()));
    done(stream().synchronize());
    int num_wrong = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      for (int at = 0; at < 128; ++at) {
        const int lane = at / 4, row = lane / 4 + at % 4 / 2 * 8, column = 2 * (lane % 4) + at % 2;
        double magnitudes = 0;
        const double expected = products[i].scaled(row, column, &magnitudes);
        const float found = cases[i].sums[lane][at % 4];
        // Up to 64 products, each cut to F32's bits of the greatest; 2^-149 is F32's least value.
        // Past F32's range there are infinities, and NaN where two of them meet.
        const double off = std::ldexp(magnitudes, -18) + 0x1p-148;
        const bool same = std::isnan(expected)   ? std::isnan(found)
                          : std::isfinite(found) ? std::fabs(found - expected) <= off
                                                 : magnitudes >= std::numeric_limits<float>::max();
        if (!same && ++num_wrong <= 3)
          ADD_FAILURE() << "case " << i << ", row " << row << ", column " << column << ": " << found
                        << ", not " << expected;
      }
    }
    EXPECT_EQ(num_wrong, 0);
  }
};

TEST_F(MxAtomCuda, EveryCodeOfEveryElementWithScalesInEveryByte) {
  for (const MxElement element : kElements) {
    SCOPED_TRACE(static_cast<int>(element));
    for (int byte_id = 0; byte_id < 4; ++byte_id) {
      SCOPED_TRACE(byte_id);
      std::vector<Product> products;
      for (int i = 0; i < 40; ++i) products.push_back(product(false, element, i, false));
      expect_products(products, byte_id);
    }
  }
  std::vector<Product> products;
  for (int i = 0; i < 40; ++i) products.push_back(product(true, MxElement::kE2M1, i, false));
  expect_products(products, 0);
}

TEST_F(MxAtomCuda, EveryScale) {
  for (const MxElement element : kElements) {
    SCOPED_TRACE(static_cast<int>(element));
    std::vector<Product> products;
    for (int i = 0; i < 512; ++i) {
      products.push_back(product(false, element, i, true));
      // Each code of A's scales meets all of B's.
      for (int row = 0; row < 16; ++row)
        products.back().scale_a[row][0] = static_cast<uint8_t>(i * 16 + row);
    }
    expect_products(products, 0);
  }
  std::vector<Product> products;
  for (int i = 0; i < 512; ++i) products.push_back(product(true, MxElement::kE2M1, i, true));
  expect_products(products, 0);
}

TEST_F(MxAtomCuda, NanOfE4m3ReachesItsColumnAlone) {
  Product one = product(false, MxElement::kE4M3, 0, false);
  for (auto& row : one.a)
    for (uint8_t& code : row) code |= 2;  // no zeros
  one.b[7][3] = 0x7F;
  one.b[30][6] = 0xFF;
  expect_products({one}, 2);
}

}  // namespace
}  // namespace moxie::testing
