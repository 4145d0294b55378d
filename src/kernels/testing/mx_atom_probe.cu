#include "core/cuda_launch.cuh"
#include "kernels/gemm/mx_atom.cuh"
#include "kernels/testing/mx_atom_probe.h"

namespace moxie::testing {

// Not in an unnamed namespace: the kernel is instantiated with it.
struct MxProbe {
  MxFragments* cases;
  MxElement element;
  int byte_id;
};

namespace {

template <bool kIsK64>
__global__ void mx_probe(const __grid_constant__ MxProbe probe) {
  MxFragments& of = probe.cases[blockIdx.x];
  const int lane = threadIdx.x;
  const uint32_t a[4] = {of.a[lane][0], of.a[lane][1], of.a[lane][2], of.a[lane][3]};
  const uint32_t b[2] = {of.b[lane][0], of.b[lane][1]};
  const uint32_t scale_a = of.scale_a[lane], scale_b = of.scale_b[lane];
  float sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = of.sums[lane][i];
  if constexpr (kIsK64) {
    gemm::mx::multiply_k64(sums, a, b, scale_a, scale_b);
  } else {
    // The instruction names its element and its bytes.
    const auto multiply = [&]<int kByte>(MxElement element) {
      gemm::mx::multiply_k32<kByte, 3 - kByte>(element, sums, a, b, scale_a, scale_b);
    };
    const auto of_element = [&](MxElement element) {
      switch (probe.byte_id) {
        case 0:
          return multiply.template operator()<0>(element);
        case 1:
          return multiply.template operator()<1>(element);
        case 2:
          return multiply.template operator()<2>(element);
        default:
          return multiply.template operator()<3>(element);
      }
    };
    switch (probe.element) {
      case MxElement::kE4M3:
        of_element(MxElement::kE4M3);
        break;
      case MxElement::kE3M2:
        of_element(MxElement::kE3M2);
        break;
      case MxElement::kE2M3:
        of_element(MxElement::kE2M3);
        break;
      case MxElement::kE2M1:
        of_element(MxElement::kE2M1);
        break;
    }
  }
  for (int i = 0; i < 4; ++i) of.sums[lane][i] = sums[i];
}

template <bool kIsK64>
void run(const MxProbe& probe, int num_cases, Stream* stream) {
  launch_kernel("mx_probe", mx_probe<kIsK64>, probe,
                {.grid = dim3(static_cast<unsigned>(num_cases)), .num_threads = 32},
                launch_stream(stream));
}

}  // namespace

void run_mx_k32(MxElement element, int byte_id, MxFragments* cases, int num_cases, Stream* stream) {
  run<false>({cases, element, byte_id}, num_cases, stream);
}

void run_mx_k64(MxFragments* cases, int num_cases, Stream* stream) {
  run<true>({cases, MxElement::kE2M1, 0}, num_cases, stream);
}

}  // namespace moxie::testing
