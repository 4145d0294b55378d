// Checks of every tensor before a pointer is taken: a row trusts its Params.
#include "ops/moe_fp8_arguments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <string>

namespace moxie {
namespace {

using tvm::ffi::TensorView;

struct ElementType {
  const char* name;
  uint8_t code, bits;
};
constexpr ElementType kF32Type{"float32", kDLFloat, 32};
constexpr ElementType kBf16Type{"bfloat16", kDLBfloat, 16};
constexpr ElementType kE4m3Type{"float8_e4m3fn", kDLFloat8_e4m3fn, 8};

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}
std::string device_text(DLDevice device) {
  const std::string type = device.device_type == kDLCPU ? "cpu"
                           : device.device_type == kDLCUDA
                               ? "cuda"
                               : "device type " + std::to_string(device.device_type);
  return type + ":" + std::to_string(device.device_id);
}

// One argument: its name, its tensor and what it must be. Checking allocates nothing: that a call
// takes few microseconds on the host shows in short launches.
struct Expected {
  const char* name;
  const TensorView& tensor;
  ElementType type;
  int rank;
  std::array<int64_t, 3> extents;

  std::span<const int64_t> shape() const { return {extents.data(), static_cast<size_t>(rank)}; }
};

// E4M3 and BF16 also as unsigned integers.
bool is_type(DLDataType found, const ElementType& type) {
  if (found.lanes != 1 || found.bits != type.bits) return false;
  return found.code == type.code || (found.code == kDLUInt && type.bits < 32);
}
std::string type_text(DLDataType found) {
  return "code " + std::to_string(found.code) + " with " + std::to_string(found.bits) + " bits" +
         (found.lanes == 1 ? "" : " and " + std::to_string(found.lanes) + " lanes");
}

std::byte* begin_of(const TensorView& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr()) + tensor.byte_offset();
}

Status check(const Expected& e, DLDevice device) {
  if (!is_type(e.tensor.dtype(), e.type))
    return fail("is of DLPack's type " + type_text(e.tensor.dtype()) + ", expected " + e.type.name,
                e.name);
  const auto found_shape = e.tensor.shape();
  const std::span<const int64_t> shape(found_shape.data(), found_shape.size());
  if (!std::ranges::equal(shape, e.shape()))
    return fail("has shape " + shape_text(shape) + ", expected " + shape_text(e.shape()), e.name);
  const DLDevice found = e.tensor.device();
  if (found.device_type != device.device_type || found.device_id != device.device_id)
    return fail("is on " + device_text(found) + ", routing_logits on " + device_text(device),
                e.name);
  if (!e.tensor.IsContiguous()) return fail("is not contiguous", e.name, "pass a contiguous copy");
  if (e.tensor.numel() == 0) return {};
  if (e.tensor.data_ptr() == nullptr) return fail("has no memory", e.name);
  // Kernels on CUDA read 16 bytes at a time.
  const uintptr_t alignment = device.device_type == kDLCUDA ? 16 : e.type.bits / 8;
  if (reinterpret_cast<uintptr_t>(begin_of(e.tensor)) % alignment != 0)
    return fail("is not aligned to " + std::to_string(alignment) + " bytes", e.name,
                "pass a copy instead of a view into another tensor");
  return {};
}

template <typename T>
T* at(const TensorView& tensor) {
  return reinterpret_cast<T*>(begin_of(tensor));
}

Status check_rank(const char* name, const TensorView& tensor, int rank) {
  if (tensor.ndim() == rank) return {};
  return fail(
      "has " + std::to_string(tensor.ndim()) + " dimensions, expected " + std::to_string(rank),
      name);
}

// A size that Params can hold.
Status check_size(const char* name, int64_t size) {
  if (size >= 0 && size <= std::numeric_limits<int32_t>::max() - kFp8Block) return {};
  return fail(std::to_string(size) + " is out of range", name);
}

// The extents, from the tensors that state each first; the others are held to them.
Result<MoeFp8Params> extents_of(const MoeFp8Arguments& a) {
  if (auto ok = check_rank("routing_logits", a.routing_logits, 2); !ok) return fail(ok.error());
  if (auto ok = check_rank("hidden_states", a.hidden_states, 2); !ok) return fail(ok.error());
  if (auto ok = check_rank("gemm2_weights", a.gemm2_weights, 3); !ok) return fail(ok.error());
  const struct {
    const char* name;
    int64_t size;
  } sizes[] = {{"routing_logits: tokens", a.routing_logits.size(0)},
               {"routing_logits: experts", a.routing_logits.size(1)},
               {"hidden_states: hidden", a.hidden_states.size(1)},
               {"gemm2_weights: local experts", a.gemm2_weights.size(0)},
               {"gemm2_weights: intermediate", a.gemm2_weights.size(2)},
               {"local_expert_offset", a.local_expert_offset},
               {"top_k", a.top_k},
               {"n_group", a.num_groups},
               {"topk_group", a.kept_groups}};
  for (const auto& [name, size] : sizes)
    if (auto ok = check_size(name, size); !ok) return fail(ok.error());
  if (!std::isfinite(static_cast<float>(a.routed_scaling_factor)))
    return fail("is no finite float32", "routed_scaling_factor");
  return MoeFp8Params{.num_tokens = static_cast<int32_t>(a.routing_logits.size(0)),
                      .num_experts = static_cast<int32_t>(a.routing_logits.size(1)),
                      .num_local_experts = static_cast<int32_t>(a.gemm2_weights.size(0)),
                      .hidden = static_cast<int32_t>(a.hidden_states.size(1)),
                      .intermediate = static_cast<int32_t>(a.gemm2_weights.size(2)),
                      .num_groups = static_cast<int32_t>(a.num_groups),
                      .kept_groups = static_cast<int32_t>(a.kept_groups),
                      .top_k = static_cast<int32_t>(a.top_k),
                      .local_expert_offset = static_cast<int32_t>(a.local_expert_offset),
                      .routed_scaling_factor = static_cast<float>(a.routed_scaling_factor)};
}

}  // namespace

Result<MoeFp8Params> moe_fp8_params(const MoeFp8Arguments& a) {
  auto extents = extents_of(a);
  if (!extents) return extents;
  MoeFp8Params& p = *extents;
  if (const char* fault = moe_fp8_shape_fault(p)) return fail(fault, Op<MoeFp8Params>::info.name);
  const DLDevice device = a.routing_logits.device();
  if (device.device_type != kDLCPU && device.device_type != kDLCUDA)
    return fail("is on " + device_text(device) + ", expected cpu or cuda", "routing_logits");
  const int64_t tokens = p.num_tokens, experts = p.num_experts, local = p.num_local_experts;
  const int64_t hidden = p.hidden, intermediate = p.intermediate;
  const int64_t in = hidden / kFp8Block, mid = intermediate / kFp8Block;
  const Expected expected[] = {
      {"routing_logits", a.routing_logits, kF32Type, 2, {tokens, experts}},
      {"routing_bias", a.routing_bias, kBf16Type, 1, {experts}},
      {"hidden_states", a.hidden_states, kE4m3Type, 2, {tokens, hidden}},
      {"hidden_states_scale", a.hidden_states_scale, kF32Type, 2, {in, tokens}},
      {"gemm1_weights", a.gemm1_weights, kE4m3Type, 3, {local, 2 * intermediate, hidden}},
      {"gemm1_weights_scale", a.gemm1_weights_scale, kF32Type, 3, {local, 2 * mid, in}},
      {"gemm2_weights", a.gemm2_weights, kE4m3Type, 3, {local, hidden, intermediate}},
      {"gemm2_weights_scale", a.gemm2_weights_scale, kF32Type, 3, {local, in, mid}},
      {"output", a.output, kBf16Type, 2, {tokens, hidden}}};
  for (const Expected& e : expected)
    if (auto ok = check(e, device); !ok) return fail(ok.error());
  p.routing_logits = at<const float>(a.routing_logits);
  p.routing_bias = at<const uint16_t>(a.routing_bias);
  p.hidden_states = at<const uint8_t>(a.hidden_states);
  p.hidden_states_scale = at<const float>(a.hidden_states_scale);
  p.gemm1_weights = at<const uint8_t>(a.gemm1_weights);
  p.gemm1_weights_scale = at<const float>(a.gemm1_weights_scale);
  p.gemm2_weights = at<const uint8_t>(a.gemm2_weights);
  p.gemm2_weights_scale = at<const float>(a.gemm2_weights_scale);
  p.output = at<uint16_t>(a.output);
  return extents;
}

}  // namespace moxie
