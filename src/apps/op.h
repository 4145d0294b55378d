// The sub-commands of `moxie op`, and what they share.
#pragma once

#include <string>
#include <vector>

#include "apps/cli.h"

namespace moxie {

Command op_command();
Command op_bench_command();
Command op_trace_command();

/// Fails unless the one positional argument names an operation that runs outside of a model.
Status check_op_name(const std::vector<std::string>& names);

}  // namespace moxie
