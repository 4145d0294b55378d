// Numbers, keeps and sends events.
#include "server/response_events.h"

#include "server/endpoints.h"

namespace moxie {
namespace {

// A response keeps at most this many bytes of events, since many responses run at once.
constexpr uint64_t kMaxKeptBytes = 4 << 20;

}  // namespace

void ResponseEvents::add(const std::string& type, const Json& fields) {
  Json document = {{"type", type}, {"sequence_number", first_ + events_.size()}};
  document.update(fields);
  events_.push_back(named_sse(document));
  bytes_ += events_.back().size();
}

void ResponseEvents::flush() {
  for (Listener& listener : listeners_) send_to(listener);
  std::erase_if(listeners_, [](const Listener& listener) { return listener.exchange->done(); });
  if (keep_ && bytes_ <= kMaxKeptBytes) return;
  first_ += events_.size();
  events_.clear();
  bytes_ = 0;
  keep_ = false;
}

void ResponseEvents::end() {
  flush();
  ended_ = true;
  for (const Listener& listener : listeners_) listener.exchange->end_stream();
  listeners_.clear();
}

void ResponseEvents::listen(std::shared_ptr<Exchange> exchange, uint64_t next) {
  exchange->begin_stream({});
  Listener listener{.exchange = std::move(exchange), .next = next};
  send_to(listener);
  if (ended_) return listener.exchange->end_stream();
  listeners_.push_back(std::move(listener));
}

void ResponseEvents::send_to(Listener& listener) const {
  std::string out;
  for (; listener.next < first_ + events_.size(); ++listener.next) {
    if (listener.next >= first_) out += events_[listener.next - first_];
  }
  if (!out.empty()) listener.exchange->send(out);
}

}  // namespace moxie
