// moxie pull: fetches a checkpoint into the Hugging Face cache.
#include "hub/pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/output.h"
#include "apps/pull_progress.h"
#include "apps/stop_signal.h"
#include "core/bytes.h"
#include "hub/names.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct PullFlags {
  std::vector<std::string> repos;
  std::string revision = "main";
  hub::PullOptions options;
  bool is_json = false, is_quiet = false;
};

Json to_json(const hub::PullReport& report, bool is_dry_run) {
  Json files = Json::array();
  for (const hub::FileReport& file : report.files) {
    files.push_back({{"path", file.path},
                     {"bytes", file.bytes},
                     {"etag", file.etag},
                     {"status", hub::file_status_name(file.status)}});
  }
  Json document = {{"repo", report.repo},       {"revision", report.revision},
                   {"commit", report.commit},   {"path", report.path},
                   {"files", std::move(files)}, {"bytes", report.bytes},
                   {"seconds", report.seconds}};
  if (is_dry_run) document["dry_run"] = true;
  return document;
}

void print_plan(const hub::PullReport& report) {
  for (const hub::FileReport& file : report.files) {
    fmt::print("{:<8} {:>16} {:>10}  {}\n", hub::file_status_name(file.status), file.bytes,
               format_bytes(file.bytes), file.path);
  }
  fmt::print("{} files, {}; {} to fetch\n", report.files.size(), format_bytes(report.bytes),
             format_bytes(report.bytes - report.present_bytes));
}

void print_done(const hub::PullReport& report, bool is_quiet) {
  if (!is_quiet) {
    const bool is_main = report.revision == "main";
    std::fprintf(stderr, "done in %s; try: moxie run --model %s \"Hello\"\n",
                 clock_text(report.seconds).c_str(),
                 is_main ? report.repo.c_str() : report.path.c_str());
  }
  fmt::print("{}\n", report.path);
}

// "org/name@revision"; a revision given twice must be the same.
int read_repo(const Flags& flags, PullFlags* o) {
  if (o->repos.size() != 1) return usage("pull takes one repository, such as openai/gpt-oss-20b");
  o->options.repo = o->repos.front();
  o->options.revision = o->revision;
  const size_t at = o->options.repo.find('@');
  const std::string revision =
      at == std::string::npos ? o->revision : o->options.repo.substr(at + 1);
  o->options.repo.resize(std::min(at, o->options.repo.size()));
  if (auto named = hub::check_repo(o->options.repo); !named) return usage(named.error().message());
  if (auto named = hub::check_revision(revision); !named) return usage(named.error().message());
  if (flags.given("--revision") && revision != o->revision)
    return usage("two revisions: @" + revision + " and --revision " + o->revision);
  o->options.revision = revision;
  return kExitDone;
}

int run_pull(const Flags& flags, PullFlags* o) {
  if (const int code = read_repo(flags, o); code != kExitDone) return code;
  Result<hub::Settings> settings = hub::read_settings();
  if (!settings) return report(settings.error());
  stop_at({SIGINT, SIGTERM});  // what has come is kept
  const Result<hub::PullReport> pulled = [&] {
    PullProgress progress(o->is_quiet || o->options.is_dry_run);  // its bar goes before the results
    return hub::pull(*settings, o->options, stop_asked(), progress);
  }();
  if (!pulled) return report(pulled.error());
  if (o->is_json)
    print_document(to_json(*pulled, o->options.is_dry_run));
  else if (o->options.is_dry_run)
    print_plan(*pulled);
  else
    print_done(*pulled, o->is_quiet);
  return kExitDone;
}

}  // namespace

Command pull_command() {
  auto o = std::make_shared<PullFlags>();
  return {.name = "pull",
          .summary = "Fetch a checkpoint from a hub into the Hugging Face cache",
          .example =
              "moxie pull openai/gpt-oss-20b\n"
              "  moxie run --model openai/gpt-oss-20b \"Hello\"\n"
              "  moxie pull openai/gpt-oss-120b --dry-run        (what it would fetch)\n"
              "  moxie pull ORG/NAME@v1.0 --include '*Q8_0*.gguf'\n"
              "An interrupted pull goes on from where it ended. HF_ENDPOINT, HF_TOKEN, HF_HOME,\n"
              "HF_HUB_CACHE and HF_HUB_OFFLINE mean what they mean to huggingface_hub.",
          .declare =
              [o](Flags& flags) {
                flags.positional("REPO", &o->repos, "org/name, or org/name@revision", true);
                flags.text("--revision", &o->revision, "a branch, tag or commit");
                flags.texts(
                    "--include", &o->options.include,
                    "only files that match this glob, where * also takes in / (repeatable); "
                    "default: the safetensors, JSON and tokenizer files of the top folder, "
                    "or the one GGUF");
                flags.integer("--connections", &o->options.connections, {1, hub::kMaxConnections},
                              "parallel connections, for ranges of one file too");
                flags.integer("--tries", &o->options.max_tries, {1, hub::kMaxTries},
                              "of a request that fails, without progress between them");
                flags.toggle("--dry-run", &o->options.is_dry_run, "list the files, fetch nothing");
                flags.toggle("--json", &o->is_json, "print one JSON document");
                flags.toggle("--quiet", &o->is_quiet, "no progress; the folder alone is printed");
              },
          .run = [o](const Flags& flags) { return run_pull(flags, o.get()); }};
}

}  // namespace moxie
