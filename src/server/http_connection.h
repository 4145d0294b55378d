// One connection: a state machine without sockets. It has at most one outstanding read and one
// outstanding write, which http_server.cpp does over TCP or TLS.
//
// It reads on while an answer is under way, up to kReadAhead bytes: so it notices that the client
// has gone, and holds pipelined requests. sweep(), which the server calls for all connections from
// one timer, checks deadlines.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "server/http.h"
#include "server/http_message.h"

namespace moxie {

class Connection;
class ConnectionExchange;

inline Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// The open connections of a server, and their shared state.
class Connections {
 public:
  Connections(const HttpLimits& limits, HttpHandler& handler)
      : limits_(limits), handler_(handler) {}

  void add(Connection* connection);
  void remove(Connection* connection);
  std::vector<std::shared_ptr<Connection>> all() const;
  /// From any thread.
  int32_t count() const { return count_.load(); }
  /// Called after each remove().
  void on_removed(std::function<void()> action) { on_removed_ = std::move(action); }
  /// Adds to the bytes of all bodies being read. False if that exceeds the limit.
  bool hold(int64_t more_bytes);
  HttpHandler& handler() { return handler_; }
  const HttpLimits& limits() const { return limits_; }

 private:
  const HttpLimits limits_;
  HttpHandler& handler_;
  std::unordered_set<Connection*> open_;
  std::atomic<int32_t> count_{0};
  int64_t held_bytes_ = 0;
  std::function<void()> on_removed_;
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Connections& all, std::string remote);
  virtual ~Connection() = default;

  virtual void start() = 0;
  /// Ends the connection at once.
  void cut();
  /// Ends the connection if a deadline has passed; sends a comment if its stream has been silent
  /// for HttpLimits::ping_s.
  void sweep(Clock::time_point now);
  /// Ends the connection as soon as no answer is under way.
  void retire();
  /// Answers with a refusal and ends the connection.
  void refuse_whole(int status, const std::string& why);

 protected:
  static constexpr size_t kReadBytes = 8 << 10;

  virtual void read_some() = 0;   // reads into read_buffer_, then calls on_read
  virtual void write_some() = 0;  // writes unwritten(), then calls on_written
  virtual void close_stream() = 0;
  virtual void end_sending() = 0;

  /// The stream is ready for requests.
  void begin();
  void on_read(bool has_failed, size_t num_bytes);
  void on_written(bool has_failed, size_t num_bytes);
  std::string_view unwritten() const { return std::string_view(inflight_).substr(written_); }

  std::array<char, kReadBytes> read_buffer_;

 private:
  friend class ConnectionExchange;
  enum class State { kStart, kHeader, kBody, kBusy, kFlush, kLinger, kClosed };

  void advance();
  bool parse_header();
  bool parse_body();
  void admit();
  void dispatch();
  void refuse(const HttpResponse& response);
  void next_request();
  void finish_exchange(bool keep_alive);
  void log(bool aborted);
  void write(std::string_view bytes);
  void flush();
  void want_read();
  bool hold(size_t bytes);

  Connections& all_;
  std::string remote_;
  State state_ = State::kStart;
  std::optional<RequestParser> parser_;
  HttpRequest request_;
  std::shared_ptr<ConnectionExchange> exchange_;
  std::string in_, out_, inflight_;
  size_t written_ = 0;  // of inflight_
  uint64_t body_limit_ = 0;
  uint64_t lingered_ = 0;
  size_t held_bytes_ = 0;  // of the body so far, as counted by Connections::hold
  bool reading_ = false, writing_ = false, retiring_ = false, keep_alive_ = true;
  bool advancing_ = false;
  Clock::time_point deadline_, write_deadline_, last_write_;
};

}  // namespace moxie
