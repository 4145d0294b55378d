// The rows of gather, as functions; gather_table.cpp puts them into the table.
#pragma once

#include "kernels/gather/gather.h"

namespace moxie {

/// Value after value, on one thread.
void gather_reference(const GatherParams& params);

/// Ranks that are threads of a process: the first reads the others' parts where they are.
void gather_f32_copy_portable(const GatherParams& params);

}  // namespace moxie
