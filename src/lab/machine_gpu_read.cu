// Reads device memory with 16-byte loads: many blocks of 512 threads, 16 loads a thread in flight.
#include "core/cuda_launch.cuh"
#include "lab/machine_gpu_read.h"
#include "lab/machine_gpu_time.cuh"

namespace moxie {
namespace {

constexpr int kThreads = 512;
constexpr int kLoads = static_cast<int>(kGpuReadGrain / (uint64_t{16} * kThreads));

struct ReadParams {
  const uint4* data;
  uint32_t* sink;  // written only if all bits agree with a value that the buffer never makes
};

// What is read stays in L2, or leaves it first.
template <bool kStays>
__global__ void __launch_bounds__(kThreads) read_all(const __grid_constant__ ReadParams p) {
  const uint4* from =
      p.data + static_cast<uint64_t>(blockIdx.x) * (kThreads * kLoads) + threadIdx.x;
  uint4 values[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    const uint4* at = from + i * kThreads;
    values[i] = kStays ? __ldg(at) : __ldcs(at);
  }
  uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < kLoads; ++i) all |= values[i].x | values[i].y | values[i].z | values[i].w;
  if (all == 0xFFFFFFFFu) *p.sink = all;  // the buffer is zeros
}

template <bool kStays>
void launch_read(const Buffer& buffer, cudaStream_t stream) {
  launch_kernel("read_all", read_all<kStays>,
                ReadParams{buffer.as<const uint4>(), buffer.as<uint32_t>()},
                dim3(static_cast<unsigned>(buffer.bytes() / kGpuReadGrain)), kThreads, 0, stream);
}

}  // namespace

Result<std::vector<double>> time_gpu_reads(const Buffer& buffer, int passes, Stream& stream) {
  return time_gpu_launches(passes, stream,
                           [&](cudaStream_t native) { launch_read<false>(buffer, native); });
}

Status fill_l2(const Buffer& buffer, Stream& stream) {
  launch_read<true>(buffer, launch_stream(&stream));
  return {};
}

std::string gpu_pci_bus_id(Device& device) {
  auto stream = device.make_stream();
  if (!stream) return "";
  launch_stream(stream->get());  // makes the device the current one
  int index = 0;
  char text[64] = {};
  if (cudaGetDevice(&index) != cudaSuccess ||
      cudaDeviceGetPCIBusId(text, sizeof text, index) != cudaSuccess) {
    return "";
  }
  return text;
}

}  // namespace moxie
