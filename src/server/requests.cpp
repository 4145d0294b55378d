// The tables of fields of chat and text completions.
#include "server/requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "kernels/sample/sample.h"
#include "server/messages.h"
#include "server/responses.h"
#include "server/structured_fields.h"

namespace moxie {
namespace {

constexpr int32_t kMaxChoices = 64;
constexpr size_t kMaxStops = 16, kMaxStopBytes = 4096;
constexpr size_t kMaxBias = 4096;
constexpr size_t kMaxBadWords = 1024, kMaxBadWordBytes = 65536;
constexpr size_t kMaxPrompts = 1024;
constexpr int64_t kMaxTokens = INT32_MAX;

const Json kStringOrList = {
    {"anyOf", {{{"type", "string"}}, {{"type", "array"}, {"items", {{"type", "string"}}}}}}};
const Json kIdList = {{"type", "array"}, {"items", {{"type", "integer"}, {"minimum", 0}}}};

struct TextLimits {
  size_t count, bytes;  // of all of them
  std::string_view what;
};

ApiStatus read_texts(const Json& list, const std::string& param, const TextLimits& limits,
                     std::vector<std::string>* texts) {
  if (list.size() > limits.count) {
    return invalid(param,
                   fmt::format("Invalid '{}': at most {} {}, but got {}.", param, limits.count,
                               limits.what, list.size()),
                   "array_above_max_length");
  }
  size_t num_bytes = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", param, i);
    auto text = read_string(list[i], at);
    if (!text) return tl::unexpected(text.error());
    num_bytes += text->size();
    if (text->empty()) return invalid(at, "Invalid '" + at + "': empty string.", "empty_string");
    if (num_bytes > limits.bytes) {
      return invalid(param, fmt::format("Invalid '{}': more than {} bytes.", param, limits.bytes),
                     "string_above_max_length");
    }
    texts->push_back(std::move(*text));
  }
  return {};
}

ApiStatus read_stop(const Json& value, std::vector<std::string>* stops) {
  const Json list = value.is_string() ? Json::array({value}) : value;
  if (!list.is_array()) return wrong_type("stop", "a string or an array of strings", value);
  return read_texts(list, "stop", {kMaxStops, kMaxStopBytes, "sequences"}, stops);
}

ApiStatus read_bad_words(const Json& value, std::vector<std::string>* words) {
  if (!value.is_array()) return wrong_type("bad_words", "an array of strings", value);
  return read_texts(value, "bad_words", {kMaxBadWords, kMaxBadWordBytes, "words"}, words);
}

ApiStatus read_stream_options(const Json& value, GenerationFields& request) {
  if (!value.is_object()) return wrong_type("stream_options", "an object", value);
  for (auto it = value.begin(); it != value.end(); ++it) {
    const std::string at = "stream_options." + it.key();
    bool* target = it.key() == "include_usage"            ? &request.include_usage
                   : it.key() == "continuous_usage_stats" ? &request.continuous_usage
                                                          : nullptr;
    if (it.key() == "include_obfuscation") continue;  // no padding is ever sent
    if (target == nullptr) return unknown_field(at, {});
    if (it->is_null()) continue;
    auto flag = read_bool(*it, at);
    if (!flag) return tl::unexpected(flag.error());
    *target = *flag;
  }
  return {};
}

ApiStatus read_bias(const Json& value, SamplingOptions* sampling) {
  if (!value.is_object()) return wrong_type("logit_bias", "an object of token ids", value);
  if (value.size() > kMaxBias) {
    return invalid("logit_bias", fmt::format("Invalid 'logit_bias': at most {} tokens.", kMaxBias),
                   "object_above_max_properties");
  }
  for (auto it = value.begin(); it != value.end(); ++it) {
    int32_t id = -1;
    const std::string& key = it.key();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      return invalid("logit_bias", "Invalid key in 'logit_bias': expected a token id.",
                     "invalid_value");
    }
    auto bias = read_number(*it, "logit_bias." + key, -100, 100);
    if (!bias) return tl::unexpected(bias.error());
    sampling->logit_bias.emplace_back(id, static_cast<float>(*bias));
  }
  return {};
}

template <class T>
typename Fields<T>::Read id_list(const char* name, std::vector<int32_t> SamplingOptions::*member) {
  return [=](const Json& value, T& request) -> ApiStatus {
    return read_token_ids(value, name, &(request.sampling.*member));
  };
}

}  // namespace

template <class T>
void add_sampling_fields(Fields<T>& f) {
  const auto in_sampling = [](auto member) {
    return [member](T & request) -> auto& { return request.sampling.*member; };
  };
  f.number("temperature", &GenerationFields::temperature, 0, 2,
           "0 is greedy; default 1, or 0 for the embedded model");
  f.number("top_p", &GenerationFields::top_p, 0, 1, "nucleus; 1 is off, 0 keeps one token");
  f.integer("top_k", in_sampling(&SamplingOptions::top_k), -1, kMaxTokens, "0 and -1 are off");
  f.number("min_p", in_sampling(&SamplingOptions::min_p), 0, 1,
           "share of the greatest probability that a token needs");
  f.number("presence_penalty", in_sampling(&SamplingOptions::presence_penalty), -2, 2,
           "once for a token that was written");
  f.number("frequency_penalty", in_sampling(&SamplingOptions::frequency_penalty), -2, 2,
           "for each time a token was written");
  f.number("repetition_penalty", in_sampling(&SamplingOptions::repetition_penalty), 0.01, 10,
           "over prompt and answer; 1 is off");
  f.field(
      "seed", {{"type", "integer"}},
      [](const Json& value, T& request) -> ApiStatus {
        auto seed = read_integer(value, "seed", INT64_MIN, INT64_MAX);
        if (!seed) return tl::unexpected(seed.error());
        request.sampling.seed = static_cast<uint64_t>(*seed);
        return {};
      },
      "same seed, same request, same answer; choice i draws with seed + i");
  f.field(
      "logit_bias",
      {{"type", "object"},
       {"additionalProperties", {{"type", "number"}, {"minimum", -100}, {"maximum", 100}}}},
      [](const Json& value, T& request) { return read_bias(value, &request.sampling); },
      "added to the logits of these token ids");
  f.integer("min_tokens", in_sampling(&SamplingOptions::min_tokens), 0, kMaxTokens,
            "tokens before the answer may end");
  f.toggle("ignore_eos", in_sampling(&SamplingOptions::ignore_eos),
           "goes on where the model would end");
  f.field("stop_token_ids", kIdList, id_list<T>("stop_token_ids", &SamplingOptions::stop_ids),
          "tokens that end the answer");
  f.field("allowed_token_ids", kIdList,
          id_list<T>("allowed_token_ids", &SamplingOptions::allowed_ids),
          "no other token is drawn");
  f.field(
      "bad_words", {{"type", "array"}, {"items", {{"type", "string"}}}},
      [](const Json& value, T& request) { return read_bad_words(value, &request.bad_words); },
      "texts that the answer, reasoning included, does not hold, as they are usually cut into "
      "tokens");
  f.field(
      "stop", kStringOrList,
      [](const Json& value, T& request) { return read_stop(value, &request.stop); },
      "texts that end the answer; not part of it");
  f.toggle("include_stop_str_in_output", &GenerationFields::include_stop,
           "the stop text stays in the answer");
  f.toggle("no_stop_trim", &GenerationFields::no_stop_trim,
           "SGLang's name of include_stop_str_in_output");
}

template void add_sampling_fields(Fields<ResponseRequest>&);

template <class T>
void add_tool_fields(Fields<T>& f) {
  f.field(
      "tools", {{"type", "array"}, {"items", {{"type", "object"}}}},
      [](const Json& value, T& request) {
        const bool lenient = std::is_same_v<T, ResponseRequest>;
        return read_tools(value, "tools", &request.tools, lenient ? &request.warnings : nullptr);
      },
      "functions that the model may call");
  f.field(
      "tool_choice", {{"anyOf", {{{"type", "string"}}, {{"type", "object"}}}}},
      [](const Json& value, T& request) -> ApiStatus {
        auto choice = read_tool_choice(value);
        if (!choice) return tl::unexpected(choice.error());
        request.tool_choice = std::move(*choice);
        return {};
      },
      "none, auto, required, one function, or allowed_tools");
}
template void add_tool_fields(Fields<ChatRequest>&);
template void add_tool_fields(Fields<ResponseRequest>&);

template <class T>
void add_scheduling_fields(Fields<T>& f) {
  f.integer("priority", &GenerationFields::priority, INT32_MIN, INT32_MAX, "lower goes first");
  f.text("cache_salt", &GenerationFields::cache_salt,
         "cached prompts are shared only with requests of the same salt");
}
template void add_scheduling_fields(Fields<ResponseRequest>&);

template <class T>
void add_platform_fields(Fields<T>& f) {
  f.ignored("service_tier", "there is one tier");
  f.ignored("prompt_cache_key", "the prefix cache finds equal prompts by itself");
  f.ignored("prompt_cache_options", "the prefix cache finds equal prompts by itself");
  f.ignored("prompt_cache_retention", "cached prompts stay while there is room");
  f.refused("moderation", Json(), "nothing is moderated here");
}
template void add_platform_fields(Fields<ResponseRequest>&);

template <class T>
void add_generation_fields(Fields<T>& f) {
  f.text("model", &GenerationFields::model, "the served model's name, see /v1/models");
  add_sampling_fields(f);
  f.integer("n", &GenerationFields::n, 1, kMaxChoices, "answers to one prompt");
  f.toggle("stream", &GenerationFields::stream, "server-sent events");
  f.field(
      "stream_options",
      {{"type", "object"},
       {"properties",
        {{"include_usage", {{"type", "boolean"}}},
         {"continuous_usage_stats", {{"type", "boolean"}}}}}},
      [](const Json& value, T& request) { return read_stream_options(value, request); },
      "a last chunk with the usage; or usage in every chunk");
  add_scheduling_fields(f);
  f.toggle("cache_prompt", &GenerationFields::use_cache,
           "false: the prefix cache is neither looked into nor filled");
  f.toggle("return_token_ids", &GenerationFields::return_token_ids,
           "adds prompt_token_ids and token_ids");
  f.toggle("return_tokens_as_token_ids", &GenerationFields::tokens_as_ids,
           "log-probabilities name tokens \"token_id:N\"");
  f.field(
      "prompt_logprobs", {{"type", "integer"}, {"minimum", 0}, {"maximum", kMaxTopLogprobs}},
      [](const Json& value, T& request) -> ApiStatus {
        auto count = read_integer(value, "prompt_logprobs", 0, kMaxTopLogprobs);
        if (!count) return tl::unexpected(count.error());
        request.prompt_logprobs = static_cast<int32_t>(*count);
        return {};
      },
      "log-probabilities of the prompt's tokens, with as many best ones");
  add_structured_fields(f, [](T& request) -> GenerationFields& { return request; });
  for (const char* name : {"user", "safety_identifier", "request_id", "session_id"}) {
    f.ignored(name, "kept nowhere; X-Request-Id names a request");
  }
  f.ignored("metadata", "kept nowhere");
  f.ignored("spaces_between_special_tokens", "the tokenizer adds no spaces");
  f.ignored("guided_decoding_backend", "there is one backend");
  f.ignored("stream_interval", "tokens are sent as they come");
  f.ignored("return_mm_kwargs", "there are none");
  add_platform_fields(f);
  f.refused("best_of", 1, "use n");
  f.refused("use_beam_search", false, "answers are sampled");
  f.refused("logits_processors", Json::array(), "use logit_bias");
  f.refused("length_penalty", 1.0, "it belongs to beam search");
  f.refused("logprob_token_ids", Json::array(), "use logprobs");
  f.refused("thinking_token_budget", -1, "use reasoning_effort");
  f.refused("repetition_detection", Json(), "use max_tokens or a penalty");
  f.refused("watermarking", false, "tokens are drawn as the model says");
  f.refused("guided_whitespace_pattern", Json(),
            "white space is as docs/structured-output.md says");
  f.refused("structural_tag", Json(), "use tools, or structured_outputs");
  f.refused("kv_transfer_params", Json::object(), "there is one instance");
  f.refused("ec_transfer_params", Json::object(), "there is one instance");
  f.refused("vllm_xargs", Json::object(), "none is known");
  f.refused("routed_experts_prompt_start", 0, "routing is not returned");
  f.refused("return_hidden_states", false, "hidden states are not returned");
  f.refused("return_token_offsets", false, "use return_token_strs of /tokenize");
}
template void add_generation_fields(Fields<ChatRequest>&);
template void add_generation_fields(Fields<CompletionRequest>&);

ApiStatus read_token_ids(const Json& value, const std::string& param, std::vector<int32_t>* ids) {
  if (!value.is_array()) return wrong_type(param, "an array of token ids", value);
  ids->clear();
  ids->reserve(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i].is_number_integer() && value[i] >= 0 && value[i] <= INT32_MAX) {
      ids->push_back(value[i].template get<int32_t>());
      continue;
    }
    auto id = read_integer(value[i], fmt::format("{}[{}]", param, i), 0, INT32_MAX);
    if (!id) return tl::unexpected(id.error());
    ids->push_back(static_cast<int32_t>(*id));
  }
  return {};
}

namespace {

Fields<ChatRequest> make_chat_fields() {
  Fields<ChatRequest> f;
  f.field(
      "messages", {{"type", "array"}, {"items", {{"type", "object"}}}},
      [](const Json& value, ChatRequest& request) { return read_messages(value, &request); },
      "the conversation", true);
  add_generation_fields(f);
  f.integer("max_tokens", &GenerationFields::max_tokens, 1, kMaxTokens,
            "of the answer, reasoning included; the older name, which gives way to the newer");
  f.field(
      "max_completion_tokens", {{"type", "integer"}, {"minimum", 1}, {"maximum", kMaxTokens}},
      [](const Json& value, ChatRequest& request) -> ApiStatus {
        auto count = read_integer(value, "max_completion_tokens", 1, kMaxTokens);
        if (!count) return tl::unexpected(count.error());
        request.max_completion_tokens = static_cast<int32_t>(*count);
        return {};
      },
      "of the answer, reasoning included; default: to the end of the context");
  f.toggle("logprobs", &ChatRequest::logprobs, "log-probabilities of the content's tokens");
  f.integer(
      "top_logprobs",
      [](ChatRequest& request) -> int32_t& { return request.sampling.num_logprobs; }, 0,
      kMaxTopLogprobs, "and of as many best tokens; needs logprobs");
  add_reasoning_fields(f);
  add_tool_fields(f);
  f.toggle("parallel_tool_calls", &ChatRequest::parallel_tool_calls,
           "the model writes one call a turn; false is kept, true allows what it never does");
  f.field(
      "modalities", {{"type", "array"}},
      [](const Json& value, ChatRequest&) -> ApiStatus {
        if (value == Json::array({"text"})) return {};
        return unsupported("modalities", "'modalities': only [\"text\"] is supported.");
      },
      "text only");
  f.toggle("skip_special_tokens", &GenerationFields::skip_special_tokens,
           "without effect in chat: control tokens are never text");
  f.ignored("store", "chat completions are not stored; /v1/responses stores");
  f.ignored("verbosity", "the model knows no such setting");
  f.ignored("prediction", "a hint for speed that is not needed");
  f.refused("add_generation_prompt", true, "the answer is always the assistant's");
  f.refused("continue_final_message", false, "use /v1/completions with token ids");
  f.refused("add_special_tokens", false, "the conversation format decides");
  f.refused("echo", false, "use /v1/completions");
  f.refused("chat_template", Json(), "the conversation format is built in");
  f.refused("documents", Json::array(), "put them into a message");
  f.refused("audio", Json(), "this model writes text");
  f.refused("web_search_options", Json(), "there is no such tool here");
  f.refused("functions", Json(), "use tools");
  f.refused("function_call", Json(), "use tool_choice");
  f.refused("mm_processor_kwargs", Json::object(), "this model reads text");
  f.refused("media_io_kwargs", Json::object(), "this model reads text");
  f.refused("truncate_prompt_tokens", Json(), "it would cut the conversation's format");
  f.refused("truncation_side", Json(), "it belongs to truncate_prompt_tokens");
  f.refused("return_prompt_text", false, "use /v1/chat/completions/render");
  return f;
}

ApiStatus read_prompt(const Json& value, CompletionRequest& request) {
  if (value.is_string()) {
    request.texts.push_back(value.get<std::string>());
    return {};
  }
  if (!value.is_array()) {
    return wrong_type("prompt", "a string, an array of strings, or (arrays of) token ids", value);
  }
  if (value.empty()) {
    return invalid("prompt", "Invalid 'prompt': empty array.", "empty_array");
  }
  if (value.front().is_number()) {
    request.ids.emplace_back();
    return read_token_ids(value, "prompt", &request.ids.back());
  }
  if (value.size() > kMaxPrompts) {
    return invalid("prompt", fmt::format("Invalid 'prompt': at most {} prompts.", kMaxPrompts),
                   "array_above_max_length");
  }
  const bool is_text = value.front().is_string();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string at = fmt::format("prompt[{}]", i);
    if (is_text) {
      auto text = read_string(value[i], at);
      if (!text) return tl::unexpected(text.error());
      request.texts.push_back(std::move(*text));
    } else {
      request.ids.emplace_back();
      auto status = read_token_ids(value[i], at, &request.ids.back());
      if (!status) return status;
    }
  }
  return {};
}

Fields<CompletionRequest> make_completion_fields() {
  Fields<CompletionRequest> f;
  f.field("prompt",
          {{"anyOf",
            {{{"type", "string"}},
             {{"type", "array"}, {"items", {{"type", "string"}}}},
             kIdList,
             {{"type", "array"}, {"items", kIdList}}}}},
          read_prompt, "text or token ids, or a list of either", true);
  add_generation_fields(f);
  f.integer("max_tokens", &GenerationFields::max_tokens, 0, kMaxTokens,
            "of the answer; default 16, 0 only with echo");
  f.toggle("echo", &CompletionRequest::echo, "the answer begins with the prompt");
  f.integer(
      "logprobs", &CompletionRequest::logprobs, 0, kMaxTopLogprobs,
      "log-probabilities of the tokens, and of as many best ones; with echo of the prompt too");
  f.toggle("skip_special_tokens", &GenerationFields::skip_special_tokens,
           "control tokens add no text");
  f.field(
      "truncate_prompt_tokens", {{"type", "integer"}, {"minimum", -1}, {"maximum", kMaxTokens}},
      [](const Json& value, CompletionRequest& request) -> ApiStatus {
        auto count = read_integer(value, "truncate_prompt_tokens", -1, kMaxTokens);
        if (!count) return tl::unexpected(count.error());
        if (*count == 0) {
          return invalid("truncate_prompt_tokens",
                         "Invalid 'truncate_prompt_tokens': expected 1 or more, or -1.",
                         "invalid_value");
        }
        request.truncate_prompt_tokens = static_cast<int32_t>(*count);
        return {};
      },
      "so many of a prompt's last tokens are kept; -1: as many as leave room for max_tokens");
  f.either("truncation_side", &CompletionRequest::truncate_end, "left", "right", "right",
           "right: truncate_prompt_tokens keeps the first tokens");
  f.refused("prompt_embeds", Json(), "prompts are text or token ids");
  f.refused("suffix", "", "the model cannot fill in");
  f.refused("add_special_tokens", true, "the model has no token that begins a text");
  return f;
}

Fields<DetokenizeRequest> make_detokenize_fields() {
  Fields<DetokenizeRequest> f;
  f.text("model", &DetokenizeRequest::model, "the served model's name");
  f.field(
      "tokens", kIdList,
      [](const Json& value, DetokenizeRequest& request) {
        return read_token_ids(value, "tokens", &request.tokens);
      },
      "token ids", true);
  return f;
}

ApiStatus check_generation(const GenerationFields& request) {
  if (request.max_tokens && request.sampling.min_tokens > *request.max_tokens) {
    return invalid("min_tokens",
                   fmt::format("'min_tokens' is {}, but must not exceed 'max_tokens', which is {}.",
                               request.sampling.min_tokens, *request.max_tokens),
                   "invalid_value");
  }
  if ((request.include_usage || request.continuous_usage) && !request.stream) {
    return invalid("stream_options", "'stream_options' needs 'stream': true.", "invalid_value");
  }
  if (request.stream && request.prompt_logprobs >= 0) {
    return unsupported("prompt_logprobs", "'prompt_logprobs' is not available with 'stream'.");
  }
  return {};
}

}  // namespace

const Fields<ChatRequest>& chat_fields() {
  static const Fields<ChatRequest> fields = make_chat_fields();
  return fields;
}

const Fields<CompletionRequest>& completion_fields() {
  static const Fields<CompletionRequest> fields = make_completion_fields();
  return fields;
}

const Fields<DetokenizeRequest>& detokenize_fields() {
  static const Fields<DetokenizeRequest> fields = make_detokenize_fields();
  return fields;
}

Api<ChatRequest> read_chat_request(const Json& document) {
  ChatRequest request;
  request.sampling.num_logprobs = -1;
  if (auto status = chat_fields().read(document, request); !status) {
    return tl::unexpected(status.error());
  }
  if (request.max_completion_tokens) request.max_tokens = request.max_completion_tokens;
  choose_effort(document, &request);
  if (auto status = check_generation(request); !status) return tl::unexpected(status.error());
  if (request.sampling.num_logprobs >= 0 && !request.logprobs) {
    if (request.sampling.num_logprobs > 0) {
      return invalid("top_logprobs", "'top_logprobs' needs 'logprobs': true.", "invalid_value");
    }
    request.sampling.num_logprobs = -1;
  }
  if (request.logprobs && request.sampling.num_logprobs < 0) request.sampling.num_logprobs = 0;
  if (auto status = check_tool_choice(request); !status) return tl::unexpected(status.error());
  return request;
}

Api<CompletionRequest> read_completion_request(const Json& document) {
  CompletionRequest request;
  if (auto status = completion_fields().read(document, request); !status) {
    return tl::unexpected(status.error());
  }
  if (!request.max_tokens) request.max_tokens = std::max(16, request.sampling.min_tokens);
  if (auto status = check_generation(request); !status) return tl::unexpected(status.error());
  if (*request.max_tokens == 0 && !request.echo) {
    return invalid("max_tokens", "'max_tokens' may be 0 only with 'echo': true.", "invalid_value");
  }
  request.sampling.num_logprobs = request.logprobs;
  return request;
}

Api<DetokenizeRequest> read_detokenize_request(const Json& document) {
  DetokenizeRequest request;
  if (auto status = detokenize_fields().read(document, request); !status) {
    return tl::unexpected(status.error());
  }
  return request;
}

Api<TokenizeRequest> read_tokenize_request(const Json& document) {
  TokenizeRequest request;
  Json rest = Json::object(), chat = Json::object();
  const bool has_messages = find_member(document, "messages") != nullptr;
  for (auto it = document.begin(); it != document.end(); ++it) {
    const std::string& key = it.key();
    const bool is_known = key == "return_token_strs" || key == "add_special_tokens" ||
                          key == "prompt" || key == "model";
    if (it->is_null() && (is_known || key == "messages")) continue;
    if (key == "return_token_strs" || key == "add_special_tokens") {
      auto flag = read_bool(*it, key);
      if (!flag) return tl::unexpected(flag.error());
      (key == "return_token_strs" ? request.return_token_strings : request.add_special_tokens) =
          *flag;
    } else if (has_messages && key == "prompt") {
      return invalid(key, "'prompt' and 'messages' exclude one another.", "invalid_value");
    } else if (has_messages) {
      chat[key] = *it;
    } else if (key == "prompt" || key == "model") {
      auto text = read_string(*it, key);
      if (!text) return tl::unexpected(text.error());
      (key == "prompt" ? request.prompt : request.model) = std::move(*text);
    } else {
      return unknown_field(
          key, {"prompt", "model", "messages", "add_special_tokens", "return_token_strs"});
    }
  }
  if (!has_messages) {
    if (find_member(document, "prompt") == nullptr) return missing("prompt");
    return request;
  }
  auto read = read_chat_request(chat);
  if (!read) return tl::unexpected(read.error());
  request.model = read->model;
  request.chat = std::move(*read);
  return request;
}

}  // namespace moxie
