// Several threads, each with a connection, that fetch blobs piece by piece.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hub/cache.h"
#include "hub/http.h"
#include "hub/partial_blob.h"
#include "hub/pull.h"
#include "hub/retry.h"

namespace moxie::hub {

class Download {
 public:
  struct Target {
    RepoFile file;
    FileStatus status = FileStatus::kAbsent;  ///< kFetched, kResumed or kCached once it is there
  };

  /// All of these must live as long as the download; files have different etags.
  Download(const Settings& settings, const PullOptions& options, const RepoCache& cache,
           const std::string& commit, PullObserver& observer);
  /// Blocks until all targets are there, or one failed, or `stop` is true.
  Status run(std::vector<Target>* targets, const std::atomic<bool>& stop);
  /// Bytes of all targets that are in the cache now, whole or in part.
  uint64_t present_bytes() const;

 private:
  enum class State { kWaiting, kBusy, kOpening, kActive, kFinishing, kDone };
  struct Blob {
    Target* target;
    State state = State::kWaiting;  // kBusy: another process fetches it
    bool was_announced = false;     // that one waits for another process
    bool was_refetched = false;     // after a wrong hash
    std::string url;                // of a store that the hub redirected to; empty: ask the hub
    std::unique_ptr<BlobLock> lock;
    std::shared_ptr<PartialBlob> partial;
  };
  struct Task {
    Blob* blob;
    std::shared_ptr<PartialBlob> partial;  // an obsolete piece may outlive the blob's fetch
    Piece piece;
    bool is_obsolete = false;
    bool is_expired = false;  // the store no longer takes the address that the hub gave
  };

  void work();
  std::optional<Task> take();
  bool may_cut() const;
  Blob* next_to_open(bool* is_waiting);
  Status open(Blob& blob);
  Status fetch(HttpClient& client, Task& task);
  Answer request(HttpClient& client, Task& task);
  Status check_head(const Answer& answer, Task& task);
  Status check_hub(const Answer& answer, const RepoFile& file) const;
  Status finish(Blob& blob);
  void finished(Blob& blob, FileStatus status);
  void fail_with(Error error);
  void say(const std::string& text);
  std::string name_of_active() const;

  const Settings& settings_;
  const PullOptions& options_;
  const RepoCache& cache_;
  const std::string commit_;
  PullObserver& observer_;
  const RetryPolicy policy_;
  std::atomic<bool> stop_{false};  // by the user, or after a failure
  mutable std::mutex mutex_;       // of all below
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Blob>> blobs_;
  int num_workers_ = 0;  // threads that still run
  std::optional<Error> error_;
  std::mutex observer_mutex_;
};

}  // namespace moxie::hub
