// NVIDIA's NCCL, opened at run time, so that only ranks that need it must have it: the functions of
// its C interface that they call, declared as its documentation states them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "core/base.h"

namespace moxie {

/// Names the communicator of some ranks: rank 0 makes it, and tells the others.
struct NcclId {
  char bytes[128];
};
std::string to_text(const NcclId& id);
/// Nothing where the text is not that of an id.
std::optional<NcclId> nccl_id(const std::string& text);

struct NcclLibrary {
  using Comm = void*;
  static constexpr int kSuccess = 0, kInProgress = 7;  // results
  static constexpr int kBytes = 0;                     // a type of values: ncclInt8

  int (*get_version)(int* version) = nullptr;
  int (*get_unique_id)(NcclId* id) = nullptr;
  int (*comm_init_rank)(Comm* comm, int num_ranks, NcclId id, int rank) = nullptr;
  int (*all_gather)(const void* from, void* to, size_t count, int type, Comm comm,
                    void* stream) = nullptr;
  int (*comm_get_async_error)(Comm comm, int* result) = nullptr;
  int (*comm_abort)(Comm comm) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(Comm comm) = nullptr;

  /// What NCCL says of a result other than kSuccess.
  std::string text_of(int result) const;
};

/// Opens `path`, or the library that the loader finds where it is null or empty. Fails if there is
/// none or it is too old, and says what to install.
Result<NcclLibrary> load_nccl(const char* path);
/// The same with the path that MOXIE_NCCL_LIBRARY names.
Result<NcclLibrary> load_nccl();

}  // namespace moxie
