// What launches cost by their number of tokens, measured before the first request, so that the
// first texts are not drafted by trial.
#pragma once

#include "core/base.h"
#include "engine/draft_length.h"
#include "engine/drafter.h"

namespace moxie {

class Engine;

/// Runs the decode loop, and launches of several random tokens behind nothing, up to the numbers
/// that a few requests with `max_drafts` drafts have, with their draws and the drafter's work for
/// one request. Takes some tenths of a second for gpt-oss-120b. For CUDA, where a launch's time is
/// much the same at any time. No request may be running.
Status measure_costs(Engine& engine, Drafter& drafter, int32_t max_drafts, StepCosts* costs);

}  // namespace moxie
