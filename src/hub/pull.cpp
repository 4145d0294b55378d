#include "hub/pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "core/bytes.h"
#include "hub/cache.h"
#include "hub/download.h"
#include "hub/listing.h"
#include "hub/names.h"

namespace moxie::hub {
namespace {

using Clock = std::chrono::steady_clock;

Status check_options(const Settings& settings, const PullOptions& options) {
  if (Status status = check_repo(options.repo); !status) return status;
  if (Status status = check_revision(options.revision); !status) return status;
  if (settings.offline.empty()) return {};
  return fail(settings.offline + " forbids the network", options.repo,
              "unset it to fetch; what is in the cache is used without a pull");
}

// Addresses of this machine, where nobody listens in between.
bool is_loopback(const std::string& endpoint) {
  return matches("http://localhost*", endpoint) || matches("http://127.*", endpoint) ||
         matches("http://[[]::1]*", endpoint);
}

uint64_t bytes_there(const RepoCache& cache, const RepoFile& file) {
  return cache.has_blob(file) ? file.bytes : cache.incomplete_bytes(file);
}

FileStatus status_before(const RepoCache& cache, const RepoFile& file) {
  if (cache.has_blob(file)) return FileStatus::kCached;
  return cache.incomplete_bytes(file) > 0 ? FileStatus::kPartial : FileStatus::kAbsent;
}

// Files of the same content share a blob.
std::vector<Download::Target> targets_of(const std::vector<RepoFile>& files) {
  std::vector<Download::Target> targets;
  for (const RepoFile& file : files) {
    const bool is_known =
        std::any_of(targets.begin(), targets.end(),
                    [&](const Download::Target& target) { return target.file.etag == file.etag; });
    if (!is_known) targets.push_back({.file = file});
  }
  return targets;
}

PullReport plan_of(const RepoCache& cache, const PullOptions& options, const Listing& listing,
                   const std::vector<RepoFile>& files) {
  PullReport plan{.repo = options.repo,
                  .revision = options.revision,
                  .commit = listing.commit,
                  .path = cache.snapshot(listing.commit)};
  for (const RepoFile& file : files) {
    plan.files.push_back({file.path, file.etag, file.bytes, status_before(cache, file)});
    plan.bytes += file.bytes;
    plan.present_bytes += bytes_there(cache, file);
  }
  return plan;
}

bool is_cached(const PullReport& plan) {
  return std::all_of(plan.files.begin(), plan.files.end(),
                     [](const FileReport& file) { return file.status == FileStatus::kCached; });
}

Status check_space(const RepoCache& cache, const std::vector<Download::Target>& targets) {
  uint64_t needed = 0;
  for (const Download::Target& target : targets)
    needed += target.file.bytes - bytes_there(cache, target.file);
  Result<uint64_t> free = cache.free_bytes();
  if (!free) return fail(free.error());
  if (needed <= *free) return {};
  return fail(fmt::format("{} are to be fetched and {} are free: {} are missing",
                          format_bytes(needed), format_bytes(*free), format_bytes(needed - *free)),
              cache.folder(), "free some space, or set HF_HOME to a folder on a larger disk");
}

// The configuration last: a snapshot without it is taken for none.
Status link_all(const RepoCache& cache, const std::string& commit, std::vector<RepoFile> files) {
  std::partition(files.begin(), files.end(),
                 [](const RepoFile& file) { return !file.path.ends_with("config.json"); });
  for (const RepoFile& file : files) {
    if (Status status = cache.link(commit, file); !status) return status;
  }
  return {};
}

// What is kept of a pull that ended early.
Error ended_early(Error error, const PullReport& plan, uint64_t present_bytes) {
  if (present_bytes > 0) {
    error.hint += fmt::format("{}{} of {} are kept; the same command goes on from there",
                              error.hint.empty() ? "" : "; ", format_bytes(present_bytes),
                              format_bytes(plan.bytes));
  }
  return error;
}

}  // namespace

const char* file_status_name(FileStatus status) {
  switch (status) {
    case FileStatus::kAbsent:
      return "absent";
    case FileStatus::kPartial:
      return "partial";
    case FileStatus::kFetched:
      return "fetched";
    case FileStatus::kCached:
      return "cached";
    case FileStatus::kResumed:
      return "resumed";
  }
  return "unknown";
}

Result<PullReport> pull(const Settings& settings, const PullOptions& options,
                        const std::atomic<bool>& stop, PullObserver& observer) {
  const Clock::time_point start = Clock::now();
  if (Status status = check_options(settings, options); !status) return fail(status.error());
  if (!settings.token.empty() && settings.endpoint.starts_with("http://") &&
      !is_loopback(settings.endpoint)) {
    observer.on_message("the token of " + settings.token_source +
                        " goes over the network in the clear: " + settings.endpoint +
                        " is not https");
  }
  Result<std::unique_ptr<HttpClient>> client = HttpClient::make(settings, stop);
  if (!client) return fail(client.error());
  const Result<Listing> listing = fetch_listing(
      **client, settings, options.repo, options.revision, {.max_tries = options.max_tries}, stop,
      [&](const std::string& text) { observer.on_message(text); });
  if (!listing) return fail(listing.error());
  Result<std::vector<RepoFile>> files = choose_files(listing->files, options.include);
  if (!files) {
    if (files.error().where.empty()) files.error().where = options.repo;
    return fail(files.error());
  }
  const RepoCache cache(settings.cache, options.repo);
  PullReport report = plan_of(cache, options, *listing, *files);
  observer.on_start(report);
  if (options.is_dry_run) return report;

  std::vector<Download::Target> targets = targets_of(*files);
  if (Status status = check_space(cache, targets); !status) return fail(status.error());
  if (!is_cached(report)) {
    if (Status status = cache.make_folders(); !status) return fail(status.error());
  }
  Download download(settings, options, cache, listing->commit, observer);
  if (Status status = download.run(&targets, stop); !status)
    return fail(ended_early(status.error(), report, download.present_bytes()));
  if (Status status = link_all(cache, listing->commit, *files); !status)
    return fail(status.error());
  if (Status status = cache.write_ref(options.revision, listing->commit); !status)
    return fail(status.error());
  std::map<std::string, FileStatus> statuses;
  for (const Download::Target& target : targets) statuses[target.file.etag] = target.status;
  for (FileReport& file : report.files) file.status = statuses[file.etag];
  report.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return report;
}

}  // namespace moxie::hub
