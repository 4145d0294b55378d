// The store.
#include "server/response_store.h"

namespace moxie {

void ResponseStore::put(const std::string& id, StoredPtr response) {
  const std::lock_guard lock(mutex_);
  erase_locked(id);
  const uint64_t bytes = response->bytes;
  order_.push_back({id, std::move(response), bytes});
  entries_[id] = std::prev(order_.end());
  bytes_ += bytes;
  make_room();
}

StoredPtr ResponseStore::find(const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  order_.splice(order_.end(), order_, found->second);
  return found->second->response;
}

bool ResponseStore::erase(const std::string& id) {
  const std::lock_guard lock(mutex_);
  return erase_locked(id);
}

size_t ResponseStore::count() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

uint64_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

bool ResponseStore::erase_locked(const std::string& id) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return false;
  bytes_ -= found->second->bytes;
  order_.erase(found->second);
  entries_.erase(found);
  return true;
}

void ResponseStore::make_room() {
  for (auto it = order_.begin(); it != order_.end();) {
    if (order_.size() <= limits_.count && bytes_ <= limits_.bytes) return;
    const auto next = std::next(it);
    if (!it->response->cancel) {
      bytes_ -= it->bytes;
      entries_.erase(it->id);
      order_.erase(it);
    }
    it = next;
  }
}

}  // namespace moxie
