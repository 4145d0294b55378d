// Where a kernel belongs: from its symbol to the step it serves and the category that the profile
// counts it under. One table for every kernel of the tree; a test reads the sources and fails for a
// kernel that the table lacks, and what is not there at run time shows as "other".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/op.h"

namespace moxie {

/// What the profile sums time by. `kGap`: no kernel runs. `kOther`: a kernel that is not in the
/// table. `kLoad`: kernels of loading, which no measured window should hold.
enum class Category : uint8_t {
  kExperts,
  kDense,
  kAttention,
  kRouting,
  kNorm,
  kKv,
  kSampling,
  kMemory,
  kLoad,
  kOther,
  kGap
};
inline constexpr int kNumCategories = 11;
/// "experts", "dense", "attention", "routing", "norm and activation", "kv cache", "sampling",
/// "memory movement", "load", "other", "gap".
const char* category_name(Category category);

/// The category that holds the work of an operation; kOther of one that has none.
Category category_of(const OpInfo& op);

/// `step`: a step's name, or what stands between steps: "stage" (activations normed and rounded to
/// the products' format), "sort" (pairs of token and expert), "advance", "copy", "load", "other".
struct KernelPlace {
  const char* step;
  Category category;
};

/// `symbol`: a kernel's mangled or demangled name, a copy's name ("memcpy ..."), or the name of a
/// row of the registry (the CPU, where a row is timed as a whole).
KernelPlace place_of(const std::string& symbol);

/// The demangled name without namespaces, return type and arguments, formats by name:
/// "product_kernel<mxfp4, CutOf<2, 1, true, 128>, 64, 64, GateUp>".
std::string short_kernel_name(const std::string& symbol);

/// A row of the table. `token`: a word that the demangled name must hold besides, or empty.
struct KernelEntry {
  std::string_view function, token;
  KernelPlace place;
};
std::span<const KernelEntry> kernel_entries();

}  // namespace moxie
