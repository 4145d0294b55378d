// Opens NCCL and finds its functions.
#include "core/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <type_traits>

namespace moxie {
namespace {

constexpr const char* kName = "libnccl.so.2";
constexpr const char* kVariable = "MOXIE_NCCL_LIBRARY";
constexpr const char* kHint =
    "install the package libnccl2, or `pip install nvidia-nccl-cu13` and name its "
    "nvidia/nccl/lib/libnccl.so.2 in MOXIE_NCCL_LIBRARY";
// Aborts communicators whose kernels are in graphs, and versions are 10000 * major + 100 * minor.
constexpr int kLeastVersion = 21800;

int value_of(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

}  // namespace

std::string to_text(const NcclId& id) {
  std::string text;
  for (const char byte : id.bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return text;
}

std::optional<NcclId> nccl_id(const std::string& text) {
  NcclId id;
  if (text.size() != 2 * sizeof(id.bytes)) return {};
  for (size_t i = 0; i < sizeof(id.bytes); ++i) {
    const int high = value_of(text[2 * i]), low = value_of(text[2 * i + 1]);
    if (high < 0 || low < 0) return {};
    id.bytes[i] = static_cast<char>(16 * high + low);
  }
  return id;
}

std::string NcclLibrary::text_of(int result) const {
  const char* const why = get_last_error(nullptr);
  const std::string text = get_error_string(result);
  return why == nullptr || *why == '\0' ? text : fmt::format("{} ({})", text, why);
}

Result<NcclLibrary> load_nccl(const char* path) {
  const bool is_named = path != nullptr && *path != '\0';
  const std::string file = is_named ? path : kName;
  const char* const where = is_named ? kVariable : "ranks on GPUs";
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return fail("NCCL, which processes with GPUs exchange through, was not found: " +
                    std::string(why != nullptr ? why : file),
                where, kHint);
  }
  NcclLibrary nccl;
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  find(nccl.get_version, "ncclGetVersion");
  find(nccl.get_unique_id, "ncclGetUniqueId");
  find(nccl.comm_init_rank, "ncclCommInitRank");
  find(nccl.all_gather, "ncclAllGather");
  find(nccl.comm_get_async_error, "ncclCommGetAsyncError");
  find(nccl.comm_abort, "ncclCommAbort");
  find(nccl.get_error_string, "ncclGetErrorString");
  find(nccl.get_last_error, "ncclGetLastError");
  if (!missing.empty())
    return fail(file + " is no NCCL, or too old: it lacks " + missing, where, kHint);
  int version = 0;
  if (nccl.get_version(&version) != NcclLibrary::kSuccess || version < kLeastVersion)
    return fail(fmt::format("{} is NCCL {}.{}, which is older than 2.18", file, version / 10000,
                            version / 100 % 100),
                where, kHint);
  return nccl;
}

Result<NcclLibrary> load_nccl() { return load_nccl(std::getenv(kVariable)); }

}  // namespace moxie
