// The loops of measure_gpu and measure_launches_s, what fills L2 before a timed run, and the PCI
// bus id that NVML needs from CUDA.
#pragma once

#include <string>
#include <vector>

#include "core/device.h"

namespace moxie {

/// Bytes that one block reads; buffers are read in multiples of this.
inline constexpr uint64_t kGpuReadGrain = uint64_t{512} * 16 * 16;

/// Seconds of each of `passes` reads of the whole buffer, after one that is not counted.
Result<std::vector<double>> time_gpu_reads(const Buffer& buffer, int passes, Stream& stream);

/// Gives the stream a kernel that reads the whole buffer, which is zeros, so that L2 holds what it
/// read last and nothing that would have to be written back.
Status fill_l2(const Buffer& buffer, Stream& stream);

/// The operands: BF16 by BF16, or E5M2 by E4M3; sums in F32. kBF16Mma: BF16 by mma.sync.
enum class GpuProducts : uint8_t { kBF16, kFP8, kBF16Mma };
/// Operations a second (a multiply-add counts as two) of each of `passes` passes, after one that is
/// not counted. Empty if this build has no loop for the device: all but kBF16Mma are for Hopper.
Result<std::vector<double>> time_gpu_products(GpuProducts kind, Device& device, int passes,
                                              Stream& stream);

/// Seconds of the host for one launch of a kernel that does nothing: of each of `rounds` rounds of
/// `launches`, after one that is not counted. The host does not wait for the device between them,
/// so that all rounds together should be fewer launches than a stream holds (1,024).
Result<std::vector<double>> time_launches(int rounds, int launches, Stream& stream);

/// "00000000:18:00.0"; empty if it cannot be read.
std::string gpu_pci_bus_id(Device& device);

}  // namespace moxie
