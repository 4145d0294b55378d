// Reads peers' figures; nothing in the file is trusted.
#include "lab/peer_figures.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kForm =
    R"(expected {"device": "...", "results": [{"name": "...", "tokens": 7, "median_us": 1.5}]})";

Status check_keys(const Json& object, std::initializer_list<std::string_view> known,
                  const std::string& where) {
  if (!object.is_object()) return fail("is not a JSON object", where, kForm);
  for (const auto& item : object.items())
    if (std::find(known.begin(), known.end(), item.key()) == known.end())
      return fail("no such key", where + ": " + item.key(), kForm);
  for (const std::string_view key : known)
    if (!object.contains(key)) return fail("is missing", where + ": " + std::string(key), kForm);
  return {};
}

}  // namespace

Result<PeerFigures> parse_peer_figures(const std::string& text, const std::string& where) {
  const Json json = Json::parse(text, nullptr, false);
  if (auto known = check_keys(json, {"device", "results"}, where); !known)
    return fail(known.error());
  if (!json["device"].is_string()) return fail("is not a string", where + ": device", kForm);
  if (!json["results"].is_array()) return fail("is not a list", where + ": results", kForm);
  PeerFigures peers{.device = json["device"].get<std::string>(), .figures = {}};
  for (const Json& result : json["results"]) {
    const std::string at = where + ": results[" + std::to_string(peers.figures.size()) + "]";
    if (auto known = check_keys(result, {"name", "tokens", "median_us"}, at); !known)
      return fail(known.error());
    if (!result["name"].is_string()) return fail("is not a string", at + ": name", kForm);
    const Json& tokens = result["tokens"];
    if (!tokens.is_number_integer() || tokens < 0 || tokens > INT32_MAX)
      return fail("is " + tokens.dump() + ", expected a number of tokens", at + ": tokens", kForm);
    const Json& median = result["median_us"];
    if (!median.is_number() || !(median.get<double>() > 0))
      return fail("is " + median.dump() + ", expected microseconds above zero", at + ": median_us",
                  kForm);
    peers.figures.push_back(
        {result["name"].get<std::string>(), tokens.get<int32_t>(), median.get<double>()});
  }
  return peers;
}

}  // namespace moxie
