// HTTP/1.1 with TLS and server-sent events: connections, limits, deadlines and back-pressure,
// behind an interface without Boost: http_server.cpp includes Asio, http_message.cpp Beast, and
// http_connection.cpp, the state machine of a connection, neither.
//
// One thread runs all connections (HttpServer::run); every Exchange lives on it. Other threads give
// it work with HttpServer::post.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base.h"
#include "core/clock.h"

namespace moxie {

/// What a client may make the server hold or wait for.
struct HttpLimits {
  uint32_t header_bytes = 32 << 10;
  uint64_t body_bytes = uint64_t{16} << 20;
  uint64_t all_bodies_bytes = uint64_t{256} << 20;  ///< being read at once, over all connections
  double header_s = 10;      ///< from the first byte (or the connection) to the end of the header
  double body_s = 60;        ///< from there to the end of the body
  double keep_alive_s = 75;  ///< between requests
  double write_s = 30;       ///< a reader that takes nothing for so long is dropped
  double ping_s = 15;        ///< a stream that says nothing for so long sends a comment
  uint64_t stream_bytes =
      1 << 20;              ///< of a stream that its reader has not taken: then it is dropped
  int32_t connections = 0;  ///< at once; 0: as many as file descriptors allow
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;                   ///< 0: any free one
  std::string ssl_certificate, ssl_key;  ///< PEM files; both or none
  HttpLimits limits;
};

struct HttpHeader {
  std::string name, value;
};

struct HttpRequest {
  std::string method, target;
  std::string path, query;  ///< target in two; the path percent-decoded
  std::vector<HttpHeader> headers;
  std::string body;
  std::string remote;    ///< address of the peer
  std::string id;        ///< X-Request-Id of the client, or one of ours
  std::string trace_id;  ///< 32 hex digits of a valid traceparent, else empty
  bool keep_alive = true;
  Clock::time_point arrived = Clock::now();

  /// The first value of a header, by name in any case; empty if there is none.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers;
  std::string body;
};

/// One request and its answer: respond(), or begin_stream(), any number of send() and end_stream().
/// Calls after the client has gone do nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  /// Moves the body out.
  virtual std::string take_body() = 0;
  virtual void respond(HttpResponse response) = 0;
  /// 200 with text/event-stream; what follows is sent as it comes.
  virtual void begin_stream(std::vector<HttpHeader> headers) = 0;
  virtual void send(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
  /// Whether the answer is complete or nobody is there to read it.
  virtual bool done() const = 0;
  /// Called once if the client goes, or is dropped, before the answer is complete.
  virtual void on_abort(std::function<void()> action) = 0;
};

/// What the header alone decides, before any of the body is read.
struct Admission {
  bool accept = true;
  HttpResponse refusal;     ///< if not
  uint64_t body_bytes = 0;  ///< a limit below the general one; 0: none
};

struct HttpLog {
  const HttpRequest* request = nullptr;
  int status = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  bool aborted = false;
};

/// Who answers. Called on the server's thread; must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual Admission admit(const HttpRequest& request) = 0;
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  /// The answer to what is no valid HTTP or exceeds a limit.
  virtual HttpResponse refusal(int status, const std::string& why) = 0;
  /// Headers for every answer to this request (CORS and the like).
  virtual std::vector<HttpHeader> common_headers(const HttpRequest& request) = 0;
  virtual void log(const HttpLog& entry) = 0;
};

class HttpServer {
 public:
  /// Listens; fails on a taken port, an address that is none, or an unreadable key.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options,
                                                    HttpHandler& handler);
  virtual ~HttpServer() = default;
  virtual int32_t port() const = 0;
  virtual int32_t num_connections() const = 0;
  /// Serves until shut_down() is through.
  virtual void run() = 0;
  /// Takes no further connection, lets answers that are complete be read, and ends run() when all
  /// connections are gone, after `grace_s` at the latest. On the server's thread.
  virtual void shut_down(double grace_s) = 0;
  /// Runs `work` on the server's thread, in order; from any thread.
  virtual void post(std::function<void()> work) = 0;
  /// Runs `work` on the server's thread after `seconds`.
  virtual void after(double seconds, std::function<void()> work) = 0;
  /// SIGTERM and SIGINT on the server's thread.
  virtual void on_signal(std::function<void()> action) = 0;
};

/// What the parser makes of raw bytes, for tests without sockets: a request or the status of its
/// refusal.
struct HttpProbe {
  bool complete = false;
  int status = 0;  ///< 0: well-formed so far
  HttpRequest request;
};
HttpProbe probe_http(std::string_view bytes, const HttpLimits& limits);

// Texts of requests (http_text.cpp).

/// Fills path, query, id and trace_id from target and headers. False: the target is no path.
bool complete_request(HttpRequest& request);
/// %XX decoded; nothing where it is broken or decodes to NUL.
bool percent_decode(std::string_view text, std::string* out);
/// 32 hex digits of a W3C traceparent, or nothing where it is not valid.
std::string trace_id_of(std::string_view traceparent);
/// `count` random characters of [0-9a-z]; not for secrets.
std::string random_name(size_t count);
bool equals_ignoring_case(std::string_view a, std::string_view b);

}  // namespace moxie
