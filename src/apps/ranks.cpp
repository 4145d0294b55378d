// Other ranks load their share and follow rank 0.
#include "apps/ranks.h"

#include <fmt/format.h>

#include "apps/cli.h"

namespace moxie {

std::optional<int> run_as_rank(EngineOptions* options) {
  auto world = rank_world();
  if (!world) return report(world.error());
  if (!*world) return std::nullopt;
  options->world = **world;
  const int32_t rank = (*world)->rank;
  if (rank == 0) return std::nullopt;
  options->show_progress = false;
  auto engine = Engine::load(*options);
  auto status = engine ? (*engine)->follow_first_rank() : Status(fail(engine.error()));
  if (status) return kExitDone;
  log_error(fmt::format("rank {} ends", rank));
  return report(status.error());
}

}  // namespace moxie
