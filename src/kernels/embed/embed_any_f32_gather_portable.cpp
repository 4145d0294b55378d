// embed in portable C++: a gather of rows, so bound by memory. The compiler vectorises the BF16
// widening; wider registers would not read faster.
#include <cstring>

#include "core/formats.h"
#include "core/threads.h"
#include "kernels/embed/embed_rows.h"

namespace moxie {
namespace {

void widen_bf16(const std::byte* row, int32_t cols, float* out) {
  for (int32_t i = 0; i < cols; ++i) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * static_cast<int64_t>(i), 2);
    out[i] = bf16_to_f32(bits);
  }
}

void widen_q8(const std::byte* row, int32_t cols, float* out) {
  constexpr int kBlockBytes = 34;  // FP16 scale, 32 int8
  for (int32_t block = 0; block < cols / 32; ++block, row += kBlockBytes, out += 32) {
    uint16_t half;
    int8_t codes[32];
    std::memcpy(&half, row, 2);
    std::memcpy(codes, row + 2, 32);
    const float scale = f16_to_f32(half);
    for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(codes[i]);
  }
}

}  // namespace

void embed_any_f32_gather_portable(const EmbedParams& params) {
  const RowTable& table = params.table;
  const int64_t row_bytes = table.row_bytes();
  auto gather = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int32_t id = params.token_ids[t];
      CHECK(id >= 0 && id < table.rows, "token id outside the vocabulary");
      const std::byte* row = table.data + id * row_bytes;
      float* out = params.x + t * table.cols;
      switch (table.format) {
        case DType::kF32:
          std::memcpy(out, row, static_cast<size_t>(row_bytes));
          break;
        case DType::kQ8_0:
          widen_q8(row, table.cols, out);
          break;
        default:
          widen_bf16(row, table.cols, out);
      }
    }
  };
  // A row of 2880 values takes under a microsecond: waking a thread pays from some 16 rows on.
  params.launch.stream->pool->share(params.num_tokens, 16, gather);
}

}  // namespace moxie
