// Messages of HTTP/1.1: the parser of requests and the heads of answers. http_message.cpp is the
// only file that includes Beast.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace moxie {

/// Parses one request. It stops behind the header, so that the caller can decide whether to read
/// the body, and goes on after expect_body().
class RequestParser {
 public:
  explicit RequestParser(const HttpLimits& limits);
  ~RequestParser();

  struct Taken {
    size_t bytes = 0;  ///< 0: more input is needed
    int status = 0;    ///< of the refusal; 0: well-formed so far
    std::string why;   ///< of the refusal
  };
  /// Parses bytes from the front of `in`.
  Taken put(std::string_view in);
  void expect_body();

  bool got_some() const;  ///< has seen bytes of the request
  bool is_header_done() const;
  bool is_done() const;
  /// Method, target and headers so far.
  HttpRequest request() const;
  /// Why the complete header is refused with 400; empty: it is not. Refused are headers that leave
  /// open where the body ends or whom the request is for, as in requests smuggled past a proxy
  /// (RFC 9112, 6.1, 6.3 and 3.2).
  std::string header_fault() const;
  /// Content-Length.
  std::optional<uint64_t> declared_bytes() const;
  size_t body_bytes() const;  ///< bytes of the body so far
  std::string take_body();

 private:
  size_t skip_empty_lines(std::string_view in);

  struct Impl;
  std::unique_ptr<Impl> impl_;
  HttpLimits limits_;
  int num_empty_lines_ = 0;
};

/// Status line and headers up to the blank line. `length` < 0: the body is chunked, or, if
/// `keep_alive` and `chunked` are false, goes on to the end of the connection.
std::string response_head(const HttpResponse& response, const std::vector<HttpHeader>& common,
                          bool keep_alive, bool chunked, int64_t length);

}  // namespace moxie
