// The table of routes: what is served, who may ask, and what the OpenAPI document says of it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/endpoints.h"

namespace moxie {

struct Route {
  std::string_view method, pattern;  ///< {name} stands for one segment of a path
  std::string_view summary;
  void (*handle)(App&, const ExchangePtr&);
  enum Use : uint8_t {
    kProbe,    ///< no key, answered at any time
    kPage,     ///< as kProbe, if AppOptions::ui
    kMonitor,  ///< as kInfo; no key with AppOptions::metrics_without_key
    kInfo,     ///< a key, answered at any time
    kModel,    ///< a key and a loaded model
    kWork,     ///< as kModel, and refused while draining
  } use = kWork;
  ErrorForm form = ErrorForm::kOpenAi;
  /// The fields of its body; null: no body, or (kBodyElsewhere) they are described elsewhere.
  std::vector<FieldInfo> (*fields)() = nullptr;
  std::vector<FieldInfo> (*query)() = nullptr;  ///< the parameters behind "?"
};

/// Where the page is.
inline constexpr std::string_view kPagePath = "/";

std::span<const Route> routes();
/// Whether `path` has the form of `pattern`.
bool matches(std::string_view pattern, std::string_view path);
/// The route of a request. If there is none: null, and `allow` lists the methods of the path's
/// routes, if any.
const Route* find_route(std::string_view method, std::string_view path, std::string* allow);

/// Whether two texts are equal. The time depends on the length of `given` only.
bool equal_in_constant_time(std::string_view given, std::string_view secret);

}  // namespace moxie
