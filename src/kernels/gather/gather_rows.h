// The rows of gather, as functions; gather_table.cpp puts them into the table.
#pragma once

#include "kernels/gather/gather.h"

namespace moxie {

/// Value after value, on one thread.
void gather_reference(const GatherParams& params);

/// Ranks that are threads of a process: the first reads the others' parts where they are.
void gather_f32_copy_portable(const GatherParams& params);

/// CUDA: ranks on GPUs of a process, each of which gets all logits.
void gather_f32_peers_cuda(const GatherParams& params);
/// The same for many rows.
void gather_f32_units_peers_cuda(const GatherParams& params);

/// CUDA: ranks on GPUs of several processes; NCCL brings all logits to each.
void gather_f32_nccl_cuda(const GatherParams& params);

}  // namespace moxie
