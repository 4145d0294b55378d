// Reads the list that CMake gives this file alone.
#include "core/cuda_archs.h"

#include <algorithm>
#include <sstream>

#ifndef MOXIE_CUDA_ARCH_LIST
#define MOXIE_CUDA_ARCH_LIST ""
#endif

namespace moxie {
namespace {

struct Arch {
  int32_t number = 0;
  std::string letters;  // "", "a", "f", "-virtual"
};

Arch parse(const std::string& word) {
  size_t digits = 0;
  while (digits < word.size() && word[digits] >= '0' && word[digits] <= '9') ++digits;
  return {digits == 0 ? 0 : std::stoi(word.substr(0, digits)), word.substr(digits)};
}

bool runs(const Arch& arch, int32_t capability) {
  if (arch.letters == "a") return capability == arch.number;
  const bool is_later = capability >= arch.number;
  return arch.letters == "-virtual" ? is_later : is_later && capability / 10 == arch.number / 10;
}

}  // namespace

int32_t code_for(int32_t compute_capability, const std::string& archs) {
  std::istringstream words(archs);
  int32_t real = 0, intermediate = 0;
  for (std::string word; words >> word;) {
    const Arch arch = parse(word);
    if (arch.number == 0 || !runs(arch, compute_capability)) continue;
    int32_t& best = arch.letters == "-virtual" ? intermediate : real;
    best = std::max(best, arch.number);
  }
  return real != 0 ? real : intermediate;
}

int32_t code_for(int32_t compute_capability) { return code_for(compute_capability, cuda_archs()); }

std::string cuda_archs() { return MOXIE_CUDA_ARCH_LIST; }

}  // namespace moxie
