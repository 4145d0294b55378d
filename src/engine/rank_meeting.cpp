// Rank 0 listens until all are there; then every two ranks connect, and rank 0 stops listening. A
// connection that says nothing sensible is dropped: it may be anybody's.
#include "engine/rank_meeting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "core/exit_fault.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostHello = 64 << 10, kMostOrder = uint64_t{1} << 30;
constexpr auto kForHello = std::chrono::seconds(5);
constexpr auto kBetweenSigns = std::chrono::seconds(1);
constexpr const char* kHello = "moxie ranks 1";

std::string random_token() {
  std::random_device random;
  std::string token;
  for (int i = 0; i < 4; ++i) token += fmt::format("{:08x}", random());
  return token;
}

// What JSON holds of another process; nothing of another kind.
template <typename T>
std::optional<T> value_of(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end()) return {};
  try {
    return found->get<T>();
  } catch (const Json::exception&) {
    return {};
  }
}
Json parse(const std::string& text) { return Json::parse(text, nullptr, false); }

// The first difference of another rank's terms from these; empty: there is none.
std::string difference(const Json& terms, const Json& theirs, int32_t rank) {
  for (const auto& [name, value] : terms.items()) {
    const auto shown = [](const Json& shown) {
      return shown.is_string() ? shown.get<std::string>() : shown.dump();
    };
    const Json other = theirs.is_object() ? theirs.value(name, Json()) : Json();
    if (other != value)
      return fmt::format("{} is {} on rank {}, {} on rank 0", name, shown(other), rank,
                         shown(value));
  }
  return {};
}

// For rank 0 in place of a meeting: those who come learn why there is none.
void tell_who_comes(const RankWorld& world, const std::string& why) {
  constexpr auto kForAll = std::chrono::seconds(10);  // they may still be opening their files
  const auto listener = RankSocket::listen(world.master_port);
  if (!listener) return;
  log_warn(
      fmt::format("telling the other ranks, which have {} s to come: {}", kForAll.count(), why));
  const auto deadline = Clock::now() + kForAll;
  for (int32_t left = world.size - 1; left > 0;) {
    const auto socket = listener->accept(deadline);
    if (!socket) return;
    const auto until = std::min(deadline, Clock::now() + kForHello);
    const auto text = socket->receive_text(kMostHello, until);
    if (!text || value_of<std::string>(parse(*text), "hello") != kHello) continue;
    static_cast<void>(socket->send_text(Json{{"error", why}}.dump(), until));
    --left;
  }
}

constexpr const char* kSameHint = "start all ranks with the same command and the same build";

// RankFacts in a message.
struct FactWords {
  uint64_t weights_bytes, num_exchanges;
  double exchange_s;
};

}  // namespace

Status RankTalk::send(Kind kind, std::span<const std::byte> bytes) {
  constexpr auto kPatience = std::chrono::seconds(10);
  std::vector<std::byte> message{static_cast<std::byte>(kind)};
  message.insert(message.end(), bytes.begin(), bytes.end());
  const std::lock_guard lock(mutex_);
  return socket_.send_message(message, Clock::now() + kPatience);
}

Result<RankTalk::Message> RankTalk::receive(Clock::time_point deadline) {
  auto bytes = socket_.receive_message(kMostOrder, deadline);
  if (!bytes) return fail(std::move(bytes.error()));
  if (bytes->empty() || bytes->front() > static_cast<std::byte>(Kind::kQuit))
    return fail("a message of no known kind", "ranks", kSameHint);
  Message message{static_cast<Kind>(bytes->front()), {}};
  bytes->erase(bytes->begin());
  message.bytes = std::move(*bytes);
  return message;
}

Result<std::unique_ptr<RankMeeting>> RankMeeting::meet(const RankWorld& world, const Json& terms,
                                                       Json* plan,
                                                       std::chrono::milliseconds patience,
                                                       std::chrono::milliseconds wait) {
  std::unique_ptr<RankMeeting> meeting(new RankMeeting);
  meeting->world_ = world;
  meeting->patience_ = patience;
  meeting->peers_.resize(static_cast<size_t>(world.size));
  const auto deadline = Clock::now() + wait;
  auto status = world.rank == 0 ? meeting->gather(terms, *plan, deadline)
                                : meeting->join(terms, plan, deadline);
  if (!status) return fail(std::move(status.error()));
  meeting->link_ = make_socket_link(world.rank, std::move(meeting->peers_), patience);
  meeting->heard_.assign(meeting->talks_.size(), Clock::now());
  for (const auto& talk : meeting->talks_) meeting->facts_.push_back({.rank = talk->rank()});
  meeting->watch_ = std::thread([m = meeting.get()] { m->watch(); });
  return meeting;
}

// Rank 0.
Status RankMeeting::gather(const Json& terms, const Json& plan, Clock::time_point deadline) {
  auto listener = RankSocket::listen(world_.master_port);
  if (!listener) return fail(std::move(listener.error()));
  const auto size = static_cast<size_t>(world_.size);
  talks_.resize(size - 1);
  std::vector<std::string> hosts(size);
  std::vector<uint16_t> ports(size);
  // Everyone who has come learns why nothing comes of it.
  const auto refuse = [&](const RankSocket* newcomer, const std::string& why) -> Status {
    const std::string text = Json{{"error", why}}.dump();
    if (newcomer != nullptr) static_cast<void>(newcomer->send_text(text, Clock::now() + kForHello));
    for (const auto& talk : talks_)
      if (talk != nullptr)
        static_cast<void>(talk->socket().send_text(text, Clock::now() + kForHello));
    return fail(why, "ranks", kSameHint);
  };
  auto said = Clock::now();
  for (size_t num_there = 1; num_there < size;) {
    auto socket = listener->accept(std::min(deadline, Clock::now() + kForHello));
    if (!socket) {
      std::vector<int32_t> missing;
      for (int32_t rank = 1; rank < world_.size; ++rank)
        if (talks_[static_cast<size_t>(rank) - 1] == nullptr) missing.push_back(rank);
      const std::string who =
          fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
      if (Clock::now() >= deadline) return refuse(nullptr, who + " did not come in time");
      if (Clock::now() - said < kForHello) continue;
      log_warn(fmt::format("waiting for {} on port {}", who, world_.master_port));
      said = Clock::now();
      continue;
    }
    const auto text = socket->receive_text(kMostHello, Clock::now() + kForHello);
    const Json hello = text ? parse(*text) : Json();
    if (value_of<std::string>(hello, "hello") != kHello) {
      log_warn("a connection from " + socket->peer_host() + " that is no rank was dropped");
      continue;
    }
    const int32_t rank = value_of<int32_t>(hello, "rank").value_or(-1);
    const int32_t of = value_of<int32_t>(hello, "size").value_or(-1);
    if (const auto error = value_of<std::string>(hello, "error"))
      return refuse(nullptr, fmt::format("rank {}: {}", rank, *error));
    if (of != world_.size)
      return refuse(&*socket,
                    fmt::format("rank {} is one of {}, rank 0 of {}", rank, of, world_.size));
    if (rank < 1 || rank >= world_.size)
      return refuse(&*socket, fmt::format("there is no rank {} of {}", rank, of));
    auto& talk = talks_[static_cast<size_t>(rank) - 1];
    if (talk != nullptr) return refuse(&*socket, fmt::format("two processes are rank {}", rank));
    if (const auto why = difference(terms, hello.value("terms", Json()), rank); !why.empty())
      return refuse(&*socket, why);
    hosts[static_cast<size_t>(rank)] = socket->peer_host();
    ports[static_cast<size_t>(rank)] = value_of<uint16_t>(hello, "port").value_or(0);
    talk = std::make_unique<RankTalk>(std::move(*socket), rank);
    ++num_there;
  }
  const std::string token = random_token();
  const std::string reply =
      Json{{"hosts", hosts}, {"ports", ports}, {"token", token}, {"plan", plan}}.dump();
  for (const auto& talk : talks_)
    if (auto status = talk->socket().send_text(reply, deadline); !status)
      return fail(fmt::format("rank {}: {}", talk->rank(), status.error().message()), "ranks");
  return connect_all(*listener, hosts, ports, token, deadline);
}

// Another rank.
Status RankMeeting::join(const Json& terms, Json* plan, Clock::time_point deadline) {
  auto listener = RankSocket::listen(0);
  if (!listener) return fail(std::move(listener.error()));
  auto socket = RankSocket::connect(world_.master_host, world_.master_port, deadline);
  if (!socket)
    return fail("rank 0 cannot be reached: " + socket.error().message(),
                fmt::format("{}:{}", world_.master_host, world_.master_port),
                "MASTER_ADDR and MASTER_PORT say where it listens");
  const Json hello = {{"hello", kHello},
                      {"rank", world_.rank},
                      {"size", world_.size},
                      {"port", listener->port()},
                      {"terms", terms}};
  auto status = socket->send_text(hello.dump(), deadline);
  if (!status) return status;
  const auto text = socket->receive_text(kMostHello, deadline);
  if (!text) return fail("rank 0: " + text.error().message(), "ranks");
  const Json reply = parse(*text);
  if (const auto error = value_of<std::string>(reply, "error"))
    return fail(*error, "ranks", kSameHint);
  const auto hosts = value_of<std::vector<std::string>>(reply, "hosts");
  const auto ports = value_of<std::vector<uint16_t>>(reply, "ports");
  const auto token = value_of<std::string>(reply, "token");
  const auto size = static_cast<size_t>(world_.size);
  if (!hosts || !ports || !token || hosts->size() != size || ports->size() != size)
    return fail("rank 0 has answered something else", "ranks", kSameHint);
  *plan = reply.value("plan", Json());
  std::vector<std::string> known = *hosts;
  std::vector<uint16_t> at = *ports;
  known[0] = world_.master_host;
  at[0] = world_.master_port;
  talks_.push_back(std::make_unique<RankTalk>(std::move(*socket), 0));
  return connect_all(*listener, known, at, *token, deadline);
}

// Each connects to those before it, and is connected to by those behind it.
Status RankMeeting::connect_all(const RankSocket& listener, const std::vector<std::string>& hosts,
                                const std::vector<uint16_t>& ports, const std::string& token,
                                Clock::time_point deadline) {
  for (int32_t rank = 0; rank < world_.rank; ++rank) {
    const auto r = static_cast<size_t>(rank);
    auto socket = RankSocket::connect(hosts[r], ports[r], deadline);
    if (!socket)
      return fail(fmt::format("rank {} cannot be reached: {}", rank, socket.error().message()),
                  "ranks");
    const Json hello = {{"token", token}, {"rank", world_.rank}};
    if (auto status = socket->send_text(hello.dump(), deadline); !status) return status;
    peers_[r] = std::move(*socket);
  }
  for (int32_t missing = world_.size - 1 - world_.rank; missing > 0;) {
    auto socket = listener.accept(deadline);
    if (!socket) return fail("ranks did not connect in time", "ranks");
    const auto text = socket->receive_text(kMostHello, Clock::now() + kForHello);
    const Json hello = text ? parse(*text) : Json();
    const int32_t rank = value_of<int32_t>(hello, "rank").value_or(-1);
    if (value_of<std::string>(hello, "token") != token || rank <= world_.rank ||
        rank >= world_.size || peers_[static_cast<size_t>(rank)].is_open()) {
      log_warn("a connection from " + socket->peer_host() + " that is no rank was dropped");
      continue;
    }
    peers_[static_cast<size_t>(rank)] = std::move(*socket);
    --missing;
  }
  return {};
}

void RankMeeting::stay_away(const RankWorld& world, const std::string& why) {
  if (world.rank == 0) return tell_who_comes(world, "rank 0: " + why);
  const auto deadline = Clock::now() + kForHello;
  const auto socket = RankSocket::connect(world.master_host, world.master_port, deadline);
  if (!socket) return;
  const Json hello = {
      {"hello", kHello}, {"rank", world.rank}, {"size", world.size}, {"error", why}};
  static_cast<void>(socket->send_text(hello.dump(), deadline));
}

// The others end well only if they are told so.
void RankMeeting::say_end() {
  if (world_.rank != 0 || link_ == nullptr || !link_->status()) return;
  if (std::exchange(has_said_end_, true)) return;
  const std::string fault = exit_fault();
  const auto kind = fault.empty() ? RankTalk::Kind::kQuit : RankTalk::Kind::kFault;
  const std::string text = fault.empty() ? "" : "rank 0: " + fault;
  for (const auto& talk : talks_) static_cast<void>(talk->send(kind, text));
}

RankMeeting::~RankMeeting() {
  say_end();
  ends_.store(true);
  if (watch_.joinable()) watch_.join();
}

std::string RankMeeting::name_of(const RankTalk& talk) const {
  return fmt::format("rank {} ({})", talk.rank(), talk.host());
}

// Says that this rank is alive; rank 0 also hears the others.
void RankMeeting::watch() {
  constexpr int kLookMs = 100;
  auto said = Clock::now();
  while (!ends_.load()) {
    if (Clock::now() - said >= kBetweenSigns) {
      said = Clock::now();
      for (const auto& talk : talks_) static_cast<void>(send_facts(*talk, RankTalk::Kind::kAlive));
    }
    if (world_.rank != 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kLookMs));
      continue;
    }
    std::vector<pollfd> looked;
    for (const auto& talk : talks_)
      looked.push_back({.fd = talk->socket().fd(), .events = POLLIN, .revents = 0});
    ::poll(looked.data(), looked.size(), kLookMs);
    if (!link_->status()) {
      // What the fault was; they end by it.
      const std::string text = link_->status().error().message();
      for (const auto& talk : talks_) static_cast<void>(talk->send(RankTalk::Kind::kFault, text));
      return;
    }
    for (size_t i = 0; i < talks_.size(); ++i) {
      if (looked[i].revents != 0) {
        heard_[i] = Clock::now();
        hear(*talks_[i]);
      } else if (Clock::now() - heard_[i] > patience_) {
        link_->set_fault(fmt::format("{} has not answered for {:.0f} s", name_of(*talks_[i]),
                                     std::chrono::duration<double>(patience_).count()));
      }
    }
  }
}

void RankMeeting::hear(RankTalk& talk) {
  const auto message = talk.receive(Clock::now() + patience_);
  if (!message) {
    if (!ends_.load()) link_->set_fault(name_of(talk) + ": " + message.error().message());
  } else if (message->kind == RankTalk::Kind::kFault) {
    link_->set_fault(name_of(talk) + ": " + message->text());
  } else if (message->kind == RankTalk::Kind::kAlive || message->kind == RankTalk::Kind::kLoaded) {
    keep_facts(talk, message->bytes);
    if (message->kind == RankTalk::Kind::kLoaded) num_loaded_.fetch_add(1);
  }
}

Status RankMeeting::send_facts(RankTalk& talk, RankTalk::Kind kind) {
  const RankFacts facts = link_->facts();
  const FactWords words{facts.weights_bytes, facts.num_exchanges, facts.exchange_s};
  return talk.send(kind, std::as_bytes(std::span(&words, 1)));
}

void RankMeeting::keep_facts(const RankTalk& talk, std::span<const std::byte> bytes) {
  FactWords words{};
  if (bytes.size() != sizeof(words)) {
    link_->set_fault(name_of(talk) + ": not what a rank of this build says of itself");
    return;
  }
  std::memcpy(&words, bytes.data(), sizeof(words));
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < talks_.size(); ++i)
    if (talks_[i].get() == &talk)
      facts_[i] = {talk.rank(), words.weights_bytes, words.num_exchanges, words.exchange_s};
}

std::vector<RankFacts> RankMeeting::facts() const {
  std::vector<RankFacts> all = {link_->facts()};
  const std::lock_guard lock(mutex_);
  all.insert(all.end(), facts_.begin(), facts_.end());
  std::ranges::sort(all, {}, &RankFacts::rank);
  return all;
}

Status RankMeeting::await_loaded() {
  while (num_loaded_.load() < world_.size - 1) {
    if (auto status = link_->status(); !status) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return link_->status();
}

void RankMeeting::say_loaded() {
  static_cast<void>(send_facts(*talks_.front(), RankTalk::Kind::kLoaded));
}

Status RankMeeting::order(std::span<const std::byte> bytes) {
  if (auto status = link_->status(); !status) return status;
  for (const auto& talk : talks_) {
    if (auto status = talk->send(RankTalk::Kind::kOrder, bytes); !status) {
      link_->set_fault(name_of(*talk) + ": " + status.error().message());
      return link_->status();
    }
  }
  return {};
}

Result<std::optional<std::vector<std::byte>>> RankMeeting::next_order() {
  RankTalk& talk = *talks_.front();
  for (;;) {
    auto message = talk.receive(Clock::now() + patience_);
    if (!message) {
      link_->set_fault(name_of(talk) + ": " + message.error().message());
      return fail(link_->status().error());
    }
    switch (message->kind) {
      case RankTalk::Kind::kOrder:
        return std::optional(std::move(message->bytes));
      case RankTalk::Kind::kQuit:
        return std::optional<std::vector<std::byte>>();
      case RankTalk::Kind::kFault:
        link_->set_fault(message->text());
        return fail(link_->status().error());
      case RankTalk::Kind::kAlive:
      case RankTalk::Kind::kLoaded:
        break;
    }
  }
}

void RankMeeting::end_with_fault(const std::string& text) {
  if (world_.rank != 0) static_cast<void>(talks_.front()->send(RankTalk::Kind::kFault, text));
  link_->set_fault(text);
}

}  // namespace moxie
