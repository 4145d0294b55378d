// Formats of strings, by RFC 3339 (dates, times, durations), 5321 (email), 1123 (hostname), 4291
// (ipv6), 4122 (uuid), 3986 (uri) and 6901 (json-pointer).
#include "text/grammar_format.h"

#include <fmt/format.h>

#include <string>

namespace moxie::grammar {
namespace {

std::string any_of(std::initializer_list<std::string> alternatives) {
  std::string out = "(?:";
  for (const std::string& alternative : alternatives) {
    if (out.size() > 3) out += '|';
    out += alternative;
  }
  return out + ")";
}

std::string date() {
  const std::string year = any_of({"[1-9]\\d{3}", "0[1-9]\\d\\d", "00[1-9]\\d", "000[1-9]"});
  const std::string leap = any_of({"\\d\\d0[48]", "\\d\\d[2468][048]", "\\d\\d[13579][26]",
                                   "[02468][48]00", "[13579][26]00", "[2468]000"});
  const std::string day31 = any_of({"0[1-9]", "[12]\\d", "3[01]"});
  const std::string day30 = any_of({"0[1-9]", "[12]\\d", "30"});
  const std::string day28 = any_of({"0[1-9]", "1\\d", "2[0-8]"});
  return any_of({year + "-" +
                     any_of({any_of({"0[13578]", "1[02]"}) + "-" + day31,
                             any_of({"0[469]", "11"}) + "-" + day30, "02-" + day28}),
                 leap + "-02-29"});
}

std::string time() {
  const std::string hour_minute = "(?:[01]\\d|2[0-3]):[0-5]\\d";
  return hour_minute + ":[0-5]\\d(?:\\.\\d{1,6})?(?:Z|[+-]" + hour_minute + ")";
}

std::string duration() {
  const std::string time =
      "T(?:\\d{1,6}H(?:\\d{1,6}M(?:\\d{1,6}S)?)?|\\d{1,6}M(?:\\d{1,6}S)?|"
      "\\d{1,6}S)";
  const std::string days =
      "(?:\\d{1,6}Y(?:\\d{1,6}M(?:\\d{1,6}D)?)?|\\d{1,6}M(?:\\d{1,6}D)?|"
      "\\d{1,6}D)";
  return "P(?:" + days + "(?:" + time + ")?|" + time + "|\\d{1,6}W)";
}

std::string label() { return "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"; }
std::string hostname() { return label() + "(?:\\." + label() + "){0,5}"; }

std::string email() {
  return "[A-Za-z0-9_+-]{1,30}(?:\\.[A-Za-z0-9_+-]{1,15}){0,2}@" + label() + "(?:\\." + label() +
         "){0,3}\\.[A-Za-z]{2,12}";
}

std::string ipv4() {
  const std::string byte = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
  return byte + "(?:\\." + byte + "){3}";
}

std::string ipv6() {
  const std::string h = "[0-9a-fA-F]{1,4}";
  const std::string left = "(?:" + h + ":)", right = "(?::" + h + ")";
  std::string out = "(?:" + left + "{7}" + h;
  for (int before = 1; before <= 6; ++before) {
    const int most_after = 7 - before;
    out += fmt::format("|{}{{{}}}{}{{1,{}}}", left, before, right, most_after);
  }
  return out + "|:" + right + "{1,7}|" + left + "{1,7}:|::)";
}

std::string uri() {
  const std::string path_char = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
  return "[A-Za-z][A-Za-z0-9+.-]{0,9}://" + hostname() + "(?::\\d{1,5})?(?:/" + path_char +
         "{0,20}){0,3}(?:\\?(?:" + path_char + "|[/?]){0,30})?(?:#(?:" + path_char +
         "|[/?]){0,20})?";
}

struct Format {
  std::string_view name;
  std::string pattern;
};

const std::vector<Format>& formats() {
  static const std::vector<Format> kFormats = {
      {"date", date()},
      {"time", time()},
      {"date-time", date() + "T" + time()},
      {"duration", duration()},
      {"email", email()},
      {"hostname", hostname()},
      {"ipv4", ipv4()},
      {"ipv6", ipv6()},
      {"uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"},
      {"uri", uri()},
      {"json-pointer", "(?:/(?:[^/~]|~[01])*)*"}};
  return kFormats;
}

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view name) {
  for (const Format& format : formats()) {
    if (format.name == name) return format.pattern;
  }
  return std::nullopt;
}

std::vector<std::string_view> format_names() {
  std::vector<std::string_view> names;
  for (const Format& format : formats()) names.push_back(format.name);
  return names;
}

}  // namespace moxie::grammar
