// The table, and what of a symbol it is asked with.
#include "lab/kernel_table.h"

#include <cxxabi.h>

#include <array>
#include <cctype>
#include <cstdlib>
#include <map>
#include <memory>

#include "core/tensor.h"
#include "kernels/registry.h"

namespace moxie {
namespace {

using enum Category;

constexpr KernelEntry kEntries[] = {
    {"gather_rows", "", {"embed", kMemory}},
    {"slice_gemv", "QkvStep", {"qkv", kDense}},
    {"split_gemv", "QkvStep", {"qkv", kDense}},
    {"product_kernel", "TurnAndAppend", {"qkv", kDense}},
    {"streamed_product_kernel", "TurnAndAppend", {"qkv", kDense}},
    {"attend_plain", "", {"attend", kAttention}},
    {"attend_split", "", {"attend", kAttention}},
    {"attend_prefill_plan", "", {"attend", kAttention}},
    {"attend_prefill", "", {"attend", kAttention}},
    {"attend_flashinfer_plan", "", {"attend", kAttention}},
    {"BatchPrefillWithPagedKVCacheKernel", "", {"attend", kAttention}},
    {"PrefillWithKVCacheKernel", "", {"attend", kAttention}},
    {"slice_gemv", "OutStep", {"out", kDense}},
    {"split_gemv", "OutStep", {"out", kDense}},
    {"product_kernel", "AddToResidual", {"out", kDense}},
    {"streamed_product_kernel", "AddToResidual", {"out", kDense}},
    {"route_gemv", "", {"route", kRouting}},
    {"route_tiles", "", {"route", kRouting}},
    {"route_wide", "", {"route", kRouting}},
    {"sort_by_expert", "", {"sort", kRouting}},
    {"fill_slots", "", {"sort", kRouting}},
    {"slice_experts", "", {"experts", kExperts}},
    {"gate_up_tiles", "", {"experts", kExperts}},
    {"down_tiles", "", {"experts", kExperts}},
    {"gate_up_gemv", "", {"experts", kExperts}},
    {"down_gemv", "", {"experts", kExperts}},
    {"product_kernel", "GateUp", {"experts", kExperts}},
    {"product_kernel", "DownPairs", {"experts", kExperts}},
    {"streamed_product_kernel", "GateUp", {"experts", kExperts}},
    {"streamed_product_kernel", "DownAdds", {"experts", kExperts}},
    {"add_pair_rows", "", {"experts", kExperts}},
    {"head_gemv", "", {"unembed", kDense}},
    {"product_kernel", "StoreLogits", {"unembed", kDense}},
    {"streamed_product_kernel", "StoreLogits", {"unembed", kDense}},
    {"stage_normed_rows", "", {"stage", kNorm}},
    {"stage_float_rows", "", {"stage", kNorm}},
    {"stage_slot_rows", "", {"stage", kNorm}},
    {"stage_slot_rows_e4m3", "", {"stage", kNorm}},
    {"rms_norm", "", {"norm", kNorm}},
    {"sample_rows", "", {"sample", kSampling}},
    {"find_parts", "", {"sample", kSampling}},
    {"merge_parts", "", {"sample", kSampling}},
    {"copy_residual", "", {"tap", kMemory}},
    {"advance_rows", "", {"advance", kSampling}},
    {"memcpy", "", {"copy", kMemory}},
    {"memset", "", {"copy", kMemory}},
    {"fill_random_kernel", "", {"load", kLoad}},
    {"fill_table_kernel", "", {"load", kLoad}},
    {"fill_vector_kernel", "", {"load", kLoad}},
    {"repack_matrix_kernel", "", {"load", kLoad}},
    {"repack_vector_kernel", "", {"load", kLoad}},
    {"repack_table_kernel", "", {"load", kLoad}},
    {"greatest_scales", "", {"load", kLoad}},
    {"read_all", "", {"machine", kLoad}},
    {"multiply_all", "", {"machine", kLoad}},
};

constexpr const char* kNames[kNumCategories] = {
    "experts",  "dense",    "attention",       "routing", "norm and activation",
    "kv cache", "sampling", "memory movement", "load",    "other",
    "gap"};

constexpr std::pair<std::string_view, Category> kOfOps[] = {
    {"embed", kMemory},  {"qkv", kDense},       {"attend", kAttention},
    {"out", kDense},     {"route", kRouting},   {"experts", kExperts},
    {"unembed", kDense}, {"sample", kSampling}, {"tap", kMemory}};

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool has_word(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end])))
      return true;
  }
  return false;
}

std::string demangled(const std::string& symbol) {
  if (!symbol.starts_with("_Z")) return symbol;
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  return status == 0 ? text.get() : symbol;
}

// Every "what" of a text replaced.
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

const std::map<std::string, const OpInfo*, std::less<>>& ops_of_rows() {
  static const auto ops = [] {
    std::map<std::string, const OpInfo*, std::less<>> found;
    for (const RowInfo& row : all_rows()) found[row.name] = &row.op();
    return found;
  }();
  return ops;
}

}  // namespace

const char* category_name(Category category) { return kNames[static_cast<int>(category)]; }

Category category_of(const OpInfo& op) {
  for (const auto& [name, category] : kOfOps)
    if (name == op.name) return category;
  return kOther;
}

std::span<const KernelEntry> kernel_entries() { return kEntries; }

KernelPlace place_of(const std::string& symbol) {
  if (const auto row = ops_of_rows().find(symbol); row != ops_of_rows().end()) {
    return {row->second->name, category_of(*row->second)};
  }
  const std::string name = without_scopes(demangled(symbol));
  const std::string_view function = std::string_view(name).substr(0, name.find_first_of("< "));
  for (const KernelEntry& entry : kEntries) {
    if (function == entry.function && (entry.token.empty() || has_word(name, entry.token))) {
      return entry.place;
    }
  }
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
