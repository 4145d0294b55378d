// Beast parses requests and names statuses. Heads are written here, because Beast's serializer
// would first copy every header into its own container.
#include "server/http_message.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

namespace moxie {
namespace {

namespace http = boost::beast::http;
using boost::system::error_code;

// Empty lines before a request that are ignored (RFC 9112, 2.2).
constexpr int kMostEmptyLines = 4;

// The status of a request that the parser refuses.
int status_of(const error_code& error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit) return 413;
  return 400;
}

std::string describe(const error_code& error, const HttpLimits& limits) {
  if (error == http::error::header_limit) {
    return fmt::format("the request header exceeds {} bytes", limits.header_bytes);
  }
  if (error == http::error::body_limit) {
    return fmt::format("the request body exceeds {} bytes", limits.body_bytes);
  }
  return "not a valid HTTP/1.1 request: " + error.message();
}

std::string reason_of(int status) {
  // RFC 9110 renamed two of these; the third is not an HTTP status.
  if (status == 413) return "Content Too Large";
  if (status == 422) return "Unprocessable Content";
  if (status == 529) return "Overloaded";
  const http::status known = http::int_to_status(static_cast<unsigned>(status));
  if (known == http::status::unknown) return status < 400 ? "OK" : "Error";
  return std::string(http::obsolete_reason(known));
}

}  // namespace

struct RequestParser::Impl {
  http::request_parser<http::string_body> parser;
};

RequestParser::RequestParser(const HttpLimits& limits)
    : impl_(std::make_unique<Impl>()), limits_(limits) {
  impl_->parser.header_limit(limits.header_bytes);
  impl_->parser.body_limit(limits.body_bytes);
  impl_->parser.eager(false);  // stops behind the header
}

RequestParser::~RequestParser() = default;

// The bytes of empty lines at the front of `in`, before the request.
size_t RequestParser::skip_empty_lines(std::string_view in) {
  size_t num_bytes = 0;
  while (!got_some() && num_empty_lines_ < kMostEmptyLines &&
         in.substr(num_bytes).starts_with("\r\n")) {
    num_bytes += 2;
    ++num_empty_lines_;
  }
  return num_bytes;
}

RequestParser::Taken RequestParser::put(std::string_view in) {
  const size_t num_skipped = skip_empty_lines(in);
  in.remove_prefix(num_skipped);
  if (in.empty() || (in == "\r" && !got_some())) return {.bytes = num_skipped};
  error_code error;
  Taken taken{.bytes = num_skipped + impl_->parser.put(boost::asio::buffer(in), error)};
  if (error && error != http::error::need_more) {
    taken.status = status_of(error);
    taken.why = describe(error, limits_);
  }
  return taken;
}

void RequestParser::expect_body() { impl_->parser.eager(true); }
bool RequestParser::got_some() const { return impl_->parser.got_some(); }
bool RequestParser::is_header_done() const { return impl_->parser.is_header_done(); }
bool RequestParser::is_done() const { return impl_->parser.is_done(); }

HttpRequest RequestParser::request() const {
  HttpRequest request;
  const auto& message = impl_->parser.get();
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  for (const auto& field : message) {
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  request.keep_alive = message.keep_alive();
  return request;
}

std::string RequestParser::header_fault() const {
  const auto& message = impl_->parser.get();
  const bool is_http_1_0 = message.version() < 11;
  const size_t num_hosts = message.count(http::field::host);
  if (num_hosts > 1 || (num_hosts == 0 && !is_http_1_0)) {
    return "a request of HTTP/1.1 has one Host header";
  }
  const size_t num_codings = message.count(http::field::transfer_encoding);
  if (num_codings > 0) {
    if (message.count(http::field::content_length) > 0) {
      return "both Content-Length and Transfer-Encoding are given";
    }
    // Beast takes a coding that it does not know for a request without a body.
    const std::string_view coding = message[http::field::transfer_encoding];
    if (is_http_1_0 || num_codings > 1 || !equals_ignoring_case(coding, "chunked")) {
      return "Transfer-Encoding: only chunked is known, once and in HTTP/1.1";
    }
  }
  return {};
}

std::optional<uint64_t> RequestParser::declared_bytes() const {
  const auto length = impl_->parser.content_length();
  return length ? std::optional<uint64_t>(*length) : std::nullopt;
}

size_t RequestParser::body_bytes() const { return impl_->parser.get().body().size(); }
std::string RequestParser::take_body() { return std::move(impl_->parser.get().body()); }

std::string response_head(const HttpResponse& response, const std::vector<HttpHeader>& common,
                          bool keep_alive, bool chunked, int64_t length) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_of(response.status));
  if (!response.content_type.empty()) {
    head += "Content-Type: " + response.content_type + "\r\n";
  }
  for (const auto* headers : {&response.headers, &common}) {
    for (const HttpHeader& header : *headers) head += header.name + ": " + header.value + "\r\n";
  }
  if (chunked) {
    head += "Transfer-Encoding: chunked\r\n";
  } else if (length >= 0 && response.status != 204 && response.status != 304) {
    head += fmt::format("Content-Length: {}\r\n", length);
  }
  head += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

HttpProbe probe_http(std::string_view bytes, const HttpLimits& limits) {
  RequestParser parser(limits);
  HttpProbe probe;
  while (!bytes.empty() && !parser.is_done()) {
    const RequestParser::Taken taken = parser.put(bytes);
    bytes.remove_prefix(taken.bytes);
    probe.status = taken.status;
    if (probe.status == 0 && parser.is_header_done()) {
      if (!parser.header_fault().empty()) probe.status = 400;
      parser.expect_body();
    }
    if (probe.status != 0) return probe;
    if (taken.bytes == 0) break;
  }
  if (!parser.is_done()) return probe;
  probe.request = parser.request();
  if (!complete_request(probe.request)) probe.status = 400;
  probe.request.body = parser.take_body();
  probe.complete = probe.status == 0;
  return probe;
}

}  // namespace moxie
