// The "kernels" object of every JSON result: maps each step to the rows that ran it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/registry.h"

namespace moxie {

/// {"qkv": "qkv_...", ...}; several rows of a step (prefill and decode) are separated by commas.
inline nlohmann::ordered_json kernels_json(const std::vector<KernelChooser::Count>& counts) {
  auto kernels = nlohmann::ordered_json::object();
  for (const auto& count : counts) {
    auto& name = kernels[count.op->name];
    name = name.is_null() ? count.name : name.get<std::string>() + "," + count.name;
  }
  return kernels;
}

}  // namespace moxie
