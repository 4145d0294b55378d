#include "apps/changed_switches.h"

namespace moxie {

Result<EngineOptions> with_switches(const EngineOptions& base, const std::string& text,
                                    const std::string& where) {
  EngineOptions options = base;
  const auto check = [&](const Flags& flags) -> Status {
    if (flags.given("--model")) return fail("--model stays as it is", where);
    if (flags.arguments().empty())
      return fail("names no switch", where, "such as \"--activation mxfp8\"");
    return {};
  };
  auto status = parse_switches(
      text, [&](Flags& flags) { declare_model_flags(flags, &options); }, check);
  if (!status) return fail(std::move(status.error()));
  return options;
}

}  // namespace moxie
