// A command as one of several processes that mpirun or torchrun started: rank 0 does what the
// command says, the others run their share of its launches.
#pragma once

#include <optional>

#include "engine/engine.h"

namespace moxie {

/// For a command that runs a model, before anything is read or opened. On another rank than the
/// first, or on a fault of the environment, returns the exit status with which the process ends,
/// once rank 0 has ended; otherwise nothing, and the command goes on.
std::optional<int> run_as_rank(EngineOptions* options);

/// report() of a fault before the model is loaded. Other ranks, which wait for this one, end with
/// it.
int report_to_ranks(const EngineOptions& options, const Error& error);

}  // namespace moxie
