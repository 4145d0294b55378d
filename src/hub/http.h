// HTTP requests to a hub and to the stores that it redirects to, over libcurl. The token goes to
// the hub's own scheme, host and port alone. One client a thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "hub/curl_api.h"
#include "hub/settings.h"

namespace moxie::hub {

/// What became of a request below HTTP.
enum class Trouble {
  kNone,
  kUnreachable,  ///< no such host, or nothing listens there
  kCut,          ///< the connection ended or stalled
  kTls,
  kRefused,  ///< the callbacks, or a limit, ended it: `error` says why
  kStopped,  ///< by the user
};

using Headers = std::map<std::string, std::string>;  ///< names in lower case

/// A header's value; empty if there is none.
std::string header_of(const Headers& headers, const std::string& name);

struct Answer {
  Trouble trouble = Trouble::kNone;
  Error error;                ///< set with trouble
  int status = 0;             ///< 0: no answer came
  std::string url;            ///< the last one asked, after redirects
  Headers headers;            ///< the last answer's
  Headers of_hub;             ///< those of all answers that the hub itself gave, the last of a name
  std::string text;           ///< the body, where it was not handed on; cut at a limit
  int64_t retry_after_s = 0;  ///< 0: not said

  bool is_ok() const { return trouble == Trouble::kNone && status >= 200 && status < 300; }
};

struct Request {
  std::string url;
  /// Bytes [begin, end) of the content; end 0: all of it, without a Range header.
  uint64_t begin = 0, end = 0;
  size_t max_text = size_t{1} << 16;  ///< a longer body that is not handed on is a fault
  /// Before the body of an answer of 200 or 206. A fault ends the request.
  std::function<Status(const Answer&)> on_head;
  /// Pieces of that body. A fault ends the request. Without it the body becomes Answer::text.
  std::function<Status(std::span<const std::byte>)> on_body;
};

class HttpClient {
 public:
  /// `stop`: once true, requests end. Both must live as long as the client.
  static Result<std::unique_ptr<HttpClient>> make(const Settings& settings,
                                                  const std::atomic<bool>& stop);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// One request, with its redirects and without retries.
  Answer get(const Request& request);

 private:
  struct Hop;  // one request of a chain of redirects
  HttpClient(const CurlApi& api, CURL* handle, const Settings& settings,
             const std::atomic<bool>& stop);
  void configure(Hop* hop, curl_slist* headers, char* detail);
  void perform(Hop* hop);
  /// "https://host:443", or empty if it is no address of the web.
  std::string origin_of(const std::string& url) const;

  const CurlApi& api_;
  CURL* handle_;
  const Settings& settings_;
  const std::atomic<bool>& stop_;
  std::string hub_origin_;
};

/// The fault of a request that failed below HTTP, with what to do about it.
Error network_error(CURLcode code, const std::string& detail, const std::string& url);
Trouble trouble_of(CURLcode code);

/// Splits "Name: value"; false for other lines. The name becomes lower case.
bool split_header(std::string_view line, std::string* name, std::string* value);

}  // namespace moxie::hub
