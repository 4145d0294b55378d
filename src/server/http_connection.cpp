// A connection's requests, answers and deadlines.
#include "server/http_connection.h"

#include <fmt/format.h>

#include <utility>

namespace moxie {
namespace {

constexpr size_t kReadAhead = 64 << 10;
constexpr double kLingerS = 2;  // to let a refused client read its answer
constexpr uint64_t kLingerBytes = 1 << 20;

}  // namespace

// Connections

void Connections::add(Connection* connection) {
  open_.insert(connection);
  ++count_;
}

void Connections::remove(Connection* connection) {
  if (open_.erase(connection) > 0) --count_;
  if (on_removed_) on_removed_();
}

std::vector<std::shared_ptr<Connection>> Connections::all() const {
  std::vector<std::shared_ptr<Connection>> list;
  for (Connection* connection : open_) {
    if (auto shared = connection->weak_from_this().lock()) list.push_back(std::move(shared));
  }
  return list;
}

bool Connections::hold(int64_t more_bytes) {
  held_bytes_ += more_bytes;
  return more_bytes <= 0 || held_bytes_ <= static_cast<int64_t>(limits_.all_bodies_bytes);
}

// ConnectionExchange

class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(Connection* connection, HttpRequest request)
      : connection_(connection), request_(std::move(request)) {}
  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(request_.body); }
  void respond(HttpResponse response) override;
  void begin_stream(std::vector<HttpHeader> headers) override;
  void send(std::string_view bytes) override;
  void end_stream() override;
  bool done() const override { return connection_ == nullptr; }
  void on_abort(std::function<void()> action) override { on_abort_ = std::move(action); }

  void detach() {  // the client has gone
    connection_ = nullptr;
    if (auto action = std::exchange(on_abort_, nullptr)) action();
  }
  void ping() {
    if (streaming_) send(": ping\n\n");
  }

 private:
  friend class Connection;
  void complete();

  Connection* connection_;  // null once the answer is complete or the client gone
  HttpRequest request_;
  std::function<void()> on_abort_;
  bool streaming_ = false, chunked_ = false;
  int status_ = 0;
  uint64_t sent_bytes_ = 0;
};

void ConnectionExchange::respond(HttpResponse response) {
  if (connection_ == nullptr) return;
  const bool keep_alive = connection_->keep_alive_ && !connection_->retiring_;
  status_ = response.status;
  sent_bytes_ = response.body.size();
  std::string whole = response_head(response, connection_->all_.handler().common_headers(request_),
                                    keep_alive, false, static_cast<int64_t>(response.body.size()));
  if (request_.method != "HEAD") whole += response.body;
  connection_->write(whole);
  connection_->keep_alive_ = keep_alive;
  complete();
}

void ConnectionExchange::begin_stream(std::vector<HttpHeader> headers) {
  if (connection_ == nullptr) return;
  status_ = 200;
  streaming_ = true;
  chunked_ = request_.keep_alive || connection_->keep_alive_;
  connection_->keep_alive_ = connection_->keep_alive_ && !connection_->retiring_ && chunked_;
  HttpResponse head{.status = 200, .content_type = "text/event-stream; charset=utf-8"};
  head.headers = std::move(headers);
  head.headers.push_back({"Cache-Control", "no-cache"});
  head.headers.push_back({"X-Accel-Buffering", "no"});
  connection_->write(response_head(head, connection_->all_.handler().common_headers(request_),
                                   connection_->keep_alive_, chunked_, -1));
  connection_->flush();
}

void ConnectionExchange::send(std::string_view bytes) {
  if (connection_ == nullptr || bytes.empty()) return;
  sent_bytes_ += bytes.size();
  if (chunked_) connection_->write(fmt::format("{:x}\r\n", bytes.size()));
  connection_->write(bytes);
  if (chunked_) connection_->write("\r\n");
  connection_->flush();
}

void ConnectionExchange::end_stream() {
  if (connection_ == nullptr) return;
  if (chunked_) connection_->write("0\r\n\r\n");
  complete();
}

void ConnectionExchange::complete() {
  Connection* connection = std::exchange(connection_, nullptr);
  on_abort_ = nullptr;
  connection->finish_exchange(connection->keep_alive_);
}

// Connection

Connection::Connection(Connections& all, std::string remote)
    : all_(all), remote_(std::move(remote)) {
  deadline_ = in_seconds(all.limits().header_s);
  all_.add(this);
}

void Connection::begin() {
  next_request();
  advance();
}

void Connection::next_request() {
  parser_.emplace(all_.limits());
  body_limit_ = 0;
  const bool is_first = state_ == State::kStart;
  state_ = State::kHeader;
  deadline_ =
      in_seconds(is_first || !in_.empty() ? all_.limits().header_s : all_.limits().keep_alive_s);
}

void Connection::want_read() {
  if (reading_ || state_ == State::kClosed || in_.size() >= kReadAhead) return;
  reading_ = true;
  read_some();
}

void Connection::on_read(bool has_failed, size_t num_bytes) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (has_failed) return cut();
  if (state_ == State::kLinger) {
    lingered_ += num_bytes;
    if (lingered_ > kLingerBytes) return cut();
    return want_read();
  }
  if (state_ == State::kHeader && in_.empty()) {
    deadline_ = in_seconds(all_.limits().header_s);
  }
  in_.append(read_buffer_.data(), num_bytes);
  advance();
}

void Connection::advance() {
  if (advancing_) return;  // a handler that answers at once calls this again
  advancing_ = true;
  const auto self = shared_from_this();
  bool progress = true;
  while (progress) {
    progress = false;
    if (state_ == State::kHeader && !in_.empty()) progress = parse_header();
    if (state_ == State::kBody) progress = parse_body() || progress;
    if (state_ == State::kFlush && !writing_ && out_.empty()) {
      if (retiring_ && in_.empty()) {
        cut();  // the system sends what is written, also if the client never closes
        break;
      }
      if (!keep_alive_ || retiring_) {
        state_ = State::kLinger;
        deadline_ = in_seconds(kLingerS);
        end_sending();
        break;
      }
      next_request();
      progress = true;
    }
  }
  advancing_ = false;
  want_read();
}

// Returns whether the header is complete.
bool Connection::parse_header() {
  const RequestParser::Taken taken = parser_->put(in_);
  in_.erase(0, taken.bytes);
  if (taken.status != 0) {
    // The header's Content-Length exceeds the limit of the body: the request is known.
    request_ = parser_->request();
    request_.remote = remote_;
    complete_request(request_);
    refuse(all_.handler().refusal(taken.status, taken.why));
    return false;
  }
  if (!parser_->is_header_done()) {
    if (in_.size() >= kReadAhead) {
      refuse(all_.handler().refusal(431, "the request header is too long"));
    }
    return false;
  }
  request_ = parser_->request();
  request_.remote = remote_;
  keep_alive_ = request_.keep_alive;
  if (!complete_request(request_)) {
    refuse(all_.handler().refusal(400, "the request target is no valid path"));
    return false;
  }
  admit();
  return state_ == State::kBody;
}

void Connection::admit() {
  HttpHandler& handler = all_.handler();
  if (const std::string fault = parser_->header_fault(); !fault.empty()) {
    return refuse(handler.refusal(400, fault));
  }
  const Admission admission = handler.admit(request_);
  if (!admission.accept) return refuse(admission.refusal);
  const auto declared = parser_->declared_bytes();
  if (admission.body_bytes > 0) {
    body_limit_ = admission.body_bytes;
    if (declared && *declared > body_limit_) {
      return refuse(
          handler.refusal(413, fmt::format("the request body exceeds {} bytes", body_limit_)));
    }
  }
  const std::string_view expect = request_.header("Expect");
  if (!expect.empty()) {
    if (!equals_ignoring_case(expect, "100-continue")) {
      return refuse(handler.refusal(417, "Expect: only 100-continue is known"));
    }
    if (!parser_->is_done() && in_.empty()) {
      write("HTTP/1.1 100 Continue\r\n\r\n");
      flush();
    }
  }
  parser_->expect_body();
  state_ = State::kBody;
  deadline_ = in_seconds(all_.limits().body_s);
}

// Returns whether the body is complete; if so, the handler has been called.
bool Connection::parse_body() {
  while (!parser_->is_done() && !in_.empty()) {
    const RequestParser::Taken taken = parser_->put(in_);
    in_.erase(0, taken.bytes);
    if (taken.status != 0) {
      refuse(all_.handler().refusal(taken.status, taken.why));
      return false;
    }
    if (body_limit_ > 0 && parser_->body_bytes() > body_limit_) {
      refuse(all_.handler().refusal(413, "the request body is too long for this route"));
      return false;
    }
    if (!hold(parser_->body_bytes())) {
      refuse(all_.handler().refusal(503, "too many request bodies are being read"));
      return false;
    }
    if (taken.bytes == 0) break;
  }
  if (!parser_->is_done()) {
    if (in_.size() >= kReadAhead) {
      refuse(all_.handler().refusal(400, "a chunk header is too long"));
    }
    return false;
  }
  dispatch();
  return true;
}

bool Connection::hold(size_t bytes) {
  const auto more = static_cast<int64_t>(bytes) - static_cast<int64_t>(held_bytes_);
  held_bytes_ = bytes;
  return all_.hold(more);
}

void Connection::dispatch() {
  hold(0);
  request_.body = parser_->take_body();
  parser_.reset();
  state_ = State::kBusy;
  exchange_ = std::make_shared<ConnectionExchange>(this, std::move(request_));
  all_.handler().handle(exchange_);
}

// An answer after which the connection ends: later bytes on it cannot be trusted or are unwanted.
void Connection::refuse(const HttpResponse& response) {
  hold(0);
  parser_.reset();
  keep_alive_ = false;
  state_ = State::kBusy;
  exchange_ = std::make_shared<ConnectionExchange>(this, std::move(request_));
  request_ = {};
  exchange_->respond(response);
}

void Connection::refuse_whole(int status, const std::string& why) {
  request_.remote = remote_;
  complete_request(request_);
  refuse(all_.handler().refusal(status, why));
}

void Connection::finish_exchange(bool keep_alive) {
  log(false);
  exchange_.reset();
  keep_alive_ = keep_alive;
  state_ = State::kFlush;
  flush();
  advance();
}

void Connection::log(bool aborted) {
  const ConnectionExchange& exchange = *exchange_;
  all_.handler().log({.request = &exchange.request_,
                      .status = exchange.status_,
                      .bytes = exchange.sent_bytes_,
                      .seconds = seconds_since(exchange.request_.arrived),
                      .aborted = aborted});
}

void Connection::write(std::string_view bytes) { out_ += bytes; }

void Connection::flush() {
  last_write_ = Clock::now();
  if (state_ == State::kClosed) return;
  if (writing_) {
    const bool is_stream = exchange_ && exchange_->streaming_;
    if (is_stream && out_.size() > all_.limits().stream_bytes) cut();
    return;
  }
  if (out_.empty()) return;
  writing_ = true;
  inflight_.clear();
  std::swap(inflight_, out_);
  written_ = 0;
  write_deadline_ = in_seconds(all_.limits().write_s);
  write_some();
}

void Connection::on_written(bool has_failed, size_t num_bytes) {
  if (state_ == State::kClosed) return;
  if (has_failed) return cut();
  written_ += num_bytes;
  if (written_ < inflight_.size()) {
    write_deadline_ = in_seconds(all_.limits().write_s);
    return write_some();
  }
  writing_ = false;
  if (inflight_.capacity() > kReadAhead) std::string().swap(inflight_);
  flush();
  if (state_ == State::kFlush) advance();
}

void Connection::cut() {
  if (state_ == State::kClosed) return;
  const auto self = weak_from_this().lock();
  state_ = State::kClosed;
  hold(0);
  close_stream();
  if (exchange_) {
    log(true);
    const auto exchange = std::exchange(exchange_, nullptr);
    exchange->detach();
  }
  all_.remove(this);
}

void Connection::retire() {
  retiring_ = true;
  if (state_ == State::kStart || (state_ == State::kHeader && in_.empty())) cut();
}

void Connection::sweep(Clock::time_point now) {
  if (writing_ && now > write_deadline_) return cut();
  switch (state_) {
    case State::kStart:
    case State::kLinger:
      if (now > deadline_) cut();
      return;
    case State::kHeader:
    case State::kBody:
      if (now <= deadline_) return;
      if (state_ == State::kHeader && in_.empty() && !parser_->got_some()) return cut();
      return refuse_whole(408, "the request took too long to arrive");
    case State::kBusy:
      if (exchange_ && !writing_ &&
          std::chrono::duration<double>(now - last_write_).count() > all_.limits().ping_s) {
        exchange_->ping();
      }
      return;
    default:
      return;
  }
}

}  // namespace moxie
