#include "hub/settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <fstream>

#include "core/hub_cache.h"

namespace moxie::hub {
namespace {

constexpr int kMaxStallS = 3600;
constexpr size_t kMaxTokenBytes = 4096;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_true(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

// Without line ends, and without blanks around it.
std::string cleaned(std::string token) {
  std::erase_if(token, [](char c) { return c == '\r' || c == '\n'; });
  const size_t begin = token.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return token.substr(begin, token.find_last_not_of(" \t") - begin + 1);
}

std::string token_path() {
  const std::string path = variable("HF_TOKEN_PATH");
  if (!path.empty()) return expand_path(path);
  const std::string home = hub_home();
  return home.empty() ? "" : home + "/token";
}

Status read_token(Settings* settings) {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    settings->token = cleaned(variable(name));
    settings->token_source = name;
    if (!settings->token.empty()) break;
  }
  if (settings->token.empty()) {
    settings->token_source = token_path();
    std::string text(kMaxTokenBytes, '\0');
    std::ifstream file(settings->token_source, std::ios::binary);
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    settings->token = cleaned(text);
  }
  const auto is_odd = [](unsigned char c) { return c <= 0x20 || c >= 0x7f; };
  if (std::any_of(settings->token.begin(), settings->token.end(), is_odd)) {
    return fail("the token holds characters that no token has", settings->token_source,
                "make one on the hub's page of access tokens and set HF_TOKEN to it");
  }
  return {};
}

Status read_endpoint(Settings* settings) {
  std::string endpoint = variable("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const bool is_web = endpoint.starts_with("https://") || endpoint.starts_with("http://");
  const auto is_odd = [](unsigned char c) { return c <= 0x20 || c == 0x7f; };
  if (!is_web || std::any_of(endpoint.begin(), endpoint.end(), is_odd)) {
    return fail("is no http:// or https:// address", "HF_ENDPOINT",
                "unset it to use https://huggingface.co");
  }
  settings->endpoint = endpoint;
  return {};
}

}  // namespace

Result<Settings> read_settings() {
  Settings settings;
  if (Status status = read_endpoint(&settings); !status) return fail(status.error());
  if (Status status = read_token(&settings); !status) return fail(status.error());
  settings.cache = hub_cache();
  if (settings.cache.empty()) {
    return fail("nothing says where the cache is: HOME is not set", "cache",
                "set HF_HOME or HF_HUB_CACHE to a folder");
  }
  for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    if (const std::string value = variable(name); !value.empty()) {
      if (is_true(value)) settings.offline = std::string(name) + "=" + value;
      break;
    }
  }
  for (const char* name : {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}) {
    settings.ca_file = variable(name);
    if (!settings.ca_file.empty()) break;
  }
  const std::string stall = variable("HF_HUB_DOWNLOAD_TIMEOUT");
  int seconds = 0;
  std::from_chars(stall.data(), stall.data() + stall.size(), seconds);
  if (seconds > 0) settings.stall_s = std::min(seconds, kMaxStallS);
  return settings;
}

}  // namespace moxie::hub
