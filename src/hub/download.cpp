#include "hub/download.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "hub/names.h"

namespace moxie::hub {
namespace {

// Large against a round trip. Pieces that come before their turn are held in memory: one for each
// connection, and one more that it fetches.
constexpr uint64_t kPieceBytes = uint64_t{16} << 20;
constexpr auto kTick = std::chrono::milliseconds(100);

bool is_hash(const std::string& etag) { return is_commit(etag) || is_sha256(etag); }

// "bytes 0-99/1000": the first byte, and the whole length or `bytes` where it is not said.
bool read_content_range(const std::string& text, uint64_t* begin, uint64_t* bytes) {
  unsigned long long first = 0, last = 0, whole = *bytes;
  const int count = std::sscanf(text.c_str(), "bytes %llu-%llu/%llu", &first, &last, &whole);
  *begin = first;
  *bytes = whole;
  return count >= 2;
}

}  // namespace

Download::Download(const Settings& settings, const PullOptions& options, const RepoCache& cache,
                   const std::string& commit, PullObserver& observer)
    : settings_(settings),
      options_(options),
      cache_(cache),
      commit_(commit),
      observer_(observer),
      policy_{.max_tries = options.max_tries} {}

void Download::say(const std::string& text) {
  const std::lock_guard lock(observer_mutex_);
  observer_.on_message(text);
}

void Download::fail_with(Error error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  stop_ = true;
  changed_.notify_all();
}

uint64_t Download::present_bytes() const {
  const std::lock_guard lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& blob : blobs_) {
    if (blob->state == State::kDone)
      bytes += blob->target->file.bytes;
    else if (blob->partial != nullptr)
      bytes += blob->partial->written();
    else
      bytes += cache_.incomplete_bytes(blob->target->file);
  }
  return bytes;
}

std::string Download::name_of_active() const {
  const std::lock_guard lock(mutex_);
  for (const auto& blob : blobs_) {
    if (blob->state == State::kActive || blob->state == State::kOpening)
      return blob->target->file.path;
  }
  return "";
}

Status Download::run(std::vector<Target>* targets, const std::atomic<bool>& stop) {
  for (Target& target : *targets) {
    blobs_.push_back(std::make_unique<Blob>());
    blobs_.back()->target = &target;
  }
  num_workers_ = options_.connections;
  std::vector<std::thread> threads;
  for (int i = 0; i < options_.connections; ++i) threads.emplace_back([this] { work(); });
  for (std::unique_lock lock(mutex_); num_workers_ > 0;) {
    changed_.wait_for(lock, kTick);
    if (stop.load()) stop_ = true;
    lock.unlock();
    const uint64_t bytes = present_bytes();
    const std::string path = name_of_active();
    {
      const std::lock_guard observer_lock(observer_mutex_);
      observer_.on_progress(bytes, path);
    }
    lock.lock();
  }
  for (std::thread& thread : threads) thread.join();
  if (error_) return fail(*error_);
  if (stop_.load()) return fail("interrupted", options_.repo);
  return {};
}

void Download::work() {
  Result<std::unique_ptr<HttpClient>> client = HttpClient::make(settings_, stop_);
  if (!client) {
    fail_with(client.error());
  } else {
    while (std::optional<Task> task = take()) {
      const Status status = fetch(**client, *task);
      changed_.notify_all();
      if (!status && !stop_.load()) fail_with(status.error());
    }
  }
  const std::lock_guard lock(mutex_);
  --num_workers_;
  changed_.notify_all();
}

// With the mutex held: whether the pieces that wait for their turn leave memory for one more.
bool Download::may_cut() const {
  size_t num_waiting = 0;
  for (const auto& blob : blobs_) {
    if (blob->partial != nullptr) num_waiting += blob->partial->num_waiting();
  }
  return num_waiting < static_cast<size_t>(options_.connections);
}

// With the mutex held: a blob that nobody has begun, or that another process held when last looked
// at.
Download::Blob* Download::next_to_open(bool* is_waiting) {
  Blob* busy = nullptr;
  *is_waiting = false;
  for (const auto& blob : blobs_) {
    if (blob->state == State::kWaiting) return blob.get();
    if (blob->state == State::kBusy && busy == nullptr) busy = blob.get();
    // A wrong hash, or a server without ranges, makes new pieces of these.
    *is_waiting |= blob->state != State::kDone;
  }
  return busy;
}

// The next piece of the first blob that has one. Null: nothing is left to do.
std::optional<Download::Task> Download::take() {
  std::unique_lock lock(mutex_);
  while (!stop_.load()) {
    if (may_cut()) {
      for (const auto& blob : blobs_) {
        if (blob->state != State::kActive) continue;
        if (std::optional<Piece> piece = blob->partial->cut(kPieceBytes)) {
          return Task{blob.get(), blob->partial, std::move(*piece)};
        }
      }
      bool is_waiting = false;
      Blob* blob = next_to_open(&is_waiting);
      if (blob == nullptr && !is_waiting) return std::nullopt;
      if (blob != nullptr) {
        const bool was_busy = blob->state == State::kBusy;
        blob->state = State::kOpening;
        lock.unlock();
        const Status status = open(*blob);
        if (!status && !stop_.load()) fail_with(status.error());
        lock.lock();
        if (!was_busy || blob->state != State::kBusy) continue;
      }
    }
    changed_.wait_for(lock, kTick);
  }
  return std::nullopt;
}

Status Download::open(Blob& blob) {
  const RepoFile& file = blob.target->file;
  if (cache_.has_blob(file)) {  // asks nothing of a cache that may not be written
    finished(blob, FileStatus::kCached);
    return {};
  }
  Result<std::unique_ptr<BlobLock>> blob_lock = BlobLock::try_take(cache_.lock(file.etag));
  if (!blob_lock) return fail(blob_lock.error());
  if (*blob_lock == nullptr) {
    if (!blob.was_announced) say(file.path + ": another process fetches it; waiting");
    const std::lock_guard lock(mutex_);
    blob.was_announced = true;
    blob.state = State::kBusy;
    return {};
  }
  if (cache_.has_blob(file)) {  // its last holder has fetched it
    finished(blob, FileStatus::kCached);
    return {};
  }
  Result<std::unique_ptr<PartialBlob>> partial =
      PartialBlob::open(cache_.incomplete(file.etag), file, stop_);
  if (!partial) return fail(partial.error());
  const bool is_whole = (*partial)->is_whole();
  {
    const std::lock_guard lock(mutex_);
    blob.lock = std::move(*blob_lock);
    blob.partial = std::move(*partial);
    blob.state = is_whole ? State::kFinishing : State::kActive;
  }
  changed_.notify_all();
  return is_whole ? finish(blob) : Status();
}

// What the hub itself says of the file, where it says something.
Status Download::check_hub(const Answer& answer, const RepoFile& file) const {
  const std::string commit = header_of(answer.of_hub, "x-repo-commit");
  if (!commit.empty() && commit != commit_) {
    return fail("the hub answers for another commit: " + printable_line(commit), file.path,
                "run the same command again");
  }
  std::string etag = header_of(answer.of_hub, "x-linked-etag");
  if (etag.empty()) etag = header_of(answer.of_hub, "etag");
  etag = normalized_etag(etag);
  if (is_hash(etag) && etag.size() == file.etag.size() && etag != file.etag) {
    return fail("the hub lists the hash " + file.etag + " and answers " + etag, file.path,
                "run the same command again");
  }
  const std::string size = header_of(answer.of_hub, "x-linked-size");
  if (!size.empty() && size != std::to_string(file.bytes)) {
    return fail(
        fmt::format("the hub lists {} bytes and answers {}", file.bytes, printable_line(size, 20)),
        file.path, "run the same command again");
  }
  return {};
}

Status Download::check_head(const Answer& answer, Task& task) {
  const RepoFile& file = task.blob->target->file;
  if (Status status = check_hub(answer, file); !status) return status;
  const std::string encoding = header_of(answer.headers, "content-encoding");
  if (!encoding.empty() && encoding != "identity") {
    return fail("the server sends it as " + printable_line(encoding, 20) + ", unasked", file.path,
                "check HF_ENDPOINT and the proxy");
  }
  uint64_t begin = 0, bytes = file.bytes;
  if (answer.status == 206) {
    if (!read_content_range(header_of(answer.headers, "content-range"), &begin, &bytes) ||
        begin != task.piece.at)
      return fail("the server sends another range than was asked for", printable_line(answer.url),
                  "check HF_ENDPOINT and the proxy");
  } else if (const std::string length = header_of(answer.headers, "content-length");
             !length.empty()) {
    bytes = std::strtoull(length.c_str(), nullptr, 10);
  }
  if (bytes != file.bytes) {
    return fail(fmt::format("the hub lists {} bytes and sends {}", file.bytes, bytes), file.path,
                "run the same command again; if it stays so, the hub or a proxy is at fault");
  }
  if (answer.status == 206 || (task.piece.at == 0 && task.piece.end == file.bytes)) return {};
  // The server ignores ranges: this is the whole content.
  Result<bool> is_over = task.partial->start_over(&task.piece);
  if (!is_over) return fail(is_over.error());
  task.is_obsolete = !*is_over;
  return task.is_obsolete ? Status(fail("obsolete")) : Status();
}

Answer Download::request(HttpClient& client, Task& task) {
  const RepoFile& file = task.blob->target->file;
  Request request;
  {
    const std::lock_guard lock(mutex_);
    request.url = task.blob->url;
  }
  const bool is_direct = !request.url.empty();
  if (!is_direct) {
    request.url = settings_.endpoint + "/" + options_.repo + "/resolve/" + commit_ + "/" +
                  url_quoted(file.path, true);
  }
  if (task.piece.at > 0 || task.piece.end < file.bytes) {
    request.begin = task.piece.at;
    request.end = task.piece.end;
  }
  request.on_head = [&](const Answer& answer) { return check_head(answer, task); };
  request.on_body = [&](std::span<const std::byte> bytes) -> Status {
    if (task.partial->is_obsolete(task.piece)) return fail("obsolete");
    if (bytes.size() > task.piece.end - task.piece.at)
      return fail("the server sends more than was asked for", file.path, "check HF_ENDPOINT");
    return task.partial->accept(&task.piece, bytes);
  };
  Answer answer = client.get(request);
  const std::lock_guard lock(mutex_);
  // A store's address is signed for some time: it serves the blob's other pieces, and when it ends
  // the hub is asked for a new one.
  if (answer.is_ok() && answer.url != request.url) task.blob->url = answer.url;
  task.is_expired = is_direct && answer.trouble == Trouble::kNone && answer.status >= 400 &&
                    answer.status < 500 && answer.status != 429;
  if (task.is_expired) task.blob->url.clear();
  return answer;
}

Status Download::fetch(HttpClient& client, Task& task) {
  Blob& blob = *task.blob;
  const std::string& name = blob.target->file.path;
  Retry retry(policy_, stop_, [&](const std::string& text) { say(name + ": " + text); });
  uint64_t farthest = task.piece.at;
  while (task.piece.at < task.piece.end) {
    Answer answer = request(client, task);
    if (task.is_obsolete || task.partial->is_obsolete(task.piece)) return {};
    if (task.piece.at > farthest) {
      farthest = task.piece.at;
      retry.progressed();
    }
    if (answer.is_ok() && task.piece.at < task.piece.end) {
      answer.trouble = Trouble::kCut;
      answer.error = {"the answer ended early", name, "run the same command again"};
    }
    if (answer.is_ok() || retry.wait_after(answer, task.is_expired)) continue;
    return fail(status_error(answer, settings_, options_.repo));
  }
  if (Status status = task.partial->close(&task.piece); !status) return status;
  {
    const std::lock_guard lock(mutex_);
    if (blob.state != State::kActive || !task.partial->is_whole()) return {};
    blob.state = State::kFinishing;
  }
  return finish(blob);
}

// Checks the whole content and gives it its name. A blob that an earlier pull began is fetched once
// more from its beginning if its hash is wrong.
Status Download::finish(Blob& blob) {
  const RepoFile& file = blob.target->file;
  const bool is_resumed = blob.partial->found() > 0;
  const std::string hash = blob.partial->hash();
  if (hash == file.etag) {
    if (Status status = blob.partial->publish(cache_.blob(file.etag)); !status) return status;
    finished(blob, is_resumed ? FileStatus::kResumed : FileStatus::kFetched);
    return {};
  }
  if (Status status = blob.partial->reset(); !status) return status;
  if (!is_resumed || blob.was_refetched) {
    ::unlink(cache_.incomplete(file.etag).c_str());
    return fail("its hash is " + hash + ", and the hub lists " + file.etag, file.path,
                "what came is dropped; run the same command again, and if it stays so, suspect the "
                "network's proxy or this machine's memory and disk");
  }
  say(file.path + ": what an earlier pull left is damaged; starting over");
  const std::lock_guard lock(mutex_);
  blob.was_refetched = true;
  blob.state = State::kActive;
  changed_.notify_all();
  return {};
}

void Download::finished(Blob& blob, FileStatus status) {
  FileReport report;
  {
    const std::lock_guard lock(mutex_);
    blob.target->status = status;
    blob.state = State::kDone;
    blob.partial.reset();
    blob.lock.reset();
    report = {blob.target->file.path, blob.target->file.etag, blob.target->file.bytes, status};
  }
  changed_.notify_all();
  const std::lock_guard lock(observer_mutex_);
  observer_.on_file(report);
}

}  // namespace moxie::hub
