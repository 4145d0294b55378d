#include "model/eight_bits_cuda.h"

#include <fmt/format.h>

#include "kernels/gemm/greatest_scales_cuda.h"
#include "kernels/gemm/i8_weights_cuda.h"

namespace moxie {
namespace {

// At most one in this many blocks of an expert may have a scale that does not fold exactly. Such a
// block loses 2^-17 of its row's greatest weights. If most blocks do, the greatest is an outlier.
constexpr uint32_t kLeastOfCut = 2;

struct Matrix {
  size_t layer;
  const char* name;
  PackedMatrix* packed;

  uint64_t num_rows() const {
    return 16 * static_cast<uint64_t>(packed->num_experts) *
           static_cast<uint64_t>(packed->num_tiles());
  }
};

Status check(const Matrix& matrix, int32_t expert, const gemm::FoldedBlocks& blocks) {
  if (uint64_t{blocks.num_cut} * kLeastOfCut <= blocks.num_blocks) return {};
  return fail(fmt::format("{} of expert {}, layer {}: {} of {} blocks have scales more than {} "
                          "octaves below their row's greatest, which do not fold into an 8-bit "
                          "operand",
                          matrix.name, expert, matrix.layer, blocks.num_cut, blocks.num_blocks,
                          gemm::kFoldedOctaves),
              "--activation mxfp8", "--activation bf16 takes any scales");
}

// The experts' matrices whose scales are folded.
std::vector<Matrix> experts_of(ModelWeights& weights) {
  std::vector<Matrix> matrices;
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    LayerWeights& layer = weights.layers[l];
    for (const Matrix& matrix : {Matrix{l, "gate_up", &layer.gate_up}, {l, "down", &layer.down}})
      if (matrix.packed->format == DType::kMXFP4) matrices.push_back(matrix);
  }
  return matrices;
}
uint64_t num_rows_of(const std::vector<Matrix>& matrices) {
  uint64_t rows = 0;
  for (const Matrix& matrix : matrices) rows += matrix.num_rows();
  return rows;
}

// Calls visit(matrix, its memory) for the dense layers that have integers.
template <typename Visit>
void for_each_laid(ModelWeights& weights, Scratch& scratch, Visit visit) {
  for (LayerWeights& layer : weights.layers) {
    for (PackedMatrix* matrix : {&layer.qkv, &layer.out}) {
      const uint64_t bytes = gemm::i8_weights_bytes(*matrix);
      if (bytes > 0) visit(*matrix, scratch.take<std::byte>(static_cast<int64_t>(bytes)));
    }
  }
}
uint64_t laid_bytes(ModelWeights& weights) {
  Scratch sizes(nullptr);
  for_each_laid(weights, sizes, [](PackedMatrix&, std::byte*) {});
  return sizes.bytes();
}

Status lay_dense(Device& device, Stream& stream, ModelWeights& weights) {
  const uint64_t bytes = laid_bytes(weights);
  if (bytes == 0) return {};
  auto memory = device.allocate(bytes);
  if (!memory) return fail(std::move(memory.error()));
  Scratch scratch(memory->data());
  for_each_laid(weights, scratch, [&](PackedMatrix& matrix, std::byte* to) {
    gemm::lay_weights_i8(matrix, to, &stream);
  });
  weights.storage.push_back(std::move(*memory));
  return stream.synchronize();
}

Status fold_scales(Device& device, Stream& stream, ModelWeights& weights) {
  const std::vector<Matrix> matrices = experts_of(weights);
  const uint64_t num_rows = num_rows_of(matrices);
  uint64_t num_experts = 0;
  for (const Matrix& matrix : matrices)
    num_experts += static_cast<uint64_t>(matrix.packed->num_experts);
  if (matrices.empty()) return {};
  auto greatest = device.allocate(num_rows);
  if (!greatest) return fail(std::move(greatest.error()));
  auto blocks = device.allocate(sizeof(gemm::FoldedBlocks) * num_experts);
  if (!blocks) return fail(std::move(blocks.error()));
  uint64_t row = 0, expert = 0;
  for (const Matrix& matrix : matrices) {
    gemm::find_greatest_scales(
        {*matrix.packed, greatest->as<uint8_t>() + row, blocks->as<gemm::FoldedBlocks>() + expert},
        &stream);
    matrix.packed->greatest_scales = greatest->as<uint8_t>() + row;
    row += matrix.num_rows();
    expert += static_cast<uint64_t>(matrix.packed->num_experts);
  }
  std::vector<gemm::FoldedBlocks> found(num_experts);
  if (auto status = device.copy_to_host(found.data(), blocks->data(),
                                        sizeof(gemm::FoldedBlocks) * found.size(), stream);
      !status)
    return status;
  if (auto status = stream.synchronize(); !status) return status;
  uint64_t num_cut = 0, num_blocks = 0;
  auto next = found.begin();
  for (const Matrix& matrix : matrices) {
    for (int32_t e = 0; e < matrix.packed->num_experts; ++e, ++next) {
      if (auto status = check(matrix, e, *next); !status) return status;
      num_cut += next->num_cut, num_blocks += next->num_blocks;
    }
  }
  if (num_cut > 0) {
    log_warn(
        fmt::format("--activation mxfp8: {} of {} blocks of experts have scales more than {} "
                    "octaves below their row's greatest, and lose bits",
                    num_cut, num_blocks, gemm::kFoldedOctaves));
  }
  weights.storage.push_back(std::move(*greatest));
  return {};
}

}  // namespace

uint64_t eight_bits_bytes(const ModelWeights& layout) {
  ModelWeights weights = {.layers = layout.layers};
  return laid_bytes(weights) + num_rows_of(experts_of(weights));
}

Status add_eight_bits_cuda(Device& device, Stream& stream, ModelWeights& weights) {
  if (auto status = fold_scales(device, stream, weights); !status) return status;
  return lay_dense(device, stream, weights);
}

}  // namespace moxie
