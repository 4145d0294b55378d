// Launchers' variables.
#include "core/rank_world.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace moxie {
namespace {

struct Names {
  const char *rank, *size;
  const char *local_rank, *local_size;  // among those on this host
};
constexpr Names kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};
constexpr int32_t kMostRanks = 64, kMasterPort = 29500;

Result<int32_t> number(const char* name, const char* text, int32_t least, int32_t most) {
  const std::string_view digits = text;
  int32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc{} || end != digits.data() + digits.size() || value < least || value > most)
    return fail(fmt::format("'{}' is no number from {} to {}", text, least, most), name,
                "start all ranks with one mpirun or torchrun, or unset the variable");
  return value;
}

}  // namespace

Result<std::optional<RankWorld>> rank_world(
    const std::function<const char*(const char*)>& environment) {
  for (const Names& names : kLaunchers) {
    const char *rank_text = environment(names.rank), *size_text = environment(names.size);
    if (rank_text == nullptr || size_text == nullptr) continue;
    const auto size = number(names.size, size_text, 1, kMostRanks);
    if (!size) return fail(size.error());
    if (*size == 1) return std::optional<RankWorld>();
    const auto rank = number(names.rank, rank_text, 0, *size - 1);
    if (!rank) return fail(rank.error());
    RankWorld world{.rank = *rank, .size = *size, .master_port = kMasterPort};
    if (const char* port_text = environment("MASTER_PORT")) {
      const auto port = number("MASTER_PORT", port_text, 1, 65535);
      if (!port) return fail(port.error());
      world.master_port = static_cast<uint16_t>(*port);
    }
    const char *local_rank = environment(names.local_rank),
               *local_size = environment(names.local_size);
    if (local_rank != nullptr && local_size != nullptr) {
      const auto of = number(names.local_size, local_size, 1, *size);
      if (!of) return fail(of.error());
      const auto local = number(names.local_rank, local_rank, 0, *of - 1);
      if (!local) return fail(local.error());
      world.local_rank = *local, world.local_size = *of;
    }
    if (const char* host = environment("MASTER_ADDR"); host != nullptr && *host != '\0')
      world.master_host = host;
    else if (world.local_size == world.size)
      world.master_host = "127.0.0.1";
    else
      return fail("the ranks do not know where rank 0 is", "MASTER_ADDR",
                  "set it to the name or address of rank 0's host, as with mpirun -x MASTER_ADDR");
    return std::optional(std::move(world));
  }
  return std::optional<RankWorld>();
}

Result<std::optional<RankWorld>> rank_world() {
  return rank_world([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
}

}  // namespace moxie
