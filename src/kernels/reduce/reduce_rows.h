// The rows of reduce, as functions; reduce_table.cpp puts them into the table.
#pragma once

#include "kernels/reduce/reduce.h"

namespace moxie {

/// In double precision, value by value, on one thread.
void reduce_reference(const ReduceParams& params);

/// Ranks that are threads of a process: each reads the others' parts where they are.
void reduce_f32_one_shot_portable(const ReduceParams& params);

}  // namespace moxie
