#include "server/kv_event_history.h"

#include <algorithm>
#include <utility>

namespace moxie {

KvEventHistory::Batch KvEventHistory::add(std::vector<CacheEvent> events, double ts) {
  Batch batch{next_number_++, std::make_shared<const std::string>(encode_batch(events, ts))};
  mirror_.apply(std::move(events));
  kept_.push_back(batch);
  kept_bytes_ += batch.payload->size();
  while (!kept_.empty() && (kept_.size() > most_batches_ || kept_bytes_ > most_bytes_)) {
    kept_bytes_ -= kept_.front().payload->size();
    kept_.pop_front();
  }
  if (snapshot_ && snapshot_->number + 1 < oldest()) snapshot_.reset();
  return batch;
}

std::vector<KvEventHistory::Batch> KvEventHistory::from(uint64_t first, double ts) {
  std::vector<Batch> batches;
  if (first < oldest()) {
    if (!snapshot_) {
      const auto payload =
          std::make_shared<const std::string>(encode_batch(mirror_.snapshot(), ts));
      snapshot_ = {next_number_ - 1, payload};
      ++num_snapshots_;
    }
    batches.push_back(*snapshot_);
    first = snapshot_->number + 1;
  }
  const auto begin = std::partition_point(kept_.begin(), kept_.end(),
                                          [&](const Batch& batch) { return batch.number < first; });
  batches.insert(batches.end(), begin, kept_.end());
  return batches;
}

}  // namespace moxie
