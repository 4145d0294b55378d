// Connections over Beast's parser and Asio's sockets: the only file that includes them.
//
// A connection is a state machine fed by one outstanding read and drained by one outstanding write.
// It goes on reading while an answer is under way, up to kReadAhead bytes: that is how a client
// that has gone is noticed, and where pipelined requests wait for their turn. One timer sweeps all
// connections for deadlines.
#include "server/http.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <csignal>
#include <optional>
#include <unordered_set>

namespace moxie {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kReadBytes = 8 << 10;
constexpr size_t kReadAhead = 64 << 10;
constexpr double kSweepS = 0.25;
constexpr double kLingerS = 2;  // to let a refused client read its answer
constexpr int32_t kSpareDescriptors = 64;

Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// As many descriptors as we may have; how many that is.
int32_t raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  const rlim_t wanted = std::min<rlim_t>(limit.rlim_max, 1 << 20);
  if (limit.rlim_cur < wanted) {
    limit.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) getrlimit(RLIMIT_NOFILE, &limit);
  }
  return static_cast<int32_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
}

void set_limits(Parser& parser, const HttpLimits& limits) {
  parser.header_limit(limits.header_bytes);
  parser.body_limit(limits.body_bytes);
  parser.eager(false);  // stops behind the header, which may decide
}

// The status for what the parser refuses.
int status_of(const error_code& error) {
  if (error == http::error::header_limit) return 431;
  if (error == http::error::body_limit) return 413;
  if (error == http::error::bad_version) return 505;
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

HttpRequest request_of(const Parser& parser) {
  HttpRequest request;
  const auto& message = parser.get();
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  for (const auto& field : message) {
    request.headers.push_back({std::string(field.name_string()), std::string(field.value())});
  }
  request.keep_alive = message.keep_alive();
  return request;
}

// Two lengths for one body are how requests are smuggled past a proxy.
bool has_two_lengths(const Parser& parser) {
  const auto& message = parser.get();
  return message.count(http::field::transfer_encoding) > 0 &&
         message.count(http::field::content_length) > 0;
}

class Connection;

class ExchangeImpl final : public Exchange {
 public:
  ExchangeImpl(Connection* connection, HttpRequest request)
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

class ServerImpl;

// What all connections share, over whichever stream.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ServerImpl& server, std::string remote);
  virtual ~Connection() = default;

  virtual void start() = 0;
  /// Ends it at once.
  void cut();
  /// Called every kSweepS.
  void sweep(Clock::time_point now);
  /// Goes when it has nothing left to do.
  void retire();
  void refuse_whole(int status, const std::string& why);

 protected:
  virtual void read_some() = 0;   // into read_buffer_, then on_read
  virtual void write_some() = 0;  // from inflight_ at written_, then on_written
  virtual void close_stream() = 0;
  virtual void end_sending() = 0;

  void begin();
  void on_read(const error_code& error, size_t count);
  void on_written(const error_code& error, size_t count);

  std::array<char, kReadBytes> read_buffer_;
  std::string inflight_;
  size_t written_ = 0;
  Clock::time_point deadline_;

 private:
  friend class ExchangeImpl;
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

  ServerImpl& server_;
  std::string remote_;
  State state_ = State::kStart;
  std::optional<Parser> parser_;
  HttpRequest request_;
  std::shared_ptr<ExchangeImpl> exchange_;
  std::string in_, out_;
  uint64_t body_limit_ = 0;
  uint64_t lingered_ = 0;
  size_t held_bytes_ = 0;  // of the body so far
  bool reading_ = false, writing_ = false, retiring_ = false, keep_alive_ = true;
  bool advancing_ = false;
  Clock::time_point write_deadline_, last_write_;
};

template <class Stream>
class StreamConnection final : public Connection {
 public:
  StreamConnection(ServerImpl& server, std::string remote, Stream stream)
      : Connection(server, std::move(remote)), stream_(std::move(stream)) {}

  void start() override;

 private:
  std::shared_ptr<StreamConnection> self() {
    return std::static_pointer_cast<StreamConnection>(shared_from_this());
  }
  void read_some() override {
    stream_.async_read_some(
        asio::buffer(read_buffer_),
        [self = self()](const error_code& error, size_t count) { self->on_read(error, count); });
  }
  void write_some() override {
    stream_.async_write_some(
        asio::buffer(inflight_.data() + written_, inflight_.size() - written_),
        [self = self()](const error_code& error, size_t count) { self->on_written(error, count); });
  }
  void close_stream() override {
    error_code ignored;
    stream_.lowest_layer().close(ignored);
  }
  void end_sending() override {
    error_code ignored;
    stream_.lowest_layer().shutdown(tcp::socket::shutdown_send, ignored);
  }

  Stream stream_;
};

class ServerImpl final : public HttpServer {
 public:
  ServerImpl(const HttpOptions& options, HttpHandler& handler)
      : options_(options), handler_(handler) {}

  Status open();

  int32_t port() const override { return port_; }
  int32_t num_connections() const override { return num_connections_.load(); }
  void run() override {
    accept();
    sweep_later();
    io_.run();
    for (const auto& connection : all()) connection->cut();
  }
  void shut_down(double grace_s) override {
    error_code ignored;
    ignored = acceptor_.close(ignored);
    shut_down_by_ = in_seconds(grace_s);
    shutting_down_ = true;
    for (const auto& connection : all()) connection->retire();
    end_if_idle();
  }
  void post(std::function<void()> work) override { asio::post(io_, std::move(work)); }
  void after(double seconds, std::function<void()> work) override {
    auto timer = std::make_shared<asio::steady_timer>(io_);
    timer->expires_at(in_seconds(seconds));
    timer->async_wait([timer, work = std::move(work)](const error_code& error) {
      if (!error) work();
    });
  }
  void on_signal(std::function<void()> action) override {
    signal_action_ = std::move(action);
    wait_for_signal();
  }

  void add(Connection* connection) {
    connections_.insert(connection);
    ++num_connections_;
  }
  void remove(Connection* connection) {
    if (connections_.erase(connection) > 0) --num_connections_;
    if (shutting_down_) asio::post(io_, [this] { end_if_idle(); });
  }
  /// Counts what all bodies being read take together; false: more than the limit.
  bool hold(int64_t more_bytes) {
    held_bytes_ += more_bytes;
    return more_bytes <= 0 || held_bytes_ <= static_cast<int64_t>(options_.limits.all_bodies_bytes);
  }
  HttpHandler& handler() { return handler_; }
  const HttpLimits& limits() const { return options_.limits; }

 private:
  std::vector<std::shared_ptr<Connection>> all() {
    std::vector<std::shared_ptr<Connection>> list;
    for (Connection* connection : connections_) {
      if (auto shared = connection->weak_from_this().lock()) list.push_back(std::move(shared));
    }
    return list;
  }
  void accept();
  void on_accept(tcp::socket socket);
  void sweep_later();
  void wait_for_signal() {
    signals_.async_wait([this](const error_code& error, int) {
      if (error) return;
      if (signal_action_) signal_action_();
      wait_for_signal();
    });
  }
  void end_if_idle() {
    if (connections_.empty()) io_.stop();
  }
  Status open_tls();

  HttpOptions options_;
  HttpHandler& handler_;
  asio::io_context io_{1};
  asio::ssl::context tls_{asio::ssl::context::tls_server};
  tcp::acceptor acceptor_{io_};
  asio::steady_timer sweep_timer_{io_}, accept_timer_{io_};
  asio::signal_set signals_{io_};
  std::function<void()> signal_action_;
  std::unordered_set<Connection*> connections_;
  std::atomic<int32_t> num_connections_{0};
  int32_t max_connections_ = 0, port_ = 0;
  int64_t held_bytes_ = 0;
  bool shutting_down_ = false, is_tls_ = false;
  Clock::time_point shut_down_by_;
};

// ExchangeImpl

void ExchangeImpl::respond(HttpResponse response) {
  if (connection_ == nullptr) return;
  const bool keep_alive = connection_->keep_alive_ && !connection_->retiring_;
  status_ = response.status;
  sent_bytes_ = response.body.size();
  std::string whole =
      response_head(response, connection_->server_.handler().common_headers(request_), keep_alive,
                    false, static_cast<int64_t>(response.body.size()));
  if (request_.method != "HEAD") whole += response.body;
  connection_->write(whole);
  connection_->keep_alive_ = keep_alive;
  complete();
}

void ExchangeImpl::begin_stream(std::vector<HttpHeader> headers) {
  if (connection_ == nullptr) return;
  status_ = 200;
  streaming_ = true;
  chunked_ = request_.keep_alive || connection_->keep_alive_;
  connection_->keep_alive_ = connection_->keep_alive_ && !connection_->retiring_ && chunked_;
  HttpResponse head{.status = 200, .content_type = "text/event-stream; charset=utf-8"};
  head.headers = std::move(headers);
  head.headers.push_back({"Cache-Control", "no-cache"});
  head.headers.push_back({"X-Accel-Buffering", "no"});
  connection_->write(response_head(head, connection_->server_.handler().common_headers(request_),
                                   connection_->keep_alive_, chunked_, -1));
  connection_->flush();
}

void ExchangeImpl::send(std::string_view bytes) {
  if (connection_ == nullptr || bytes.empty()) return;
  sent_bytes_ += bytes.size();
  if (chunked_) connection_->write(fmt::format("{:x}\r\n", bytes.size()));
  connection_->write(bytes);
  if (chunked_) connection_->write("\r\n");
  connection_->flush();
}

void ExchangeImpl::end_stream() {
  if (connection_ == nullptr) return;
  if (chunked_) connection_->write("0\r\n\r\n");
  complete();
}

void ExchangeImpl::complete() {
  Connection* connection = std::exchange(connection_, nullptr);
  on_abort_ = nullptr;
  connection->finish_exchange(connection->keep_alive_);
}

// Connection

Connection::Connection(ServerImpl& server, std::string remote)
    : server_(server), remote_(std::move(remote)) {
  deadline_ = in_seconds(server.limits().header_s);
  server_.add(this);
}

void Connection::begin() {
  next_request();
  advance();
}

void Connection::next_request() {
  parser_.emplace();
  set_limits(*parser_, server_.limits());
  body_limit_ = 0;
  const bool is_first = state_ == State::kStart;
  state_ = State::kHeader;
  deadline_ = in_seconds(is_first || !in_.empty() ? server_.limits().header_s
                                                  : server_.limits().keep_alive_s);
}

void Connection::want_read() {
  if (reading_ || state_ == State::kClosed || in_.size() >= kReadAhead) return;
  reading_ = true;
  read_some();
}

void Connection::on_read(const error_code& error, size_t count) {
  reading_ = false;
  if (state_ == State::kClosed) return;
  if (error) return cut();
  if (state_ == State::kLinger) {
    lingered_ += count;
    if (lingered_ > (uint64_t{1} << 20)) return cut();
    return want_read();
  }
  if (state_ == State::kHeader && in_.empty()) {
    deadline_ = in_seconds(server_.limits().header_s);
  }
  in_.append(read_buffer_.data(), count);
  advance();
}

void Connection::advance() {
  if (advancing_) return;  // an answer given inside a handler comes back here
  advancing_ = true;
  const auto self = shared_from_this();
  bool progress = true;
  while (progress) {
    progress = false;
    if (state_ == State::kHeader && !in_.empty()) progress = parse_header();
    if (state_ == State::kBody) progress = parse_body() || progress;
    if (state_ == State::kFlush && !writing_ && out_.empty()) {
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

// Whether the header is complete.
bool Connection::parse_header() {
  error_code error;
  const size_t used = parser_->put(asio::buffer(in_), error);
  in_.erase(0, used);
  if (error && error != http::error::need_more) {
    const int status = status_of(error);
    // The limit of the body is noticed with the header's Content-Length: the request is known.
    request_ = request_of(*parser_);
    request_.remote = remote_;
    complete_request(request_);
    refuse(server_.handler().refusal(status, describe(error, server_.limits())));
    return false;
  }
  if (!parser_->is_header_done()) {
    if (in_.size() >= kReadAhead) {
      refuse(server_.handler().refusal(431, "the request header is too long"));
    }
    return false;
  }
  request_ = request_of(*parser_);
  request_.remote = remote_;
  keep_alive_ = request_.keep_alive;
  if (!complete_request(request_)) {
    refuse(server_.handler().refusal(400, "the request target is no valid path"));
    return false;
  }
  admit();
  return state_ == State::kBody;
}

void Connection::admit() {
  HttpHandler& handler = server_.handler();
  if (has_two_lengths(*parser_)) {
    return refuse(handler.refusal(400, "both Content-Length and Transfer-Encoding are given"));
  }
  const Admission admission = handler.admit(request_);
  if (!admission.accept) return refuse(admission.refusal);
  const auto declared = parser_->content_length();
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
  parser_->eager(true);
  state_ = State::kBody;
  deadline_ = in_seconds(server_.limits().body_s);
}

// Whether the body is complete; it is given to the handler then.
bool Connection::parse_body() {
  while (!parser_->is_done() && !in_.empty()) {
    error_code error;
    const size_t used = parser_->put(asio::buffer(in_), error);
    in_.erase(0, used);
    if (error && error != http::error::need_more) {
      refuse(server_.handler().refusal(status_of(error), describe(error, server_.limits())));
      return false;
    }
    if (body_limit_ > 0 && parser_->get().body().size() > body_limit_) {
      refuse(server_.handler().refusal(413, "the request body is too long for this route"));
      return false;
    }
    if (!hold(parser_->get().body().size())) {
      refuse(server_.handler().refusal(503, "too many request bodies are being read"));
      return false;
    }
    if (used == 0) break;
  }
  if (!parser_->is_done()) {
    if (in_.size() >= kReadAhead) {
      refuse(server_.handler().refusal(400, "a chunk header is too long"));
    }
    return false;
  }
  dispatch();
  return true;
}

bool Connection::hold(size_t bytes) {
  const auto more = static_cast<int64_t>(bytes) - static_cast<int64_t>(held_bytes_);
  held_bytes_ = bytes;
  return server_.hold(more);
}

void Connection::dispatch() {
  hold(0);
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  state_ = State::kBusy;
  exchange_ = std::make_shared<ExchangeImpl>(this, std::move(request_));
  server_.handler().handle(exchange_);
}

// An answer after which the connection ends: what follows on it cannot be trusted or is unwanted.
void Connection::refuse(const HttpResponse& response) {
  hold(0);
  parser_.reset();
  keep_alive_ = false;
  state_ = State::kBusy;
  exchange_ = std::make_shared<ExchangeImpl>(this, std::move(request_));
  request_ = {};
  exchange_->respond(response);
}

void Connection::refuse_whole(int status, const std::string& why) {
  request_.remote = remote_;
  complete_request(request_);
  refuse(server_.handler().refusal(status, why));
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
  const ExchangeImpl& exchange = *exchange_;
  server_.handler().log({.request = &exchange.request_,
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
    if (is_stream && out_.size() > server_.limits().stream_bytes) cut();
    return;
  }
  if (out_.empty()) return;
  writing_ = true;
  inflight_.clear();
  std::swap(inflight_, out_);
  written_ = 0;
  write_deadline_ = in_seconds(server_.limits().write_s);
  write_some();
}

void Connection::on_written(const error_code& error, size_t count) {
  if (state_ == State::kClosed) return;
  if (error) return cut();
  written_ += count;
  if (written_ < inflight_.size()) {
    write_deadline_ = in_seconds(server_.limits().write_s);
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
  server_.remove(this);
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
          std::chrono::duration<double>(now - last_write_).count() > server_.limits().ping_s) {
        exchange_->ping();
      }
      return;
    default:
      return;
  }
}

template <>
void StreamConnection<tcp::socket>::start() {
  begin();
}

template <>
void StreamConnection<asio::ssl::stream<tcp::socket>>::start() {
  stream_.async_handshake(asio::ssl::stream_base::server, [self = self()](const error_code& error) {
    if (error) return self->cut();
    self->begin();
  });
}

// ServerImpl

Status ServerImpl::open_tls() {
  if (options_.ssl_certificate.empty() != options_.ssl_key.empty()) {
    return fail("both are needed, or none", "--ssl-cert, --ssl-key");
  }
  is_tls_ = !options_.ssl_key.empty();
  if (!is_tls_) return {};
  error_code error;
  error = tls_.set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                               asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                               asio::ssl::context::no_tlsv1_1,
                           error);
  if (!error) error = tls_.use_certificate_chain_file(options_.ssl_certificate, error);
  if (error) {
    return fail("no readable PEM certificate: " + error.message(),
                "--ssl-cert " + options_.ssl_certificate);
  }
  error = tls_.use_private_key_file(options_.ssl_key, asio::ssl::context::pem, error);
  if (error) {
    return fail("no PEM key that fits the certificate: " + error.message(),
                "--ssl-key " + options_.ssl_key);
  }
  return {};
}

Status ServerImpl::open() {
  std::signal(SIGPIPE, SIG_IGN);
  if (auto status = open_tls(); !status) return status;
  const int32_t descriptors = raise_descriptor_limit();
  max_connections_ = std::max(descriptors - kSpareDescriptors, 16);
  if (options_.limits.connections > 0) {
    max_connections_ = std::min(max_connections_, options_.limits.connections);
  }
  const std::string where = fmt::format("{}:{}", options_.host, options_.port);
  error_code error;
  tcp::resolver resolver(io_);
  const auto found =
      resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::passive, error);
  if (error || found.empty()) {
    return fail("no address to listen on: " + error.message(), "--host " + options_.host);
  }
  const tcp::endpoint endpoint = found.begin()->endpoint();
  error = acceptor_.open(endpoint.protocol(), error);
  if (!error) error = acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) error = acceptor_.bind(endpoint, error);
  if (!error) error = acceptor_.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return fail("cannot listen: " + error.message(), where,
                error == asio::error::address_in_use ? "choose another --port, or 0 for any" : "");
  }
  port_ = acceptor_.local_endpoint(error).port();
  for (const int signal : {SIGTERM, SIGINT}) {
    error = signals_.add(signal, error);
    if (error) return fail("cannot wait for signals: " + error.message(), where);
  }
  return {};
}

void ServerImpl::accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {  // out of descriptors, mostly: try again when some may be free
      accept_timer_.expires_after(std::chrono::milliseconds(100));
      accept_timer_.async_wait([this](const error_code& stopped) {
        if (!stopped) accept();
      });
      return;
    }
    on_accept(std::move(socket));
    accept();
  });
}

void ServerImpl::on_accept(tcp::socket socket) {
  error_code ignored;
  const auto peer = socket.remote_endpoint(ignored);
  const std::string remote = fmt::format("{}:{}", peer.address().to_string(ignored), peer.port());
  ignored = socket.set_option(tcp::no_delay(true), ignored);
  std::shared_ptr<Connection> connection;
  if (is_tls_) {
    connection = std::make_shared<StreamConnection<asio::ssl::stream<tcp::socket>>>(
        *this, remote, asio::ssl::stream<tcp::socket>(std::move(socket), tls_));
  } else {
    connection = std::make_shared<StreamConnection<tcp::socket>>(*this, remote, std::move(socket));
  }
  if (num_connections() > max_connections_) {
    return is_tls_ ? connection->cut()
                   : connection->refuse_whole(503, "too many connections are open");
  }
  connection->start();
}

void ServerImpl::sweep_later() {
  sweep_timer_.expires_at(in_seconds(kSweepS));
  sweep_timer_.async_wait([this](const error_code& error) {
    if (error) return;
    const auto now = Clock::now();
    for (const auto& connection : all()) connection->sweep(now);
    if (shutting_down_ && now > shut_down_by_) return io_.stop();
    sweep_later();
  });
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options,
                                                       HttpHandler& handler) {
  auto server = std::make_unique<ServerImpl>(options, handler);
  if (auto status = server->open(); !status) return fail(std::move(status.error()));
  return server;
}

HttpProbe probe_http(std::string_view bytes, const HttpLimits& limits) {
  Parser parser;
  set_limits(parser, limits);
  HttpProbe probe;
  while (!bytes.empty() && !parser.is_done()) {
    error_code error;
    const size_t used = parser.put(asio::buffer(bytes.data(), bytes.size()), error);
    bytes.remove_prefix(used);
    if (error && error != http::error::need_more) {
      probe.status = status_of(error);
      return probe;
    }
    if (parser.is_header_done()) {
      if (has_two_lengths(parser)) {
        probe.status = 400;
        return probe;
      }
      parser.eager(true);
    }
    if (used == 0) break;
  }
  if (!parser.is_done()) return probe;
  probe.request = request_of(parser);
  if (!complete_request(probe.request)) probe.status = 400;
  probe.request.body = std::move(parser.get().body());
  probe.complete = probe.status == 0;
  return probe;
}

}  // namespace moxie
