// The server: listens, accepts, and reads and writes connections over TCP and TLS. The only file
// that includes Asio.
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <csignal>
#include <string>

#include "server/http_connection.h"

namespace moxie {
namespace {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

constexpr double kSweepS = 0.25;
constexpr int32_t kSpareDescriptors = 64;
constexpr auto kTlsCheckEvery = std::chrono::seconds(1);

// Raises the limit of file descriptors as far as allowed, and returns it.
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

using TlsContext = std::shared_ptr<asio::ssl::context>;

// `may_ask`: OpenSSL asks on the terminal for the password of an encrypted key.
Result<TlsContext> read_tls(const HttpOptions& options, bool may_ask) {
  auto tls = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code error;
  error = tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                               asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                               asio::ssl::context::no_tlsv1_1,
                           error);
  if (!error) error = tls->use_certificate_chain_file(options.ssl_certificate, error);
  if (error) {
    return fail("no readable PEM certificate: " + error.message(),
                "--ssl-cert " + options.ssl_certificate);
  }
  if (!may_ask) {
    error = tls->set_password_callback(
        [](size_t, asio::ssl::context::password_purpose) { return std::string(); }, error);
  }
  error = tls->use_private_key_file(options.ssl_key, asio::ssl::context::pem, error);
  if (error) {
    return fail("no PEM key that fits the certificate: " + error.message(),
                "--ssl-key " + options.ssl_key);
  }
  return tls;
}

// Differs if one of the TLS files was written or replaced.
std::string stamp_of(const HttpOptions& options) {
  std::string stamp;
  for (const std::string& path : {options.ssl_certificate, options.ssl_key}) {
    struct stat file {};
    if (stat(path.c_str(), &file) != 0) file = {};
    stamp += fmt::format("{} {} {} {}.{:09} ", file.st_dev, file.st_ino, file.st_size,
                         file.st_mtim.tv_sec, file.st_mtim.tv_nsec);
  }
  return stamp;
}

template <class Stream>
class StreamConnection final : public Connection {
 public:
  StreamConnection(Connections& all, std::string remote, Stream stream)
      : Connection(all, std::move(remote)), stream_(std::move(stream)) {}

  void start() override;

 private:
  std::shared_ptr<StreamConnection> self() {
    return std::static_pointer_cast<StreamConnection>(shared_from_this());
  }
  void read_some() override {
    stream_.async_read_some(asio::buffer(read_buffer_),
                            [self = self()](const error_code& error, size_t count) {
                              self->on_read(error.failed(), count);
                            });
  }
  void write_some() override {
    stream_.async_write_some(asio::buffer(unwritten()),
                             [self = self()](const error_code& error, size_t count) {
                               self->on_written(error.failed(), count);
                             });
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

class ServerImpl final : public HttpServer {
 public:
  ServerImpl(const HttpOptions& options, HttpHandler& handler)
      : options_(options), connections_(options_.limits, handler) {
    connections_.on_removed([this] {
      if (shutting_down_) asio::post(io_, [this] { end_if_idle(); });
    });
  }

  Status open();

  int32_t port() const override { return port_; }
  int32_t num_connections() const override { return connections_.count(); }
  void run() override {
    accept();
    sweep_later();
    io_.run();
    for (const auto& connection : connections_.all()) connection->cut();
  }
  void shut_down(double grace_s) override {
    error_code ignored;
    ignored = acceptor_.close(ignored);
    shut_down_by_ = in_seconds(grace_s);
    shutting_down_ = true;
    for (const auto& connection : connections_.all()) connection->retire();
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

 private:
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
    if (connections_.count() == 0) io_.stop();
  }
  Status open_tls();
  void renew_tls();
  void renew_tls_if_changed();
  void wait_for_hangup();

  HttpOptions options_;
  asio::io_context io_{1};
  TlsContext tls_;           // null: plain HTTP
  std::string tls_stamp_;    // of the files in use
  std::string tls_refused_;  // of files that are faulty
  Clock::time_point tls_checked_{};
  tcp::acceptor acceptor_{io_};
  asio::steady_timer sweep_timer_{io_}, accept_timer_{io_};
  asio::signal_set signals_{io_}, hangup_{io_};
  std::function<void()> signal_action_;
  Connections connections_;
  int32_t max_connections_ = 0, port_ = 0;
  bool shutting_down_ = false;
  Clock::time_point shut_down_by_;
};

// ServerImpl

Status ServerImpl::open_tls() {
  if (options_.ssl_certificate.empty() != options_.ssl_key.empty()) {
    return fail("both are needed, or none", "--ssl-cert, --ssl-key");
  }
  if (options_.ssl_key.empty()) return {};
  tls_stamp_ = stamp_of(options_);
  auto tls = read_tls(options_, /*may_ask=*/true);
  if (!tls) return fail(std::move(tls.error()));
  tls_ = std::move(*tls);
  return {};
}

// Connections keep the context that they began with.
void ServerImpl::renew_tls() {
  const std::string stamp = stamp_of(options_);
  auto tls = read_tls(options_, /*may_ask=*/false);
  if (!tls) {
    // The next look tries again, since the reason may pass; it is said once.
    if (std::exchange(tls_refused_, stamp) == stamp) return;
    log_warn("the new certificate is not used, the old one stays: " + tls.error().message());
    return;
  }
  tls_ = std::move(*tls);
  tls_stamp_ = stamp;
  tls_refused_.clear();
  log_info("the certificate was read again: --ssl-cert " + options_.ssl_certificate);
}

void ServerImpl::renew_tls_if_changed() {
  const auto now = Clock::now();
  if (now - tls_checked_ < kTlsCheckEvery) return;
  tls_checked_ = now;
  if (stamp_of(options_) != tls_stamp_) renew_tls();
}

void ServerImpl::wait_for_hangup() {
  hangup_.async_wait([this](const error_code& error, int) {
    if (error) return;
    if (tls_) {
      tls_refused_.clear();
      renew_tls();
    } else {
      log_info("SIGHUP: nothing to read again, without --ssl-cert");
    }
    wait_for_hangup();
  });
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
  error = hangup_.add(SIGHUP, error);
  if (error) return fail("cannot wait for SIGHUP: " + error.message(), where);
  wait_for_hangup();
  return {};
}

void ServerImpl::accept() {
  acceptor_.async_accept([this](const error_code& error, tcp::socket socket) {
    if (!acceptor_.is_open()) return;
    if (error) {  // mostly no descriptors left: tries again later
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
  if (tls_) {
    renew_tls_if_changed();
    connection = std::make_shared<StreamConnection<asio::ssl::stream<tcp::socket>>>(
        connections_, remote, asio::ssl::stream<tcp::socket>(std::move(socket), *tls_));
  } else {
    connection =
        std::make_shared<StreamConnection<tcp::socket>>(connections_, remote, std::move(socket));
  }
  if (num_connections() > max_connections_) {
    return tls_ ? connection->cut()
                : connection->refuse_whole(503, "too many connections are open");
  }
  connection->start();
}

void ServerImpl::sweep_later() {
  sweep_timer_.expires_at(in_seconds(kSweepS));
  sweep_timer_.async_wait([this](const error_code& error) {
    if (error) return;
    const auto now = Clock::now();
    for (const auto& connection : connections_.all()) connection->sweep(now);
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

}  // namespace moxie
