#include "hub/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "hub/names.h"

namespace moxie::hub {
namespace {

constexpr int kMaxRedirects = 10;
constexpr long kConnectTimeoutS = 15;
constexpr size_t kMaxHeaders = 256, kMaxHeaderBytes = 16384;
constexpr size_t kMaxDropped = size_t{1} << 20;

std::string host_of(const std::string& url) {
  const size_t begin = url.find("://");
  if (begin == std::string::npos) return url;
  return url.substr(begin + 3, url.find_first_of("/?#", begin + 3) - begin - 3);
}

}  // namespace

std::string header_of(const Headers& headers, const std::string& name) {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

bool split_header(std::string_view line, std::string* name, std::string* value) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0 || line.size() > kMaxHeaderBytes) return false;
  name->assign(line.substr(0, colon));
  std::transform(name->begin(), name->end(), name->begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  std::string_view rest = line.substr(colon + 1);
  while (!rest.empty() && is_blank(rest.front())) rest.remove_prefix(1);
  while (!rest.empty() && is_blank(rest.back())) rest.remove_suffix(1);
  value->assign(rest);
  return true;
}

Trouble trouble_of(CURLcode code) {
  switch (code) {
    case CURLE_OK:
      return Trouble::kNone;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return Trouble::kUnreachable;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
      return Trouble::kTls;
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_OUT_OF_MEMORY:
      return Trouble::kRefused;
    default:
      return Trouble::kCut;
  }
}

Error network_error(CURLcode code, const std::string& detail, const std::string& url) {
  const std::string host = printable_line(host_of(url)), said = printable_line(detail);
  constexpr const char* kWay =
      "check the network, HF_ENDPOINT, and the proxy in https_proxy and no_proxy";
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
      return {"the name cannot be resolved: " + said, host, kWay};
    case CURLE_COULDNT_CONNECT:
      return {"no connection: " + said, host, kWay};
    case CURLE_OPERATION_TIMEDOUT:
      return {"no answer in time: " + said, host,
              "run the same command again; HF_HUB_DOWNLOAD_TIMEOUT sets the seconds to wait"};
    default:
      break;
  }
  if (trouble_of(code) == Trouble::kTls) {
    return {
        "the connection cannot be trusted: " + said, host,
        "check this machine's clock and its package ca-certificates; behind a proxy that signs by "
        "itself, set SSL_CERT_FILE to a file with its certificate"};
  }
  return {"the connection broke: " + said, host,
          "run the same command again: it goes on from there"};
}

struct HttpClient::Hop {
  const Request* request;
  Answer* answer;
  bool is_hub = false;
  bool is_headed = false;  // on_head was called
  bool is_redirect = false;
  size_t num_dropped = 0;  // bytes of bodies that nobody reads
  std::string next_url;

  bool refuse(Error error) {
    answer->trouble = Trouble::kRefused;
    answer->error = std::move(error);
    return false;
  }
  bool head() {
    is_headed = true;
    if (!request->on_head) return true;
    Status status = request->on_head(*answer);
    return status ? true : refuse(std::move(status.error()));
  }
  // The bodies of redirects and the ends of error pages: not for ever.
  bool drop(size_t num_bytes) {
    num_dropped += num_bytes;
    return num_dropped <= kMaxDropped;
  }
  bool is_content() const { return answer->status >= 200 && answer->status < 300; }
  bool take(std::span<const std::byte> bytes) {
    if (is_redirect) return drop(bytes.size());
    if (is_content() && !is_headed && !head()) return false;
    if (is_content() && request->on_body) {
      Status status = request->on_body(bytes);
      return status ? true : refuse(std::move(status.error()));
    }
    if (answer->text.size() + bytes.size() > request->max_text) {
      if (!is_content()) return drop(bytes.size());  // its beginning will do
      return refuse({fmt::format("the answer is longer than {} bytes", request->max_text),
                     printable_line(answer->url), "this is no answer of a hub"});
    }
    answer->text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  }
  void header(std::string_view line) {
    if (line.starts_with(
            "HTTP/")) {  // also the answer of a proxy, or 100 Continue, before the real
      answer->headers.clear();
      answer->status = 0;
      const std::string_view code = line.substr(std::min(line.size(), line.find(' ') + 1));
      std::from_chars(code.data(), code.data() + code.size(), answer->status);
      return;
    }
    std::string name, value;
    if (split_header(line, &name, &value) && answer->headers.size() < kMaxHeaders)
      answer->headers[name] = value;
    if (line != "\r\n" && line != "\n") return;
    is_redirect = answer->status >= 300 && answer->status < 400 && answer->status != 304;
    if (!is_hub) return;
    for (const auto& [key, text] : answer->headers) answer->of_hub[key] = text;
  }
};

namespace {

// The library calls these from C, through Hop.
template <typename Hop>
size_t on_header(char* data, size_t size, size_t count, void* hop) {
  static_cast<Hop*>(hop)->header(std::string(data, size * count));
  return size * count;
}
template <typename Hop>
size_t on_body(char* data, size_t size, size_t count, void* hop) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size * count);
  return static_cast<Hop*>(hop)->take(bytes) ? size * count : 0;
}
int on_progress(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<const std::atomic<bool>*>(stop)->load() ? 1 : 0;
}

}  // namespace

Result<std::unique_ptr<HttpClient>> HttpClient::make(const Settings& settings,
                                                     const std::atomic<bool>& stop) {
  Result<const CurlApi*> api = curl_api();
  if (!api) return fail(api.error());
  CURL* handle = (*api)->easy_init();
  if (handle == nullptr) return fail("libcurl has no memory", "pull");
  std::unique_ptr<HttpClient> client(new HttpClient(**api, handle, settings, stop));
  if (client->hub_origin_.empty())
    return fail("cannot be read as an address", "HF_ENDPOINT", "such as https://huggingface.co");
  return client;
}

HttpClient::HttpClient(const CurlApi& api, CURL* handle, const Settings& settings,
                       const std::atomic<bool>& stop)
    : api_(api), handle_(handle), settings_(settings), stop_(stop) {
  hub_origin_ = origin_of(settings.endpoint);
}

HttpClient::~HttpClient() { api_.easy_cleanup(handle_); }

// By libcurl's own reading of addresses, so that both mean the same host.
std::string HttpClient::origin_of(const std::string& url) const {
  CURLU* parsed = api_.url();
  std::string origin;
  if (parsed != nullptr && api_.url_set(parsed, CURLUPART_URL, url.c_str(), 0) == CURLUE_OK) {
    for (const CURLUPart part : {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT}) {
      char* text = nullptr;
      if (api_.url_get(parsed, part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) {
        origin.clear();
        break;
      }
      origin += std::string(text) + (part == CURLUPART_SCHEME ? "://"
                                     : part == CURLUPART_HOST ? ":"
                                                              : "");
      api_.free(text);
    }
  }
  api_.url_cleanup(parsed);
  std::transform(origin.begin(), origin.end(), origin.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return origin.starts_with("http://") || origin.starts_with("https://") ? origin : "";
}

void HttpClient::configure(Hop* hop, curl_slist* headers, char* detail) {
  const Request& request = *hop->request;
  api_.easy_reset(handle_);  // keeps the connections
  const auto set = [&](CURLoption option, auto value) { api_.easy_setopt(handle_, option, value); };
  set(CURLOPT_URL, hop->answer->url.c_str());
  set(CURLOPT_USERAGENT, "moxie/" MOXIE_VERSION);
  set(CURLOPT_HTTPHEADER, headers);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_ERRORBUFFER, detail);
  set(CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings_.stall_s));
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  set(CURLOPT_HEADERFUNCTION, &on_header<Hop>);
  set(CURLOPT_HEADERDATA, hop);
  set(CURLOPT_WRITEFUNCTION, &on_body<Hop>);
  set(CURLOPT_WRITEDATA, hop);
  set(CURLOPT_NOPROGRESS, 0L);
  set(CURLOPT_XFERINFOFUNCTION, &on_progress);
  set(CURLOPT_XFERINFODATA, &stop_);
  set(CURLOPT_BUFFERSIZE, 262144L);
  if (request.end > 0) {
    // libcurl keeps a copy.
    set(CURLOPT_RANGE, fmt::format("{}-{}", request.begin, request.end - 1).c_str());
  }
  if (!settings_.ca_file.empty()) set(CURLOPT_CAINFO, settings_.ca_file.c_str());
}

void HttpClient::perform(Hop* hop) {
  Answer* answer = hop->answer;
  hop->is_hub = origin_of(answer->url) == hub_origin_;
  char detail[CURL_ERROR_SIZE] = {};
  curl_slist* headers = api_.slist_append(nullptr, "Accept-Encoding: identity");
  if (hop->is_hub && !settings_.token.empty())
    headers = api_.slist_append(headers, ("Authorization: Bearer " + settings_.token).c_str());
  configure(hop, headers, detail);
  const CURLcode code = api_.easy_perform(handle_);
  api_.slist_free_all(headers);
  curl_off_t retry_after_s = 0;
  api_.easy_getinfo(handle_, CURLINFO_RETRY_AFTER, &retry_after_s);
  answer->retry_after_s = retry_after_s;
  char* next_url = nullptr;
  api_.easy_getinfo(handle_, CURLINFO_REDIRECT_URL, &next_url);
  if (hop->is_redirect && next_url != nullptr) hop->next_url = next_url;
  if (code == CURLE_ABORTED_BY_CALLBACK || stop_.load()) {
    answer->trouble = Trouble::kStopped;
    answer->error = {"interrupted", "pull", ""};
  } else if (answer->trouble != Trouble::kNone) {
    return;
  } else if (code != CURLE_OK) {
    const char* said = detail[0] != '\0' ? detail : api_.easy_strerror(code);
    answer->trouble = trouble_of(code);
    answer->error = network_error(code, said, answer->url);
  } else if (!hop->is_redirect && hop->is_content() && !hop->is_headed) {
    hop->head();  // no body came
  }
}

Answer HttpClient::get(const Request& request) {
  Answer answer;
  answer.url = request.url;
  for (int i = 0; i <= kMaxRedirects; ++i) {
    answer.status = 0;
    answer.text.clear();
    Hop hop{.request = &request, .answer = &answer};
    perform(&hop);
    if (answer.trouble != Trouble::kNone || hop.next_url.empty()) return answer;
    const std::string from = origin_of(answer.url), to = origin_of(hop.next_url);
    const bool is_downgrade = from.starts_with("https://") && !to.starts_with("https://");
    if (to.empty() || is_downgrade) {
      hop.refuse({"redirects to an address that is not safe: " + printable_line(hop.next_url),
                  printable_line(answer.url), "check HF_ENDPOINT and the proxy"});
      return answer;
    }
    answer.url = hop.next_url;
  }
  answer.trouble = Trouble::kRefused;
  answer.error = {"redirects without end", printable_line(request.url),
                  "check HF_ENDPOINT and the proxy"};
  return answer;
}

}  // namespace moxie::hub
