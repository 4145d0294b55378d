// Other ranks load their share and follow rank 0.
#include "apps/ranks.h"

#include <fmt/format.h>

#include <csignal>

#include "apps/cli.h"
#include "apps/stop_signal.h"
#include "engine/rank_meeting.h"

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
  // A signal to all ranks is rank 0's to answer: requests that run may end before the others quit.
  if (engine) stop_at({SIGINT, SIGTERM});
  auto status = engine ? (*engine)->follow_first_rank() : Status(fail(engine.error()));
  if (status) return kExitDone;
  log_error(fmt::format("rank {} ends", rank));
  return report(status.error());
}

int report_to_ranks(const EngineOptions& options, const Error& error) {
  if (options.world) RankMeeting::stay_away(*options.world, error.message());
  return report(error);
}

}  // namespace moxie
