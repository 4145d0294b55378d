// What the files of cases share: names, memory, and outputs as doubles.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "core/formats.h"
#include "kernels/testing/cases.h"

namespace moxie::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline std::string text(const char* op, DType format, std::initializer_list<int64_t> sizes) {
  std::string name = std::string(op) + " " + std::string(dtype_name(format));
  for (int64_t size : sizes) name += " " + std::to_string(size);
  return name;
}

template <typename P>
float* keep(Built<P>& built, std::vector<float> values) {
  built.floats.push_back(std::move(values));
  return built.floats.back().data();
}
template <typename P>
int32_t* keep(Built<P>& built, std::vector<int32_t> values) {
  built.ints.push_back(std::move(values));
  return built.ints.back().data();
}
inline std::vector<float> near_one(int64_t n, Random& random) {
  std::vector<float> values = random.uniforms(n, 0.3f);
  for (float& value : values) value += 1.0f;
  return values;
}

template <typename T>
std::vector<double> doubles(const T* from, int64_t n) {
  return {from, from + n};
}

// One byte or two of a cache as a number.
inline std::vector<double> cache_values(const KvLayer& kv, const std::byte* from, int64_t n) {
  std::vector<double> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    if (kv.dtype == DType::kF32) {
      values[i] = reinterpret_cast<const float*>(from)[i];
    } else if (kv.dtype == DType::kBF16) {
      values[i] = bf16_to_f32(reinterpret_cast<const uint16_t*>(from)[i]);
    } else {
      values[i] = e4m3_to_f32(reinterpret_cast<const uint8_t*>(from)[i]);
    }
  }
  return values;
}

// Adds the whole cache, so that a write outside the tokens' places is seen. A value near the middle
// of two codes may go to either.
inline void add_cache(const KvLayer& kv, const std::vector<std::vector<std::byte>>& bytes,
                      int32_t head_dim, double rounding, std::vector<Output>* list) {
  const double step = kv.dtype == DType::kF32 ? 0 : kv.dtype == DType::kBF16 ? 0x1p-7 : 0x1p-3;
  const double least = kv.dtype == DType::kF8E4M3 ? 0x1p-9 : 0;
  const int64_t n = static_cast<int64_t>(bytes[0].size()) * head_dim / kv.row_bytes(head_dim);
  for (int i = 0; i < 2; ++i) {
    list->push_back({.name = i == 0 ? "k" : "v",
                     .width = int64_t{head_dim},
                     .values = cache_values(kv, bytes[i].data(), n),
                     .rounding = rounding,
                     .relative = step,
                     .absolute = least});
  }
}

}  // namespace moxie::testing
