// The switches of speculation, the same in every command that has them, and vLLM's
// --speculative-config, whose fields set the same options.
#pragma once

#include <string>

#include "apps/cli.h"
#include "engine/speculation.h"

namespace moxie {

struct SpeculationFlags {
  SpeculationOptions options;  ///< whole after complete()

  void declare(Flags& flags);
  /// Reads what was given; fails with the usage fault if switches contradict each other.
  Status complete(const Flags& flags);

 private:
  std::string method_ = "off", adaptive_ = "on", config_;
};

}  // namespace moxie
