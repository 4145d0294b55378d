// The processes that a launcher started together, a rank each: mpirun's, or torchrun's variables.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/base.h"

namespace moxie {

struct RankWorld {
  int32_t rank = 0, size = 1;
  int32_t local_rank = 0, local_size = 1;  ///< among the ranks on this host, as the launcher says
  std::string master_host;                 ///< of rank 0
  uint16_t master_port = 0;                ///< that rank 0 listens on until all are there
};

/// What the environment says; nothing where no launcher, or one of a single process, has set it.
/// Ranks and their number: RANK and WORLD_SIZE, or the variables of Open MPI, MPICH and Intel MPI.
/// MASTER_ADDR may be missing where the launcher says that all processes are on one host;
/// MASTER_PORT is 29500 where it is. Fails, naming the variable, on what is no sound world.
Result<std::optional<RankWorld>> rank_world(
    const std::function<const char*(const char*)>& environment);
/// Of this process.
Result<std::optional<RankWorld>> rank_world();

}  // namespace moxie
