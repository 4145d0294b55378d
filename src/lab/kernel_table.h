// Where a kernel belongs: its step, and the category under which the profile counts it. Both follow
// from the operation that launched it. The table lists kernels that count under another category,
// and those that run outside of operations. A test reads the sources and fails for a kernel of the
// latter kind that is not in the table; at run time such a kernel shows as "other".
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "kernels/op.h"

namespace moxie {

/// The categories of a profile. `kGap`: no kernel runs. `kOther`: a kernel that no operation
/// launched and that is not in the table. `kLoad`: kernels of loading, which no measured window
/// should contain.
enum class Category : uint8_t {
  kExperts,
  kDense,
  kAttention,
  kRouting,
  kNorm,
  kKv,
  kSampling,
  kMemory,
  kRanks,
  kLoad,
  kOther,
  kGap
};
inline constexpr int kNumCategories = 12;
/// "experts", "dense", "attention", "routing", "norm and activation", "kv cache", "sampling",
/// "memory movement", "between ranks", "load", "other", "gap".
const char* category_name(Category category);

/// The category of an operation's work; kOther if it has none.
Category category_of(const OpInfo& op);

/// `step`: an operation's name, or a name for work outside of operations: "draft_ids", "copy",
/// "load", "machine", "other".
struct KernelPlace {
  const char* step;
  Category category;
};

/// `symbol`: a kernel's mangled or demangled name, a copy's name ("memcpy ..."), or a row's name.
/// `op`: the operation that it ran for, or null.
KernelPlace place_of(const std::string& symbol, const OpInfo* op);

/// The demangled name without namespaces, return type and arguments, formats by name:
/// "product_kernel<mxfp4, CutOf<2, 1, true, 128>, 64, 64, GateUp>".
std::string short_kernel_name(const std::string& symbol);

/// An entry of the table.
struct KernelEntry {
  std::string_view function;
  Category category;
  const char* step = nullptr;  ///< outside of operations; null: it does not run there
};
std::span<const KernelEntry> kernel_entries();

}  // namespace moxie
