// The rows of reduce, as functions; reduce_table.cpp puts them into the table.
#pragma once

#include "kernels/reduce/reduce.h"

namespace moxie {

/// In double precision, value by value, on one thread.
void reduce_reference(const ReduceParams& params);

/// Ranks that are threads of a process: each reads the others' parts where they are.
void reduce_f32_one_shot_portable(const ReduceParams& params);

/// CUDA: ranks on GPUs of a process: each stores its part into the others' memory.
void reduce_any_one_shot_peers_cuda(const ReduceParams& params);
/// The same with parts rounded to BF16, for some tokens; and for many.
void reduce_any_bf16_peers_cuda(const ReduceParams& params);
void reduce_any_bf16_units_peers_cuda(const ReduceParams& params);
/// For many tokens of three ranks or more: each adds up a slice of the values for all.
void reduce_any_bf16_two_shot_peers_cuda(const ReduceParams& params);

/// CUDA: ranks on GPUs of several processes, whose parts NCCL gathers on all of them; the second
/// with parts rounded to BF16.
void reduce_any_nccl_cuda(const ReduceParams& params);
void reduce_any_bf16_nccl_cuda(const ReduceParams& params);

}  // namespace moxie
