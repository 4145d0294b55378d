// The drafter of each method.
#include "engine/speculation.h"

#include "engine/engine.h"

namespace moxie {

Result<std::unique_ptr<Drafter>> make_drafter(Engine& engine, int32_t* max_drafts) {
  *max_drafts = 0;
  const SpeculationOptions& options = engine.options().speculation;
  if (options.method == SpecMethod::kOff) return nullptr;
  return fail("drafts of this method are not there yet", "--spec");
}

}  // namespace moxie
