#include "lab/serve_bench_client.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/shown_address.h"
#include "hub/curl_api.h"

namespace moxie {
namespace {

constexpr size_t kMaxErrorBytes = size_t{1} << 16;    // of an error's body: its beginning will do
constexpr size_t kMaxAnswerBytes = size_t{64} << 20;  // of a whole answer
constexpr double kSweepS = 0.05;                      // between looks at deadlines and `stop`
constexpr int kRunawayFactor = 2, kRunawayEvents = 64;

double clamped_s(curl_off_t seconds) {
  return static_cast<double>(std::clamp<curl_off_t>(seconds, 0, 3600));
}

}  // namespace

Result<Endpoint> parse_endpoint(const std::string& url, const std::string& api_key) {
  const size_t host = url.find("://");
  const bool is_http = url.starts_with("http://") || url.starts_with("https://");
  const auto is_bad = [](unsigned char c) { return c <= 0x20 || c >= 0x7f; };
  if (!is_http || url.size() == host + 3 || std::any_of(url.begin(), url.end(), is_bad) ||
      url.find_first_of("?#") != url.npos) {
    return fail("'" + url + "' is no address of an endpoint", "--url",
                "such as http://127.0.0.1:8000 or https://host/v1");
  }
  if (std::any_of(api_key.begin(), api_key.end(), is_bad))
    return fail("the key holds blanks, control characters or other than ASCII", "--api-key");
  Endpoint endpoint{.url = shown_address(url), .base = url, .api_key = api_key};
  while (endpoint.base.ends_with('/')) endpoint.base.pop_back();
  const bool has_path = endpoint.base.find('/', host + 3) != url.npos;
  if (!has_path) endpoint.base += "/v1";
  endpoint.root = endpoint.base;
  if (endpoint.root.ends_with("/v1")) endpoint.root.resize(endpoint.root.size() - 3);
  return endpoint;
}

// One request under way.
struct ServeClient::Transfer {
  const ServeClient* client = nullptr;
  CURL* handle = nullptr;
  curl_slist* headers = nullptr;
  std::string url, body, text;
  int64_t number = 0, num_tokens = 0;
  bool is_stream = false, is_done = false, misses_token_ids = false;
  double last_byte_s = 0;
  int64_t num_token_ids = 0;
  SseReader reader;
  std::vector<std::string> payloads;
  StreamResult result;
  std::array<char, CURL_ERROR_SIZE> detail{};

  bool refuse(std::string kind, std::string message) {
    result.error = {std::move(kind), std::move(message)};
    return false;
  }
  bool take(std::string_view bytes, double now_s);
  bool take_payloads(double now_s);
  bool take_chunk(const StreamChunk& chunk, double now_s);
};

bool ServeClient::Transfer::take(std::string_view bytes, double now_s) {
  last_byte_s = now_s;
  if (is_stream && result.status == 200) {
    if (text.empty()) text = bytes.substr(0, 64);  // shown where no event comes
    if (auto status = reader.read(bytes, &payloads); !status)
      return refuse("bad_stream", status.error().message());
    return take_payloads(now_s);
  }
  const size_t limit = is_stream ? kMaxErrorBytes : kMaxAnswerBytes;
  if (text.size() + bytes.size() > limit) {
    if (!is_stream)
      return refuse("bad_stream", fmt::format("the answer is longer than {} bytes", limit));
    bytes = bytes.substr(0, limit - text.size());
  }
  text += bytes;
  return true;
}

bool ServeClient::Transfer::take_payloads(double now_s) {
  for (const std::string& payload : payloads) {
    if (is_done) break;  // nothing counts behind the end
    auto chunk = read_stream_chunk(payload);
    if (!chunk) return refuse("bad_stream", chunk.error().message());
    if (!take_chunk(*chunk, now_s)) return false;
  }
  payloads.clear();
  return true;
}

bool ServeClient::Transfer::take_chunk(const StreamChunk& chunk, double now_s) {
  if (chunk.is_done) {
    is_done = true;
    result.end_s = now_s;
    return true;
  }
  if (!chunk.error.empty()) return refuse("error_event", "the endpoint says: " + chunk.error);
  if (chunk.usage) result.usage = *chunk.usage;
  if (!chunk.finish_reason.empty()) result.finish_reason = chunk.finish_reason;
  if (chunk.has_choice && result.first_response_s < 0) result.first_response_s = now_s;
  num_token_ids += std::max<int64_t>(0, chunk.num_token_ids);
  if (!chunk.has_content) return true;
  misses_token_ids |= chunk.num_token_ids < 0;
  result.content_s.push_back(now_s);
  if (result.content_s.size() == 1) result.num_first_token_ids = num_token_ids;
  result.num_last_token_ids = num_token_ids;
  const auto num_events = static_cast<int64_t>(result.content_s.size());
  if (num_events > kRunawayFactor * num_tokens + kRunawayEvents) {
    return refuse("runaway", fmt::format("{} events with text, and no end, for {} tokens asked for",
                                         num_events, num_tokens));
  }
  return true;
}

// The event loop: libcurl names the sockets and its next deadline, epoll waits for them.
struct ServeClient::Loop {
  const hub::CurlApi* curl = nullptr;
  CURLM* multi = nullptr;
  int epoll = -1;
  double deadline_s = -1;  // of libcurl; -1: none
  double read_s = 0;       // when the socket was ready that is read now
  std::vector<CURL*> idle;
  std::string no_proxy;
};

namespace {

int on_socket(CURL*, curl_socket_t socket, int what, void* epoll, void*) {
  const int fd = *static_cast<int*>(epoll);
  if (what == CURL_POLL_REMOVE) {
    epoll_ctl(fd, EPOLL_CTL_DEL, socket, nullptr);
    return 0;
  }
  epoll_event event{};
  event.data.fd = socket;
  if ((what & CURL_POLL_IN) != 0) event.events |= EPOLLIN;
  if ((what & CURL_POLL_OUT) != 0) event.events |= EPOLLOUT;
  if (epoll_ctl(fd, EPOLL_CTL_ADD, socket, &event) != 0 && errno == EEXIST)
    epoll_ctl(fd, EPOLL_CTL_MOD, socket, &event);
  return 0;
}

// Loopback never goes through a proxy; the rest as the environment says.
std::string no_proxy_list() {
  std::string list = "localhost,127.0.0.1,::1";
  for (const char* name : {"no_proxy", "NO_PROXY"}) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0')
      return list + "," + value;
  }
  return list;
}

RequestError error_of(CURLcode code, const std::string& detail, bool has_answer) {
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return {"connect", detail + " (is the server running, and is the address right?)"};
    case CURLE_OPERATION_TIMEDOUT:
      return {"connect", "no connection in time: " + detail};
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return {"tls", detail};
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
      return {"no_http", "what answers is no HTTP server: " + detail};
    default:
      return {"closed", has_answer ? "the connection ended within the answer: " + detail
                                   : "the connection ended without an answer: " + detail};
  }
}

}  // namespace

ServeClient::ServeClient(const ClientLimits& limits, const std::atomic<bool>& stop)
    : limits_(limits), stop_(stop), epoch_(Clock::now()), loop_(std::make_unique<Loop>()) {}

Result<std::unique_ptr<ServeClient>> ServeClient::make(const ClientLimits& limits,
                                                       const std::atomic<bool>& stop) {
  auto curl = hub::curl_api();
  if (!curl) return fail(curl.error());
  std::unique_ptr<ServeClient> client(new ServeClient(limits, stop));
  Loop* loop = client->loop_.get();
  loop->curl = *curl;
  loop->no_proxy = no_proxy_list();
  loop->multi = (*curl)->multi_init();
  loop->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (loop->multi == nullptr || loop->epoll < 0)
    return fail(std::string("cannot begin to wait for sockets: ") + std::strerror(errno), "client");
  const auto on_timer = +[](CURLM*, long timeout_ms, void* self) {
    auto* owner = static_cast<ServeClient*>(self);
    owner->loop_->deadline_s =
        timeout_ms < 0 ? -1 : owner->now_s() + static_cast<double>(timeout_ms) / 1e3;
    return 0;
  };
  const auto set = [&](CURLMoption option, auto value) {
    loop->curl->multi_setopt(loop->multi, option, value);
  };
  set(CURLMOPT_SOCKETFUNCTION, &on_socket);
  set(CURLMOPT_SOCKETDATA, &loop->epoll);
  set(CURLMOPT_TIMERFUNCTION, on_timer);
  set(CURLMOPT_TIMERDATA, client.get());
  set(CURLMOPT_MAXCONNECTS, 4096L);
  return client;
}

ServeClient::~ServeClient() {
  if (loop_->curl == nullptr) return;
  for (auto& [handle, transfer] : active_) {
    loop_->curl->multi_remove_handle(loop_->multi, handle);
    loop_->curl->slist_free_all(transfer->headers);
    loop_->curl->easy_cleanup(handle);
  }
  for (CURL* handle : loop_->idle) loop_->curl->easy_cleanup(handle);
  if (loop_->multi != nullptr) loop_->curl->multi_cleanup(loop_->multi);
  if (loop_->epoll >= 0) ::close(loop_->epoll);
}

Status ServeClient::begin(std::unique_ptr<Transfer> transfer) {
  const hub::CurlApi& curl = *loop_->curl;
  Transfer* t = transfer.get();
  if (loop_->idle.empty()) {
    t->handle = curl.easy_init();
  } else {
    t->handle = loop_->idle.back();
    loop_->idle.pop_back();
  }
  if (t->handle == nullptr) return fail("libcurl has no memory", "client");
  t->client = this;
  curl.easy_reset(t->handle);
  const auto set = [&](CURLoption option, auto value) {
    curl.easy_setopt(t->handle, option, value);
  };
  const auto on_body = +[](char* data, size_t size, size_t count, void* self) -> size_t {
    auto* one = static_cast<Transfer*>(self);
    if (one->result.status == 0) {
      long status = 0;
      one->client->loop_->curl->easy_getinfo(one->handle, CURLINFO_RESPONSE_CODE, &status);
      one->result.status = static_cast<int>(status);
    }
    // libcurl calls for every chunk of the encoding: those of one read came together.
    return one->take({data, size * count}, one->client->loop_->read_s) ? size * count : 0;
  };
  set(CURLOPT_URL, t->url.c_str());
  set(CURLOPT_USERAGENT, "moxie/" MOXIE_VERSION);
  set(CURLOPT_HTTPHEADER, t->headers);
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_NOPROXY, loop_->no_proxy.c_str());
  set(CURLOPT_ERRORBUFFER, t->detail.data());
  set(CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(std::ceil(1e3 * limits_.connect_s)));
  set(CURLOPT_WRITEFUNCTION, on_body);
  set(CURLOPT_WRITEDATA, t);
  set(CURLOPT_PRIVATE, t);
  if (!t->body.empty()) {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(t->body.size()));
    set(CURLOPT_POSTFIELDS, t->body.data());
  }
  t->result.start_s = t->last_byte_s = now_s();
  CURL* const handle = t->handle;
  if (curl.multi_add_handle(loop_->multi, handle) != CURLM_OK) {
    curl.slist_free_all(t->headers);
    curl.easy_cleanup(handle);
    return fail("libcurl refuses a request", "client");
  }
  active_[handle] = std::move(transfer);
  return {};
}

namespace {

curl_slist* headers_of(const hub::CurlApi& curl, const Endpoint& endpoint) {
  // Without "Expect:" libcurl asks before it sends a long body.
  curl_slist* headers = curl.slist_append(nullptr, "Content-Type: application/json");
  headers = curl.slist_append(headers, "Expect:");
  if (!endpoint.api_key.empty())
    headers = curl.slist_append(headers, ("Authorization: Bearer " + endpoint.api_key).c_str());
  return headers;
}

}  // namespace

Status ServeClient::start(int64_t number, const StreamRequest& request) {
  auto transfer = std::make_unique<Transfer>();
  transfer->number = number;
  transfer->is_stream = true;
  transfer->url = request.endpoint->base + request.path;
  transfer->body = request.body;
  transfer->num_tokens = request.num_tokens;
  transfer->headers = headers_of(*loop_->curl, *request.endpoint);
  if (auto status = begin(std::move(transfer)); !status) return status;
  turn(0);  // sends it at once
  return {};
}

void ServeClient::turn(double seconds) {
  const double now = now_s();
  double wait_s = std::min(seconds, kSweepS);
  if (loop_->deadline_s >= 0) wait_s = std::clamp(loop_->deadline_s - now, 0.0, wait_s);
  std::array<epoll_event, 256> events;
  const int count = epoll_wait(loop_->epoll, events.data(), static_cast<int>(events.size()),
                               static_cast<int>(std::ceil(1e3 * wait_s)));
  int num_running = 0;
  for (int i = 0; i < count; ++i) {
    const uint32_t what = events[static_cast<size_t>(i)].events;
    const int mask = ((what & EPOLLIN) != 0 ? CURL_CSELECT_IN : 0) |
                     ((what & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0) |
                     ((what & (EPOLLERR | EPOLLHUP)) != 0 ? CURL_CSELECT_ERR : 0);
    loop_->read_s = now_s();
    loop_->curl->multi_socket_action(loop_->multi, events[static_cast<size_t>(i)].data.fd, mask,
                                     &num_running);
  }
  if (loop_->deadline_s >= 0 && now_s() >= loop_->deadline_s) {
    loop_->deadline_s = -1;
    loop_->read_s = now_s();
    loop_->curl->multi_socket_action(loop_->multi, CURL_SOCKET_TIMEOUT, 0, &num_running);
  }
  collect_done();
  end_overdue();
}

void ServeClient::collect_done() {
  int num_left = 0;
  while (const CURLMsg* message = loop_->curl->multi_info_read(loop_->multi, &num_left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const auto found = active_.find(message->easy_handle);
    CHECK(found != active_.end());
    end(found->second.get(), message->data.result);
  }
}

void ServeClient::end_overdue() {
  const double now = now_s();
  const bool stops = stop_.load();
  if (!stops && now < next_sweep_s_) return;
  next_sweep_s_ = now + kSweepS;
  std::vector<Transfer*> overdue;
  for (auto& [handle, transfer] : active_) {
    Transfer* t = transfer.get();
    if (stops) {
      t->refuse("interrupted", "interrupted");
    } else if (now - t->result.start_s > limits_.total_s) {
      t->refuse("timeout",
                fmt::format("no end within {:g} s; {} events with text had come (--timeout)",
                            limits_.total_s, t->result.content_s.size()));
    } else if (now - t->last_byte_s > limits_.stall_s) {
      t->refuse("stalled", fmt::format("not a byte for {:g} s; {} events with text had come "
                                       "(--stall-timeout)",
                                       limits_.stall_s, t->result.content_s.size()));
    } else {
      continue;
    }
    overdue.push_back(t);
  }
  for (Transfer* t : overdue) end(t, CURLE_OK);
}

// Takes a request out of libcurl, and finds out how it ended.
void ServeClient::end(Transfer* t, int code) {
  const hub::CurlApi& curl = *loop_->curl;
  const double now = now_s();
  StreamResult* result = &t->result;
  long status = 0;
  curl_off_t retry_after_s = 0;
  curl.easy_getinfo(t->handle, CURLINFO_RESPONSE_CODE, &status);
  curl.easy_getinfo(t->handle, CURLINFO_RETRY_AFTER, &retry_after_s);
  result->status = static_cast<int>(status);
  result->retry_after_s = clamped_s(retry_after_s);
  if (t->is_stream && status == 200 && result->error.kind.empty()) {
    t->reader.finish(&t->payloads);
    t->take_payloads(now);
  }
  if (result->end_s < 0) result->end_s = now;
  const std::string detail = t->detail[0] != '\0' ? std::string(t->detail.data())
                                                  : curl.easy_strerror(static_cast<CURLcode>(code));
  // A connection that breaks behind the end of the answer took nothing away.
  if (result->error.kind.empty() && code != CURLE_OK && !t->is_done) {
    result->error = error_of(static_cast<CURLcode>(code), detail, status != 0);
  } else if (result->error.kind.empty() && t->is_stream && status != 200) {
    result->error = {fmt::format("http_{}", status),
                     fmt::format("status {}: {}", status, error_text(t->text))};
    if (result->retry_after_s > 0)
      result->error.message += fmt::format(" (Retry-After: {} s)", result->retry_after_s);
  } else if (result->error.kind.empty() && t->is_stream && !t->is_done) {
    const bool is_empty = result->first_response_s < 0;
    result->error = {
        is_empty ? "no_content" : "bad_stream",
        is_empty
            ? "the answer holds no event; it begins: " + error_text(t->text)
            : "the stream ended without [DONE]" +
                  std::string(result->finish_reason.empty() ? " and without a finish_reason" : "")};
  }
  if (t->misses_token_ids || result->content_s.empty())
    result->num_first_token_ids = result->num_last_token_ids = 0;
  else if (t->num_token_ids > 0)
    result->num_token_ids = t->num_token_ids;
  curl.multi_remove_handle(loop_->multi, t->handle);
  curl.slist_free_all(t->headers);
  t->headers = nullptr;
  loop_->idle.push_back(t->handle);
  const auto found = active_.find(t->handle);
  ended_.push_back(std::move(found->second));
  active_.erase(found);
}

Status ServeClient::wait(double seconds, std::vector<std::pair<int64_t, StreamResult>>* ended) {
  const double until = now_s() + seconds;
  while (ended_.empty()) {
    turn(std::max(0.0, until - now_s()));
    if (now_s() >= until || stop_.load()) break;
  }
  for (auto& transfer : ended_) ended->emplace_back(transfer->number, std::move(transfer->result));
  ended_.clear();
  return {};
}

ServeClient::Answer ServeClient::ask(const Endpoint& endpoint, const std::string& url,
                                     const std::string& body) {
  CHECK(active_.empty() && ended_.empty());
  auto transfer = std::make_unique<Transfer>();
  transfer->url = url;
  transfer->body = body;
  transfer->headers = headers_of(*loop_->curl, endpoint);
  Answer answer;
  if (auto status = begin(std::move(transfer)); !status) {
    answer.error = {"client", status.error().message()};
    return answer;
  }
  while (ended_.empty()) turn(kSweepS);
  Transfer& done = *ended_.front();
  answer = {.status = done.result.status,
            .body = std::move(done.text),
            .seconds = done.result.end_s - done.result.start_s,
            .error = done.result.error};
  ended_.clear();
  return answer;
}

}  // namespace moxie
