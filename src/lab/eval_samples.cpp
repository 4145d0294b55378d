#include "lab/eval_samples.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "text/harmony_json.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kForm = "moxie eval samples 1";
constexpr uint64_t kMaxFileBytes = uint64_t{4} << 30;

Json to_json(const EvalSample& sample) {
  const EvalReply& reply = sample.reply;
  Json calls = Json::array();
  for (const auto& call : reply.calls)
    calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
  return {{"variant", sample.variant},
          {"effort", sample.effort},
          {"task", sample.task},
          {"id", sample.id},
          {"request_hash", sample.request_hash},
          {"verdict", eval_verdict_name(sample.judgement.verdict)},
          {"extracted", sample.judgement.extracted},
          {"content", reply.content},
          {"reasoning", reply.reasoning},
          {"calls", std::move(calls)},
          {"finish_reason", reply.finish_reason},
          {"prompt_tokens", reply.prompt_tokens},
          {"completion_tokens", reply.completion_tokens}};
}

// Reads the members of one sample; `bad` names the first that is missing or of a wrong type.
struct Members {
  const Json& line;
  std::string bad;

  std::string text(const Json& object, const char* key) {
    if (object.is_object() && object.contains(key) && object[key].is_string())
      return object[key].get<std::string>();
    if (bad.empty()) bad = key;
    return {};
  }
  std::string text(const char* key) { return text(line, key); }
  int64_t count(const char* key) {
    if (line.contains(key) && line[key].is_number_unsigned()) return line[key].get<int64_t>();
    if (bad.empty()) bad = key;
    return 0;
  }
};

}  // namespace

std::string request_hash_of(const std::string& request) {
  return fmt::format("{:016x}", XXH3_64bits(request.data(), request.size()));
}

EvalSamples::~EvalSamples() {
  if (file_ != nullptr) std::fclose(file_);
}

Result<std::unique_ptr<EvalSamples>> EvalSamples::open(const std::string& path,
                                                       const std::string& origin) {
  const auto cannot = [&] {
    return fail(std::string("cannot be opened for writing: ") + std::strerror(errno), path,
                "does the folder exist, and may this user write there?");
  };
  auto samples = std::make_unique<EvalSamples>();
  samples->path_ = path;
  samples->file_ = std::fopen(path.c_str(), "a+b");
  if (samples->file_ == nullptr) return cannot();
  struct stat info = {};
  if (::fstat(::fileno(samples->file_), &info) != 0 || !S_ISREG(info.st_mode))
    return fail("is no file", path, "name a file");
  if (static_cast<uint64_t>(info.st_size) > kMaxFileBytes)
    return fail("is larger than 4 GiB", path, "name another file");
  std::string text(static_cast<size_t>(info.st_size), '\0');
  if (std::fseek(samples->file_, 0, SEEK_SET) != 0 ||
      std::fread(text.data(), 1, text.size(), samples->file_) != text.size())
    return fail("cannot be read", path);
  const size_t whole = text.rfind('\n') + 1;  // 0 if there is none
  if (whole < text.size()) {
    if (whole == 0 && text.find(kForm) == std::string::npos)
      return fail("is no file of answers", path, "name another file");
    log_warn(path + ": its last line was not written to the end, and is dropped");
    if (::ftruncate(::fileno(samples->file_), static_cast<off_t>(whole)) != 0) return cannot();
    text.resize(whole);
  }
  if (text.empty()) {
    if (auto status = samples->write_line(Json{{"form", kForm}, {"origin", origin}}.dump());
        !status) {
      return fail(std::move(status.error()));
    }
    return samples;
  }
  if (auto status = samples->read(text, origin); !status) return fail(std::move(status.error()));
  return samples;
}

Status EvalSamples::read(const std::string& text, const std::string& origin) {
  size_t number = 0;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = text.find('\n', at);
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    if (number > 0) {
      if (auto status = read_line(line, number); !status) return status;
      continue;
    }
    const auto head = harmony::parse_json_bounded(line, path_);
    const bool is_ours = head && (*head)->is_object() && (*head)->value("form", Json()) == kForm;
    if (!is_ours) return fail("is no file of answers", path_, "name another file");
    const Json found = (*head)->value("origin", Json());
    if (found != Json(origin)) {
      return fail(fmt::format("has the answers of another run: {}; this one is: {}",
                              found.is_string() ? found.get<std::string>() : "?", origin),
                  path_, "name another file, or use that run's switches");
    }
  }
  num_read_ = samples_.size();
  return {};
}

Status EvalSamples::read_line(std::string_view line, size_t number) {
  const std::string place = fmt::format("{}: line {}", path_, number + 1);
  const auto document = harmony::parse_json_bounded(line, place);
  if (!document) return fail(document.error());
  if (!(*document)->is_object()) return fail("expected a JSON object", place);
  Members members{.line = **document, .bad = {}};
  EvalSample sample{.variant = members.text("variant"),
                    .effort = members.text("effort"),
                    .task = members.text("task"),
                    .id = members.text("id"),
                    .request_hash = members.text("request_hash"),
                    .reply = {.content = members.text("content"),
                              .reasoning = members.text("reasoning"),
                              .calls = {},
                              .finish_reason = members.text("finish_reason"),
                              .prompt_tokens = members.count("prompt_tokens"),
                              .completion_tokens = members.count("completion_tokens")},
                    .judgement = {}};
  if (const auto calls = members.line.find("calls");
      calls != members.line.end() && calls->is_array()) {
    for (const Json& call : *calls)
      sample.reply.calls.push_back({members.text(call, "name"), members.text(call, "arguments")});
  }
  if (!members.bad.empty())
    return fail("\"" + members.bad + "\" is missing or of a wrong type", place,
                "remove the line: its question is asked again");
  Key key = {sample.variant, sample.effort, sample.task, sample.id, sample.request_hash};
  samples_.insert_or_assign(std::move(key), std::move(sample));
  return {};
}

const EvalSample* EvalSamples::find(const std::string& variant, const std::string& effort,
                                    const std::string& task, const std::string& id,
                                    const std::string& request_hash) const {
  const auto found = samples_.find({variant, effort, task, id, request_hash});
  return found == samples_.end() ? nullptr : &found->second;
}

Status EvalSamples::add(const EvalSample& sample) {
  if (file_ == nullptr) return {};
  // Text of a model may be broken UTF-8: replaced, instead of an exception.
  return write_line(json_text(to_json(sample)));
}

Status EvalSamples::write_line(const std::string& line) {
  const std::string whole = line + "\n";
  if (std::fwrite(whole.data(), 1, whole.size(), file_) != whole.size() ||
      std::fflush(file_) != 0) {
    return fail(std::string("cannot be written: ") + std::strerror(errno), path_,
                "is there room? The same command goes on from here");
  }
  return {};
}

}  // namespace moxie
