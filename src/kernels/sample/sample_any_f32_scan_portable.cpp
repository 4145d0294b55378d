// The passes of sample in portable C++: the compiler's vector types of 16 bytes.
#include "kernels/sample/sample_scan_body.h"

namespace moxie {
namespace {

struct Portable {
  static constexpr int kLanes = 4;
  typedef float F __attribute__((vector_size(16)));
  typedef float H __attribute__((vector_size(8)));
  typedef double D __attribute__((vector_size(16)));
  typedef int64_t L __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  typedef uint32_t U __attribute__((vector_size(16)));

  static bool any(I x) { return (x[0] | x[1] | x[2] | x[3]) != 0; }

  static void multiply(U x, uint32_t factor, U& high, U& low) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint64_t product = uint64_t{x[lane]} * factor;
      high[lane] = static_cast<uint32_t>(product >> 32);
      low[lane] = static_cast<uint32_t>(product);
    }
  }
};

}  // namespace

extern const SampleScanCode kSampleScanPortable = SampleScanBody<Portable>::code();

}  // namespace moxie
