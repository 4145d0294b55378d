// The table of cards. docs/gpus.md names the sources.
#include "lab/gpu_cards.h"

#include <algorithm>
#include <cctype>

#include "core/cuda_archs.h"
#include "kernels/rates.h"

namespace moxie {
namespace {

// Three H200 and one H100 read 94 to 97% of what their data sheets say. Nobody has measured GDDR
// and LPDDR with these kernels; others' read 91% on a GB10.
constexpr Range kUnknownRead{0.90, 0.95, 0.97};
// mma.sync where it is the fastest way to the tensor cores; wgmma reaches 89 to 92% on Hopper.
constexpr Range kUnknownProducts{0.80, 0.90, 0.95};
// On a B200 mma.sync is not that way, and its rate is not public: taken to be between half and one
// and a half of a Hopper's an SM.
constexpr Range kB200Products{0.15, 0.30, 0.45};
// A GB10's rate with F32 sums is not public. It is a quarter of FP4's, as on an RTX PRO, or an
// eighth, as on a GeForce.
constexpr Range kGb10Products{0.45, 0.75, 0.95};

constexpr const char* kH100Records = "portable_rows_h100, portable_rows_beside_h100";
constexpr const char* kH200Records = "steps_h200, streams_h200, validate_120b_h200";

constexpr GpuCard kCards[] = {
    // name, capability, SMs, GHz, GB, GB/s, BF16, FP8, FP4 TFLOPS, L2 MB, shared KiB, system GB
    {"GB10", 121, 48, 2.50, 128, 273, 125, 250, 500, 24, 100, 8, kUnknownRead, kGb10Products, ""},
    {"RTX5090", 120, 170, 2.41, 32, 1792, 209.5, 419, 1676, 96, 100, 0, kUnknownRead,
     kUnknownProducts, ""},
    {"RTXPRO6000", 120, 188, 2.62, 96, 1792, 503.8, 1008, 2015, 128, 100, 0, kUnknownRead,
     kUnknownProducts, ""},
    {"RTX4090", 89, 128, 2.52, 24, 1008, 165.2, 330.3, 0, 72, 100, 0, kUnknownRead,
     kUnknownProducts, ""},
    {"RTX3090", 86, 82, 1.70, 24, 936, 71, 0, 0, 6, 100, 0, kUnknownRead, kUnknownProducts, ""},
    {"A100-40GB", 80, 108, 1.41, 40, 1555, 312, 0, 0, 40, 164, 0, kUnknownRead, kUnknownProducts,
     ""},
    {"A100", 80, 108, 1.41, 80, 2039, 312, 0, 0, 40, 164, 0, kUnknownRead, kUnknownProducts, ""},
    {"L40S", 89, 142, 2.52, 48, 864, 362, 733, 0, 96, 100, 0, kUnknownRead, kUnknownProducts, ""},
    {"H100",
     90,
     132,
     1.98,
     85,
     3350,
     989,
     1979,
     0,
     50,
     228,
     0,
     {0.940, 0.943, 0.945},
     {0.90, 0.915, 0.92},
     kH100Records},
    {"H200",
     90,
     132,
     1.98,
     150,
     4800,
     989,
     1979,
     0,
     50,
     228,
     0,
     {0.948, 0.955, 0.975},
     {0.89, 0.90, 0.91},
     kH200Records},
    {"B200", 100, 148, 1.97, 180, 8000, 2250, 4500, 9000, 126, 228, 0, kUnknownRead, kB200Products,
     ""},
};

std::string squeezed(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

std::span<const GpuCard> gpu_cards() { return kCards; }

Result<const GpuCard*> gpu_card(const std::string& name) {
  std::string known;
  for (const GpuCard& card : kCards) {
    if (squeezed(card.name) == squeezed(name)) return &card;
    known += (known.empty() ? "" : ", ") + std::string(card.name);
  }
  return fail("unknown GPU '" + name + "'", "--gpu", known);
}

Features features_of(const GpuCard& card) {
  return features_of_code(code_for(card.compute_capability, "80 90a 100a 120f"));
}

double read_gb_s_of(const GpuCard& card, double share) {
  return std::min(share * card.memory_gb_s, kOperandBytesAClock * card.num_sms * card.clock_ghz);
}

}  // namespace moxie
