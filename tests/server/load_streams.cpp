// A client that costs next to nothing: so many streams at once over one thread, on the machine
// whose cores it shares with the server. Prints one JSON document: the rate of tokens while all
// streams decode (from the first token of the last to begin to the end of the first to end), and,
// given the server's process, the processor time of each of its threads in that time.
//
//   load_streams chat|completions PORT STREAMS TOKENS [PID]
//
// A completion's tokens are an event each; in a chat those of harmony's headers are none.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Stream {
  int socket = -1;
  int64_t num_events = 0;
  bool after_line = false;  // the last byte read ended a line
  std::string tail;         // of the answer
};

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "load_streams: %s\n", why.c_str());
  std::exit(1);
}

std::string request_of(bool is_chat, int number, int num_tokens) {
  const std::string text = "\"What is " + std::to_string(number) + " + 25?\"";
  const std::string body =
      (is_chat ? "{\"messages\":[{\"role\":\"user\",\"content\":" + text + "}]"
               : "{\"prompt\":" + text) +
      ",\"stream\":true,\"stream_options\":{\"include_usage\":true},\"temperature\":1,"
      "\"seed\":" +
      std::to_string(number) + ",\"ignore_eos\":true,\"max_tokens\":" + std::to_string(num_tokens) +
      "}";
  return std::string("POST /v1/") + (is_chat ? "chat/" : "") +
         "completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
         "Connection: close\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

int connect_to(uint16_t port) {
  const int made = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(made, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    give_up("no server on port " + std::to_string(port));
  }
  return made;
}

double own_cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// Seconds on a core by thread: "name-id".
std::map<std::string, double> thread_seconds(const std::string& pid) {
  std::map<std::string, double> seconds;
  if (pid.empty()) return seconds;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task")) {
    std::string name;
    double ns = 0;
    std::getline(std::ifstream(task.path() / "comm"), name);
    std::ifstream(task.path() / "schedstat") >> ns;
    seconds[name + "-" + task.path().filename().string()] = ns * 1e-9;
  }
  return seconds;
}

// What the streams have done at one moment.
struct Moment {
  Clock::time_point at = Clock::now();
  int64_t num_events = 0;
  double own_s = own_cpu_s();
  std::map<std::string, double> threads;
};

class Load {
 public:
  Load(bool is_chat, uint16_t port, int num_streams, int num_tokens, std::string pid)
      : pid_(std::move(pid)),
        num_more_events_(is_chat ? 4 : 3),
        streams_(static_cast<size_t>(num_streams)),
        epoll_(epoll_create1(0)) {
    for (size_t i = 0; i < streams_.size(); ++i) {
      streams_[i].socket = connect_to(port);
      epoll_event wanted{.events = EPOLLIN, .data = {.u64 = i}};
      epoll_ctl(epoll_, EPOLL_CTL_ADD, streams_[i].socket, &wanted);
    }
    for (size_t i = 0; i < streams_.size(); ++i) {
      const std::string request = request_of(is_chat, static_cast<int>(i), num_tokens);
      if (write(streams_[i].socket, request.data(), request.size()) !=
          static_cast<ssize_t>(request.size())) {
        give_up("a request was not taken");
      }
    }
  }

  void run() {
    std::array<epoll_event, 64> ready{};
    while (num_ended_ < streams_.size()) {
      const int count = epoll_wait(epoll_, ready.data(), static_cast<int>(ready.size()), 30'000);
      if (count <= 0) give_up("nothing for 30 s");
      for (int i = 0; i < count; ++i) read_from(streams_[ready[static_cast<size_t>(i)].data.u64]);
    }
  }

  void print() const {
    if (first_end_.num_events <= all_began_.num_events) {
      give_up("no time at which all streams decoded: more tokens, please");
    }
    int64_t num_tokens = 0;
    for (const Stream& stream : streams_) num_tokens += usage_of(stream.tail);
    const double seconds = std::chrono::duration<double>(first_end_.at - all_began_.at).count();
    const double tokens_an_event =
        static_cast<double>(num_tokens) /
        static_cast<double>(num_events_ - num_more_events_ * static_cast<int64_t>(streams_.size()));
    const double tokens =
        tokens_an_event * static_cast<double>(first_end_.num_events - all_began_.num_events);
    std::printf(
        "{\"tok_s\": %.1f, \"seconds\": %.4f, \"tokens\": %.0f, \"all_tokens\": %lld, "
        "\"tokens_an_event\": %.4f, \"client_cpu_s\": %.4f, \"threads\": {",
        tokens / seconds, seconds, tokens, static_cast<long long>(num_tokens), tokens_an_event,
        first_end_.own_s - all_began_.own_s);
    const char* separator = "";
    for (const auto& [name, until] : first_end_.threads) {
      const auto from = all_began_.threads.find(name);
      if (from == all_began_.threads.end()) continue;
      std::printf("%s\"%s\": %.4f", separator, name.c_str(), until - from->second);
      separator = ", ";
    }
    std::puts("}}");
  }

 private:
  static int64_t usage_of(const std::string& tail) {
    constexpr std::string_view kField = "\"completion_tokens\":";
    const size_t at = tail.rfind(kField);
    if (at == std::string::npos || tail.find("data: [DONE]") == std::string::npos) {
      give_up("a stream did not end well: " + tail);
    }
    return std::atoll(tail.c_str() + at + kField.size());
  }

  Moment now() const {
    Moment moment;
    moment.num_events = num_events_;
    moment.threads = thread_seconds(pid_);
    return moment;
  }

  void read_from(Stream& stream) {
    const ssize_t count = read(stream.socket, buffer_.data(), buffer_.size());
    if (count <= 0) {
      close(stream.socket);
      ++num_ended_;
      return;
    }
    const std::string_view bytes(buffer_.data(), static_cast<size_t>(count));
    const int64_t before = stream.num_events;
    count_events(bytes, &stream);
    num_events_ += stream.num_events - before;
    constexpr size_t kTail = 2048;
    stream.tail.append(bytes.substr(bytes.size() - std::min(bytes.size(), kTail)));
    if (stream.tail.size() > 2 * kTail) stream.tail.erase(0, stream.tail.size() - kTail);
    if (before < 2 && stream.num_events >= 2 && ++num_begun_ == streams_.size()) all_began_ = now();
    if (!has_end_ && bytes.find("\"finish_reason\":\"") != bytes.npos) {
      has_end_ = true;
      first_end_ = now();
    }
  }

  // An event ends with an empty line.
  static void count_events(std::string_view bytes, Stream* stream) {
    const char* at = bytes.data();
    const char* const end = at + bytes.size();
    if (stream->after_line && *at == '\n') ++stream->num_events;
    stream->after_line = bytes.back() == '\n';
    while (at < end) {
      at = static_cast<const char*>(std::memchr(at, '\n', static_cast<size_t>(end - at)));
      if (at == nullptr) return;
      ++at;
      if (at < end && *at == '\n') ++stream->num_events;
    }
  }

  const std::string pid_;
  const int num_more_events_;  // a stream: the role, the end, the usage, [DONE]
  std::vector<Stream> streams_;
  const int epoll_;
  std::array<char, 65536> buffer_{};
  size_t num_begun_ = 0, num_ended_ = 0;
  int64_t num_events_ = 0;
  bool has_end_ = false;
  Moment all_began_, first_end_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) give_up("chat|completions PORT STREAMS TOKENS [PID]");
  Load load(std::string_view(argv[1]) == "chat", static_cast<uint16_t>(std::atoi(argv[2])),
            std::atoi(argv[3]), std::atoi(argv[4]), argc > 5 ? argv[5] : "");
  load.run();
  load.print();
  return 0;
}
