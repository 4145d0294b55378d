// The table, and the functions that find a symbol in it.
#include "lab/kernel_table.h"

#include <cxxabi.h>

#include <cctype>
#include <cstdlib>
#include <memory>

#include "core/tensor.h"

namespace moxie {
namespace {

using enum Category;

constexpr KernelEntry kEntries[] = {
    {"stage_normed_rows", kNorm},
    {"stage_float_rows", kNorm},
    {"stage_slot_rows", kNorm},
    {"stage_slot_rows_e4m3", kNorm},
    {"lay_rows_i8", kNorm},
    {"lay_staged_rows_i8", kNorm},
    {"stage_rows_blocked", kNorm},
    {"rms_norm", kNorm},
    {"sort_by_expert", kRouting},
    {"fill_slots", kRouting},
    {"find_groups", kRouting},
    {"write_ids", kSampling, "draft_ids"},
    {"write_masks", kMemory, "draft_masks"},
    {"memcpy", kMemory, "copy"},
    {"memset", kMemory, "copy"},
    {"fill_random_kernel", kLoad, "load"},
    {"fill_table_kernel", kLoad, "load"},
    {"fill_vector_kernel", kLoad, "load"},
    {"repack_matrix_kernel", kLoad, "load"},
    {"repack_vector_kernel", kLoad, "load"},
    {"repack_table_kernel", kLoad, "load"},
    {"greatest_scales", kLoad, "load"},
    {"lay_weight_rows_i8", kLoad, "load"},
    {"read_all", kLoad, "machine"},
    {"multiply_all", kLoad, "machine"},
    {"multiply_all_mma", kLoad, "machine"},
    {"hold_device", kLoad, "machine"},
    {"do_nothing", kLoad, "machine"},
};

constexpr const char* kNames[kNumCategories] = {
    "experts",  "dense",    "attention",       "routing",       "norm and activation",
    "kv cache", "sampling", "memory movement", "between ranks", "load",
    "other",    "gap"};

constexpr std::pair<std::string_view, Category> kOfOps[] = {
    {"embed", kMemory},     {"qkv", kDense},
    {"attend", kAttention}, {"out", kDense},
    {"route", kRouting},    {"experts", kExperts},
    {"unembed", kDense},    {"sample", kSampling},
    {"tap", kMemory},       {"moe_fp8_block_scale", kExperts},
    {"rms_norm", kNorm},    {"gate", kNorm},
    {"rotate", kDense},     {"reduce", kRanks},
    {"gather", kRanks}};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string demangled(const std::string& symbol) {
  if (!symbol.starts_with("_Z")) return symbol;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : symbol;
}

// Replaces every `what` in a text.
void replace_all(std::string& text, std::string_view what, std::string_view by) {
  for (size_t at = text.find(what); at != text.npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
  }
}

// "void moxie::f<(moxie::DType)9, moxie::gemm::A>(moxie::gemm::A)": "f<(DType)9, A>".
std::string without_scopes(std::string name) {
  replace_all(name, "(anonymous namespace)::", "");
  if (name.starts_with("void ")) name.erase(0, 5);
  std::string plain;
  for (size_t i = 0; i < name.size(); ++i) {
    if (name[i] == ':' && i + 1 < name.size() && name[i + 1] == ':') {
      while (!plain.empty() && is_word(plain.back())) plain.pop_back();
      ++i;
      continue;
    }
    plain += name[i];
  }
  int depth = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (plain[i] == '<') ++depth;
    if (plain[i] == '>') --depth;
    if (plain[i] == '(' && depth == 0) return plain.substr(0, i);
  }
  return plain;
}

}  // namespace

const char* category_name(Category category) { return kNames[static_cast<int>(category)]; }

Category category_of(const OpInfo& op) {
  for (const auto& [name, category] : kOfOps)
    if (name == op.name) return category;
  return kOther;
}

std::span<const KernelEntry> kernel_entries() { return kEntries; }

KernelPlace place_of(const std::string& symbol, const OpInfo* op) {
  const std::string name = without_scopes(demangled(symbol));
  const std::string_view function = std::string_view(name).substr(0, name.find_first_of("< "));
  const KernelEntry* found = nullptr;
  for (const KernelEntry& entry : kEntries)
    if (function == entry.function) found = &entry;
  if (op != nullptr) return {op->name, found != nullptr ? found->category : category_of(*op)};
  if (found != nullptr && found->step != nullptr) return {found->step, found->category};
  return {"other", kOther};
}

std::string short_kernel_name(const std::string& symbol) {
  std::string name = without_scopes(demangled(symbol));
  for (int i = static_cast<int>(DType::kQ8_0); i >= 0; --i) {  // 10 before 1
    replace_all(name, "(DType)" + std::to_string(i), dtype_name(static_cast<DType>(i)));
  }
  return name;
}

}  // namespace moxie
