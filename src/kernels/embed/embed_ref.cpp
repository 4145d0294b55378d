// The definition of embed: x[t, i] = E[token_ids[t], i], exactly (every format is exact in F32).
#include "core/packing.h"
#include "kernels/embed/embed_rows.h"

namespace moxie {

void embed_reference(const EmbedParams& params) {
  const RowTable& table = params.table;
  StoredRows::Kind kind = StoredRows::Kind::kBF16;
  if (table.format == DType::kF32) kind = StoredRows::Kind::kF32;
  if (table.format == DType::kQ8_0) kind = StoredRows::Kind::kQ8_0;
  const StoredRows rows{
      .kind = kind, .data = table.data, .row_stride_bytes = table.row_bytes(), .cols = table.cols};
  for (int32_t t = 0; t < params.num_tokens; ++t) {
    const int32_t id = params.token_ids[t];
    CHECK(id >= 0 && id < table.rows,
          "token id " + std::to_string(id) + " of a vocabulary of " + std::to_string(table.rows));
    rows.read_row(id, params.x + static_cast<int64_t>(t) * table.cols);
  }
}

}  // namespace moxie
