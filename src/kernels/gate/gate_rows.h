// The rows of gate, as functions; gate_table.cpp puts them into the table.
#pragma once

#include "kernels/gate/gate.h"

namespace moxie {

/// Double precision, on one thread.
void gate_reference(const GateParams& params);

/// Tokens in parallel.
void gate_f32_portable(const GateParams& params);

/// Four outputs a thread; exp to 2^-21.
const char* gate_f32_cuda_refuses(const GateParams& params);
void gate_f32_cuda(const GateParams& params);

}  // namespace moxie
