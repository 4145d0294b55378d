// HTTP/1.1 with TLS and server-sent events: connections, limits, deadlines and back-pressure. The
// interface does not show Boost: only http_server.cpp includes Asio, only http_message.cpp Beast.
//
// One thread runs all connections (HttpServer::run); an Exchange may be used on that thread only.
// Other threads give that thread work with HttpServer::post.
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

/// Limits on the memory and time that a client may take.
struct HttpLimits {
  uint32_t header_bytes = 32 << 10;
  uint64_t body_bytes = uint64_t{16} << 20;
  uint64_t all_bodies_bytes = uint64_t{256} << 20;  ///< bodies being read, over all connections
  double header_s = 10;      ///< from the first byte (or the connection) to the end of the header
  double body_s = 60;        ///< from the end of the header to the end of the body
  double keep_alive_s = 75;  ///< between requests
  double write_s = 30;       ///< a client that reads nothing for so long is dropped
  double ping_s = 15;        ///< a stream without events for so long sends a comment
  uint64_t stream_bytes = 1 << 20;  ///< a client with more unread bytes of a stream is dropped
  int32_t connections = 0;          ///< at once; 0: as many as file descriptors allow
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int32_t port = 8000;  ///< 0: any free one
  /// PEM files; both or none. New ones are read when they change (looked at for a new connection,
  /// at most once a second) and at SIGHUP. If they are faulty, the old ones stay in use.
  std::string ssl_certificate, ssl_key;
  HttpLimits limits;
};

struct HttpHeader {
  std::string name, value;
};

struct HttpRequest {
  std::string method, target;
  std::string path, query;  ///< the target in two pieces; the path percent-decoded
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
  /// Answers 200 with text/event-stream; each send() goes out at once.
  virtual void begin_stream(std::vector<HttpHeader> headers) = 0;
  virtual void send(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
  /// Whether the answer is complete or the client has gone.
  virtual bool done() const = 0;
  /// Called once if the client goes, or is dropped, before the answer is complete.
  virtual void on_abort(std::function<void()> action) = 0;
};

/// The decision from the header alone, before the body is read.
struct Admission {
  bool accept = true;
  HttpResponse refusal;     ///< if not admitted
  uint64_t body_bytes = 0;  ///< a limit below the general one; 0: none
};

struct HttpLog {
  const HttpRequest* request = nullptr;
  int status = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  bool aborted = false;
};

/// Answers requests. Called on the server's thread; must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual Admission admit(const HttpRequest& request) = 0;
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  /// The answer to invalid HTTP or to a request beyond a limit.
  virtual HttpResponse refusal(int status, const std::string& why) = 0;
  /// Headers for every answer to this request (CORS and the like).
  virtual std::vector<HttpHeader> common_headers(const HttpRequest& request) = 0;
  virtual void log(const HttpLog& entry) = 0;
};

class HttpServer {
 public:
  /// Listens; fails on a taken port, an invalid address, or an unreadable key.
  static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options,
                                                    HttpHandler& handler);
  virtual ~HttpServer() = default;
  virtual int32_t port() const = 0;
  virtual int32_t num_connections() const = 0;
  /// Serves until shut_down() has finished.
  virtual void run() = 0;
  /// Accepts no more connections, lets clients read complete answers, and ends run() when all
  /// connections are closed, after `grace_s` seconds at the latest. On the server's thread.
  virtual void shut_down(double grace_s) = 0;
  /// Runs `work` on the server's thread, in order; from any thread.
  virtual void post(std::function<void()> work) = 0;
  /// Runs `work` on the server's thread after `seconds`.
  virtual void after(double seconds, std::function<void()> work) = 0;
  /// Calls `action` on the server's thread at SIGTERM and SIGINT.
  virtual void on_signal(std::function<void()> action) = 0;
};

/// The parser's result for raw bytes, for tests without sockets: a request, or the status of its
/// refusal.
struct HttpProbe {
  bool complete = false;
  int status = 0;  ///< 0: well-formed so far
  HttpRequest request;
};
HttpProbe probe_http(std::string_view bytes, const HttpLimits& limits);

// Texts of requests (http_text.cpp).

/// Fills path, query, id and trace_id from target and headers. False if the target is no path.
bool complete_request(HttpRequest& request);
/// Decodes %XX into `out`. False if a code is malformed or decodes to NUL.
bool percent_decode(std::string_view text, std::string* out);
/// 32 hex digits of a W3C traceparent; empty if it is not valid.
std::string trace_id_of(std::string_view traceparent);
/// `count` random characters of [0-9a-z]; not for secrets.
std::string random_name(size_t count);
bool equals_ignoring_case(std::string_view a, std::string_view b);

}  // namespace moxie
