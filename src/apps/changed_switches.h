// Switches of a model as one text, as they are typed: "--activation mxfp8 --kv-dtype bf16".
#pragma once

#include <string>

#include "apps/cli.h"

namespace moxie {

/// `base` with the switches of `text`, each "--name value" or "--name=value", among those of
/// declare_model_flags() but --model. `where` names the switch with this text in errors.
Result<EngineOptions> with_switches(const EngineOptions& base, const std::string& text,
                                    const std::string& where);

}  // namespace moxie
