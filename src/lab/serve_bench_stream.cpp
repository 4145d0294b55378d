#include "lab/serve_bench_stream.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace moxie {
namespace {

using Json = nlohmann::json;

constexpr size_t kShownBytes = 200;

std::string shown(std::string_view text) {
  std::string line;
  for (const char c : text.substr(0, kShownBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    line += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return text.size() > kShownBytes ? line + "..." : line;
}

// A member, or null: of an object that may lack it.
const Json& member(const Json& object, const char* name) {
  static const Json kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

Result<int64_t> count_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  if (value.is_null()) return -1;
  constexpr int64_t kMost = int64_t{1} << 40;
  if (!value.is_number_integer() || value < 0 || value > kMost) {
    return fail(fmt::format("{} is {}, not a number of tokens", name, shown(value.dump())), "usage",
                "the endpoint does not keep to OpenAI's interface");
  }
  return value.get<int64_t>();
}

Result<TokenUsage> usage_of(const Json& json) {
  if (!json.is_object()) return fail("usage is no object", "usage");
  TokenUsage usage;
  auto prompt = count_of(json, "prompt_tokens");
  if (!prompt) return fail(prompt.error());
  auto completion = count_of(json, "completion_tokens");
  if (!completion) return fail(completion.error());
  usage.num_prompt = *prompt;
  usage.num_completion = *completion;
  if (const Json& details = member(json, "prompt_tokens_details"); details.is_object()) {
    auto cached = count_of(details, "cached_tokens");
    if (!cached) return fail(cached.error());
    usage.num_cached = *cached;
  }
  return usage;
}

bool is_text(const Json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty();
}

bool calls_have_content(const Json& calls) {
  if (!calls.is_array()) return false;
  for (const Json& call : calls) {
    if (!call.is_object()) continue;
    const Json& function = member(call, "function");
    if (function.is_object() &&
        (is_text(member(function, "name")) || is_text(member(function, "arguments"))))
      return true;
  }
  return false;
}

bool has_content(const Json& choice) {
  if (is_text(member(choice, "text"))) return true;
  const Json& delta = member(choice, "delta");
  if (!delta.is_object()) return false;
  return is_text(member(delta, "content")) || is_text(member(delta, "reasoning")) ||
         is_text(member(delta, "reasoning_content")) ||
         calls_have_content(member(delta, "tool_calls"));
}

Status read_choice(const Json& choice, StreamChunk* chunk) {
  if (!choice.is_object()) return fail("a choice is no object", "choices[0]");
  chunk->has_choice = true;
  chunk->has_content = has_content(choice);
  if (const Json& ids = member(choice, "token_ids"); ids.is_array())
    chunk->num_token_ids = static_cast<int64_t>(ids.size());
  if (const Json& reason = member(choice, "finish_reason"); reason.is_string())
    chunk->finish_reason = reason.get<std::string>();
  return {};
}

std::string message_of(const Json& error) {
  if (error.is_object()) {
    const Json& message = member(error, "message");
    if (message.is_string()) return shown(message.get_ref<const std::string&>());
  }
  return shown(error.is_string() ? error.get_ref<const std::string&>() : error.dump());
}

Json parsed(std::string_view text) { return Json::parse(text, nullptr, false); }

}  // namespace

Status SseReader::end_line(std::vector<std::string>* payloads) {
  std::string_view line = line_;
  if (is_first_line_ && line.starts_with("\xEF\xBB\xBF")) line.remove_prefix(3);
  is_first_line_ = false;
  if (line.empty()) {
    if (has_data_) payloads->push_back(std::move(event_));
    event_.clear();
    has_data_ = false;
  } else if (line.front() == ':') {
    ++num_comments_;
  } else {
    const size_t colon = line.find(':');
    std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (line.substr(0, colon) == "data") {
      if (event_.size() + value.size() > kMaxEventBytes) {
        return fail(fmt::format("an event is longer than {} bytes", kMaxEventBytes), "stream",
                    "the endpoint does not send server-sent events of one token each");
      }
      if (has_data_) event_ += '\n';
      event_ += value;
      has_data_ = true;
    }
  }
  line_.clear();
  return {};
}

Status SseReader::read(std::string_view bytes, std::vector<std::string>* payloads) {
  while (!bytes.empty()) {
    if (skips_lf_ && bytes.front() == '\n') bytes.remove_prefix(1);
    skips_lf_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    const std::string_view piece = bytes.substr(0, end);
    if (line_.size() + piece.size() > kMaxEventBytes) {
      return fail(fmt::format("a line is longer than {} bytes", kMaxEventBytes), "stream",
                  "the endpoint does not send server-sent events of one token each");
    }
    line_ += piece;
    if (end == bytes.npos) return {};
    skips_lf_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (auto status = end_line(payloads); !status) return status;
  }
  return {};
}

void SseReader::finish(std::vector<std::string>* payloads) {
  // An error here would concern an event that is no longer read.
  if (!line_.empty() && !end_line(payloads)) return;
  (void)end_line(payloads);
}

Result<StreamChunk> read_stream_chunk(std::string_view payload) {
  StreamChunk chunk;
  const size_t first = payload.find_first_not_of(" \t");
  const size_t last = payload.find_last_not_of(" \t");
  if (first != payload.npos && payload.substr(first, last - first + 1) == "[DONE]") {
    chunk.is_done = true;
    return chunk;
  }
  const Json json = parsed(payload);
  if (!json.is_object()) {
    return fail("an event is no JSON object: " + shown(payload), "stream",
                "the endpoint does not keep to OpenAI's interface");
  }
  if (const Json& error = member(json, "error"); !error.is_null()) {
    chunk.error = message_of(error);
    return chunk;
  }
  if (const Json& usage = member(json, "usage"); !usage.is_null()) {
    auto read = usage_of(usage);
    if (!read) return fail(read.error());
    chunk.usage = *read;
  }
  const Json& choices = member(json, "choices");
  if (choices.is_null()) return chunk;
  if (!choices.is_array()) return fail("choices is no list: " + shown(payload), "stream");
  if (choices.empty()) return chunk;
  if (auto status = read_choice(choices.front(), &chunk); !status) return fail(status.error());
  return chunk;
}

Result<TokenUsage> read_answer_usage(std::string_view body) {
  const Json json = parsed(body);
  if (!json.is_object()) return fail("the answer is no JSON object: " + shown(body), "answer");
  const Json& usage = member(json, "usage");
  if (usage.is_null()) return fail("the answer has no usage", "answer");
  return usage_of(usage);
}

std::string error_text(std::string_view body) {
  const Json json = parsed(body);
  if (json.is_object()) {
    if (const Json& error = member(json, "error"); !error.is_null()) return message_of(error);
    for (const char* name : {"message", "detail"}) {
      if (const Json& message = member(json, name); !message.is_null()) return message_of(message);
    }
  }
  return shown(body);
}

}  // namespace moxie
