// The sub-commands of `moxie op`, and what they share.
#pragma once

#include <string>
#include <vector>

#include "apps/cli.h"
#include "lab/moe_fp8_run.h"

namespace moxie {

Command op_command();
Command op_bench_command();
Command op_trace_command();

/// Fails unless the one positional argument names an operation that runs outside of a model.
Status check_op_name(const std::vector<std::string>& names);

/// --device and --threads.
struct OpDevice {
  std::string device = "auto";
  int32_t threads = 0;
};
void declare_op_device(Flags& flags, OpDevice* o);
Result<MoeFp8Runner> open_runner(const OpDevice& o);

}  // namespace moxie
