#include "hub/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/nearest.h"
#include "hub/names.h"

namespace moxie::hub {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPageBytes = size_t{16} << 20, kMaxPages = 1000, kMaxFiles = 100000;
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 46;
constexpr const char* kNoHub = "this is no answer of a hub: check HF_ENDPOINT";

std::string string_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool read_size(const Json& object, uint64_t* bytes) {
  const auto found = object.find("size");
  if (found == object.end() || !found->is_number_unsigned()) return false;
  *bytes = found->get<uint64_t>();
  return *bytes <= kMaxFileBytes;
}

Status read_file(const Json& entry, RepoFile* file) {
  file->path = string_of(entry, "path");
  const auto lfs = entry.find("lfs");
  const bool is_lfs = lfs != entry.end() && lfs->is_object();
  const Json& holder = is_lfs ? *lfs : entry;
  file->etag = string_of(holder, "oid");
  if (is_lfs && file->etag.starts_with("sha256:")) file->etag.erase(0, 7);
  file->hash = is_lfs ? HashKind::kSha256 : HashKind::kGitBlob;
  const bool is_hash = is_lfs ? is_sha256(file->etag) : is_commit(file->etag);
  if (!is_hash || !read_size(holder, &file->bytes)) {
    return fail("the hub's listing has no usable hash or size", printable_line(file->path), kNoHub);
  }
  return {};
}

// Of a request for JSON: the body, or what its failure means.
Result<Answer> get_json(HttpClient& client, const Settings& settings, const std::string& repo,
                        const std::string& url, Retry retry) {
  for (;;) {
    Answer answer = client.get({.url = url, .max_text = kMaxPageBytes});
    if (answer.is_ok()) return answer;
    if (retry.wait_after(answer)) continue;
    return fail(status_error(answer, settings, repo));
  }
}

// The nearest of the repository's branches and tags; empty if the hub does not say.
std::string revision_hint(HttpClient& client, const Settings& settings, const std::string& repo,
                          const std::string& revision) {
  const Answer answer = client.get(
      {.url = settings.endpoint + "/api/models/" + repo + "/refs", .max_text = kMaxPageBytes});
  const Json refs = answer.is_ok() ? Json::parse(answer.text, nullptr, false) : Json();
  std::vector<std::string> names;
  for (const char* kind : {"branches", "tags"}) {
    if (!refs.is_object() || !refs.contains(kind) || !refs[kind].is_array()) continue;
    for (const Json& ref : refs[kind]) {
      const std::string name = ref.is_object() ? string_of(ref, "name") : "";
      if (check_revision(name)) names.push_back(name);
    }
  }
  const std::string nearest = nearest_name(revision, names);
  return nearest.empty() ? "" : "did you mean " + repo + "@" + nearest + "?";
}

std::string repo_hint(const std::string& repo) {
  constexpr size_t kNear = 4;
  const std::vector<std::string> known = {"openai/gpt-oss-20b", "openai/gpt-oss-120b"};
  const std::string nearest = nearest_name(repo, known);
  return nearest != repo && edit_distance(repo, nearest) <= kNear ? "did you mean " + nearest + "?"
                                                                  : "check its name on the hub";
}

Error denied(const Answer& answer, const Settings& settings, const std::string& repo) {
  const std::string page = settings.endpoint + "/" + repo,
                    code = header_of(answer.headers, "x-error-code");
  const std::string said = printable_line(header_of(answer.headers, "x-error-message"));
  const bool has_token = !settings.token.empty();
  if (code == "GatedRepo") {
    return {"the repository is gated: its owner asks for consent to its terms", repo,
            "accept them at " + page +
                (has_token ? ", with the account of the token in " + settings.token_source
                           : ", then set HF_TOKEN to an access token of that account")};
  }
  if (has_token && (answer.status == 401 || answer.status == 403)) {
    return {fmt::format("the hub refused the token of {} ({}{}{}), or there is no such repository",
                        settings.token_source, answer.status, said.empty() ? "" : ": ", said),
            repo, "check the token's rights and the name; " + repo_hint(repo)};
  }
  return {fmt::format("there is no such repository, or it is private ({})", answer.status), repo,
          repo_hint(repo) + "; for a private one set HF_TOKEN to an access token"};
}

}  // namespace

Error status_error(const Answer& answer, const Settings& settings, const std::string& repo) {
  if (answer.trouble != Trouble::kNone) return answer.error;
  const std::string code = header_of(answer.headers, "x-error-code");
  const std::string url = printable_line(answer.url);
  if (!answer.url.starts_with(settings.endpoint + "/") && answer.status < 500 &&
      answer.status != 429) {
    return {fmt::format("the store that the hub redirects to answered {}", answer.status),
            printable_line(answer.url.substr(0, answer.url.find('?'))),
            "run the same command again; check this machine's clock and the proxy"};
  }
  if (answer.status == 401 || answer.status == 403 || code == "GatedRepo" || code == "RepoNotFound")
    return denied(answer, settings, repo);
  if (code == "RevisionNotFound") return {"the repository has no such revision", repo, ""};
  if (answer.status == 404 && code == "EntryNotFound")
    return {"the hub lists this file and does not have it", url, "run the same command again"};
  if (answer.status == 404) {
    return {"there is no such repository (404)", repo, repo_hint(repo)};
  }
  if (answer.status == 429) {
    return {answer.retry_after_s > 0
                ? fmt::format("the hub takes no more requests for {} s (429)", answer.retry_after_s)
                : "the hub takes no more requests for now (429)",
            url,
            settings.token.empty() ? "wait, or set HF_TOKEN: accounts may ask for more"
                                   : "wait, then run the same command again"};
  }
  return {fmt::format("the server answered {}", answer.status), url,
          answer.status >= 500 ? "run the same command later: it goes on from there"
                               : "check HF_ENDPOINT"};
}

Result<std::string> parse_commit(std::string_view json) {
  const Json document = Json::parse(json, nullptr, false);
  std::string commit = document.is_object() ? string_of(document, "sha") : "";
  if (!is_commit(commit)) return fail("the hub names no commit", "revision", kNoHub);
  return commit;
}

Status parse_tree_page(std::string_view json, std::vector<RepoFile>* files) {
  const Json document = Json::parse(json, nullptr, false);
  if (!document.is_array()) return fail("the hub's listing is no JSON list", "tree", kNoHub);
  for (const Json& entry : document) {
    if (!entry.is_object()) return fail("the hub's listing holds no objects", "tree", kNoHub);
    if (string_of(entry, "type") != "file") continue;
    RepoFile file;
    if (Status status = read_file(entry, &file); !status) return status;
    if (files->size() >= kMaxFiles)
      return fail(fmt::format("more than {} files are listed", kMaxFiles), "tree", kNoHub);
    files->push_back(std::move(file));
  }
  return {};
}

Result<Listing> fetch_listing(HttpClient& client, const Settings& settings, const std::string& repo,
                              const std::string& revision, const RetryPolicy& policy,
                              const std::atomic<bool>& stop,
                              const std::function<void(const std::string&)>& say) {
  const std::string api = settings.endpoint + "/api/models/" + repo;
  const Retry retry(policy, stop, say);
  Result<Answer> info =
      get_json(client, settings, repo, api + "/revision/" + url_quoted(revision, false), retry);
  if (!info) {
    if (info.error().what == "the repository has no such revision") {
      info.error().where = repo + "@" + printable_line(revision);
      info.error().hint = revision_hint(client, settings, repo, revision);
    }
    return fail(info.error());
  }
  Result<std::string> commit = parse_commit(info->text);
  if (!commit) return fail(commit.error());
  Listing listing{.commit = *commit};
  std::string url = api + "/tree/" + listing.commit + "?recursive=true&expand=false";
  for (size_t page = 0; !url.empty(); ++page) {
    if (page >= kMaxPages) return fail("the listing does not end", printable_line(url), kNoHub);
    Result<Answer> answer = get_json(client, settings, repo, url, retry);
    if (!answer) return fail(answer.error());
    if (Status status = parse_tree_page(answer->text, &listing.files); !status)
      return fail(status.error());
    url = next_link(header_of(answer->headers, "link"));
  }
  std::sort(listing.files.begin(), listing.files.end(),
            [](const RepoFile& a, const RepoFile& b) { return a.path < b.path; });
  return listing;
}

}  // namespace moxie::hub
