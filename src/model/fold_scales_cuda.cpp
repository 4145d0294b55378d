#include "model/fold_scales_cuda.h"

#include <fmt/format.h>

#include "kernels/gemm/scale_range_cuda.h"

namespace moxie {
namespace {

// Blocks whose scale does not fold exactly: of an expert at most one in so many. What they lose is
// 2^-17 of the expert's greatest weights: rows that training has let die have such scales. Where
// most are like that, the greatest is an outlier.
constexpr uint64_t kLeastOfCut = 2;

struct Matrix {
  size_t layer;
  const char* name;
  PackedMatrix* packed;
};

Status check(const Matrix& matrix, int32_t expert, const gemm::ScaleRange& range) {
  if (range.num_cut * kLeastOfCut <= range.num_blocks) return {};
  return fail(fmt::format("{} of expert {}, layer {}: {} of {} blocks have scales more than {} "
                          "octaves below the greatest, which do not fold into an 8-bit operand",
                          matrix.name, expert, matrix.layer, range.num_cut, range.num_blocks,
                          gemm::kFoldedOctaves),
              "--activation mxfp8", "--activation bf16 takes any scales");
}

}  // namespace

Status fold_scales_cuda(Device& device, Stream& stream, ModelWeights& weights) {
  std::vector<Matrix> matrices;
  uint64_t count = 0;
  for (size_t l = 0; l < weights.layers.size(); ++l) {
    LayerWeights& layer = weights.layers[l];
    for (const Matrix& matrix : {Matrix{l, "gate_up", &layer.gate_up}, {l, "down", &layer.down}}) {
      if (matrix.packed->format != DType::kMXFP4) continue;
      matrices.push_back(matrix);
      count += static_cast<uint64_t>(matrix.packed->num_experts);
    }
  }
  if (count == 0) return {};
  auto buffer = device.allocate(count);
  if (!buffer) return fail(std::move(buffer.error()));
  auto counts = device.allocate(256 * sizeof(uint32_t) * count);
  if (!counts) return fail(std::move(counts.error()));
  uint64_t at = 0;
  for (const Matrix& matrix : matrices) {
    gemm::count_scales({*matrix.packed, counts->as<uint32_t>() + 256 * at}, &stream);
    matrix.packed->greatest_scales = buffer->as<uint8_t>() + at;
    at += static_cast<uint64_t>(matrix.packed->num_experts);
  }
  std::vector<uint32_t> found(256 * count);
  if (auto status = device.copy_to_host(found.data(), counts->data(),
                                        sizeof(uint32_t) * found.size(), stream);
      !status)
    return status;
  if (auto status = stream.synchronize(); !status) return status;
  std::vector<uint8_t> greatest;
  uint64_t num_cut = 0, num_blocks = 0;
  for (const Matrix& matrix : matrices) {
    for (int32_t expert = 0; expert < matrix.packed->num_experts; ++expert) {
      const gemm::ScaleRange range = gemm::scale_range(&found[256 * greatest.size()]);
      if (auto status = check(matrix, expert, range); !status) return status;
      greatest.push_back(range.greatest);
      num_cut += range.num_cut, num_blocks += range.num_blocks;
    }
  }
  if (num_cut > 0) {
    log_warn(
        fmt::format("--activation mxfp8: {} of {} blocks of experts have scales more than {} "
                    "octaves below their expert's greatest, and lose bits",
                    num_cut, num_blocks, gemm::kFoldedOctaves));
  }
  if (auto status = device.copy_from_host(buffer->data(), greatest.data(), greatest.size(), stream);
      !status)
    return status;
  if (auto status = stream.synchronize(); !status) return status;
  weights.storage.push_back(std::move(*buffer));
  return {};
}

}  // namespace moxie
