// The HTTP client of the benchmark: many streamed requests at once from one thread, each piece of
// an answer with the time at which it came. One epoll loop over libcurl's multi interface: the work
// of a turn depends on the sockets that are ready, not on the number of streams.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base.h"
#include "core/clock.h"
#include "lab/serve_bench_stream.h"

namespace moxie {

struct Endpoint {
  std::string url;      ///< as given
  std::string root;     ///< without "/v1" and the slash behind it: "http://host:8000"
  std::string base;     ///< with it
  std::string api_key;  ///< empty: none
};
/// Takes "http://host:8000", "http://host:8000/v1" and other paths; fails for what is no http(s)
/// address, and for a key that no header can hold.
Result<Endpoint> parse_endpoint(const std::string& url, const std::string& api_key);

struct ClientLimits {
  double connect_s = 10;  ///< to connect
  double stall_s = 120;   ///< without a byte
  double total_s = 600;   ///< of one request
};

/// Kinds of errors, as reports name them: "connect", "closed", "stalled", "timeout", "bad_stream",
/// "usage", "runaway", "error_event", "no_content", "interrupted", "http_429" and so on.
struct RequestError {
  std::string kind;  ///< empty: none
  std::string message;
};

/// A streamed request as it was seen from outside. Times are seconds since the client was made; -1:
/// did not happen.
struct StreamResult {
  double start_s = -1;
  double first_response_s = -1;  ///< the first event with a choice, which may hold a role alone
  /// Each event with text, reasoning or a part of a call; those of one read have one time.
  std::vector<double> content_s;
  double end_s = -1;                ///< the end of the stream, or of the request
  int64_t num_token_ids = -1;       ///< -1: not every event with content told its tokens
  int64_t num_first_token_ids = 0;  ///< of the first event with content, and those before it
  int64_t num_last_token_ids = 0;   ///< of the last event with content, and all before it
  TokenUsage usage;
  std::string finish_reason;
  RequestError error;
  int status = 0;
  double retry_after_s = 0;  ///< 0: not said
};

struct StreamRequest {
  const Endpoint* endpoint = nullptr;
  std::string path;  ///< behind the base: "/chat/completions"
  std::string body;
  int64_t num_tokens = 0;  ///< asked for: a stream of far more events is a fault
};

class ServeClient {
 public:
  /// `stop`: once true, all requests end as "interrupted". It must live as long as the client.
  static Result<std::unique_ptr<ServeClient>> make(const ClientLimits& limits,
                                                   const std::atomic<bool>& stop);
  ~ServeClient();
  ServeClient(const ServeClient&) = delete;
  ServeClient& operator=(const ServeClient&) = delete;

  /// Begins a request; its end comes out of `wait` under this number.
  Status start(int64_t number, const StreamRequest& request);
  int64_t num_active() const { return static_cast<int64_t>(active_.size()); }
  /// Handles what comes for up to `seconds`, or until a request ends. Appends those that ended.
  Status wait(double seconds, std::vector<std::pair<int64_t, StreamResult>>* ended);

  struct Answer {
    int status = 0;
    std::string body;
    double seconds = 0;
    RequestError error;  ///< below HTTP, or a body too long
  };
  /// One whole answer, while nothing else runs. An empty body: GET, else POST of JSON.
  Answer ask(const Endpoint& endpoint, const std::string& url, const std::string& body);

  double now_s() const { return seconds_since(epoch_); }

 private:
  struct Transfer;
  struct Loop;
  ServeClient(const ClientLimits& limits, const std::atomic<bool>& stop);
  Status begin(std::unique_ptr<Transfer> transfer);
  void turn(double seconds);
  void collect_done();
  void end_overdue();
  void end(Transfer* transfer, int code);

  ClientLimits limits_;
  const std::atomic<bool>& stop_;
  Clock::time_point epoch_;
  std::unique_ptr<Loop> loop_;
  std::map<void*, std::unique_ptr<Transfer>> active_;  // by libcurl's handle
  std::vector<std::unique_ptr<Transfer>> ended_;
  double next_sweep_s_ = 0;
};

}  // namespace moxie
