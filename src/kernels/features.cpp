// CPUID, XCR0 and the kernel's permission for AMX; on aarch64 the kernel's list of the CPU's
// features.
#include "kernels/features.h"

#include "core/cuda_archs.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace moxie {
namespace {

#if defined(__x86_64__)
uint64_t read_xcr0() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Tile data is granted per process: ARCH_REQ_XCOMP_PERM (0x1023) for XTILEDATA (18).
bool request_amx() { return ::syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

Features detect() {
  uint32_t a, b, c, d;
  Features found = kFeatureNone;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  const bool osxsave = c & (1u << 27), fma = c & (1u << 12), f16c = c & (1u << 29);
  if (!osxsave) return found;
  const uint64_t xcr0 = read_xcr0();
  const bool ymm = (xcr0 & 0x6) == 0x6, zmm = (xcr0 & 0xE6) == 0xE6,
             tiles = (xcr0 & 0x60000) == 0x60000;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  const uint32_t b7 = b, c7 = c, d7 = d;
  uint32_t a71 = 0;
  if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) a71 = a;
  if (ymm && fma && f16c && (b7 & (1u << 5))) found |= kAvx2;
  if ((found & kAvx2) && (a71 & (1u << 4))) found |= kAvxVnni;
  const uint32_t avx512 = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);  // F DQ BW VL
  if (zmm && (found & kAvx2) && (b7 & avx512) == avx512) {
    found |= kAvx512;
    if (c7 & (1u << 1)) found |= kAvx512Vbmi;
    if (c7 & (1u << 11)) found |= kAvx512Vnni;
    if (a71 & (1u << 5)) found |= kAvx512Bf16;
    if (tiles && (d7 & (1u << 24)) && request_amx()) {
      if (d7 & (1u << 25)) found |= kAmxInt8;
      if (d7 & (1u << 22)) found |= kAmxBf16;
    }
  }
  return found;
}
#elif defined(__aarch64__)
Features detect() {
  Features found = kNeon;  // part of the architecture
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) found |= kNeonDot;
  const unsigned long more = getauxval(AT_HWCAP2);
  if (more & HWCAP2_I8MM) found |= kNeonI8mm;
  if (more & HWCAP2_BF16) found |= kNeonBf16;
  return found;
}
#else
Features detect() { return kFeatureNone; }
#endif

bool is_by_amd() {
#if defined(__x86_64__)
  uint32_t a, b, c, d;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_AMD_ebx && c == signature_AMD_ecx &&
         d == signature_AMD_edx;
#else
  return false;
#endif
}

}  // namespace

Features cpu_features() {
  static const Features found = detect();
  return found;
}

bool reads_in_order() { return is_by_amd(); }
double bf16_dot_cost() { return is_by_amd() ? 1 : 2.5; }

Features features_of_code(int32_t code) {
  if (code == 0) return kFeatureNone;
  Features found = kCudaAny;
  if (code >= 90) found |= kClusters;
  if (code == 90) found |= kSm90a;
  if (code == 100) found |= kSm100a;
  found |= code == 120 ? kSm120f : kNoMxProducts;
  return found;
}

Features cuda_features(int compute_capability) {
  return features_of_code(code_for(compute_capability));
}

uint64_t most_shared_bytes(Features features) {
  const bool has_least = (features & kClusters) == 0 || (features & kSm120f) != 0;
  return (features & kCudaAny) != 0 && has_least ? kPortableSharedBytes : 0;
}

std::string feature_names(Features features) {
  static constexpr struct {
    Features bit;
    const char* name;
  } kNames[] = {{kAvx2, "avx2"},
                {kAvxVnni, "avx_vnni"},
                {kAvx512, "avx512"},
                {kAvx512Vnni, "avx512_vnni"},
                {kAvx512Bf16, "avx512_bf16"},
                {kAvx512Vbmi, "avx512_vbmi"},
                {kAmxInt8, "amx_int8"},
                {kAmxBf16, "amx_bf16"},
                {kNeon, "neon"},
                {kNeonDot, "neon_dot"},
                {kNeonI8mm, "neon_i8mm"},
                {kNeonBf16, "neon_bf16"},
                {kCudaAny, "cuda"},
                {kClusters, "clusters"},
                {kNoMxProducts, "no_mx_products"},
                {kSm90a, "sm_90a"},
                {kSm100a, "sm_100a"},
                {kSm120f, "sm_120f"}};
  std::string text;
  for (const auto& entry : kNames) {
    if (features & entry.bit) text += (text.empty() ? "" : " ") + std::string(entry.name);
  }
  return text.empty() ? "none" : text;
}

}  // namespace moxie
