// Functions that the generating endpoints share.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "engine/drafts_json.h"
#include "server/endpoints.h"
#include "text/utf8.h"

namespace moxie {

Result<ServedModel> served_model(Engine& engine, const Tokenizer* tokenizer,
                                 std::unique_ptr<grammar::Compiler>* compiler) {
  ServedModel model{.engine = &engine,
                    .tokenizer = tokenizer != nullptr ? tokenizer : engine.tokenizer()};
  if (model.tokenizer == nullptr) {
    return fail("this model carries no tokenizer", engine.options().model,
                "name one with --tokenizer, such as --tokenizer embedded");
  }
  auto control = harmony::ControlTokens::find(*model.tokenizer);
  if (!control) return fail(std::move(control.error()));
  model.control = *control;
  model.max_model_len = engine.plan().max_model_len;
  for (int32_t id = 0; id < model.tokenizer->vocab_size(); ++id) {
    model.longest_token_bytes =
        std::max(model.longest_token_bytes, model.tokenizer->token_bytes(id).size());
  }
  if (grammar::is_available()) {
    auto made = grammar::Compiler::create(*model.tokenizer, engine.config().vocab);
    if (!made) return fail(std::move(made.error()));
    *compiler = std::move(*made);
    model.compiler = compiler->get();
  }
  model.loaded_at = unix_time();
  return model;
}

App::Continuation answer_with(const ExchangePtr& exchange, const Json& document) {
  return [exchange, response = std::make_shared<HttpResponse>(json_response(document))] {
    exchange->respond(std::move(*response));
  };
}

ApiStatus check_length(const ServedModel& model, size_t num_tokens, const char* param) {
  if (num_tokens < static_cast<size_t>(model.max_model_len)) return {};
  return invalid(param,
                 fmt::format("This model's maximum context length is {} tokens. However, your "
                             "request has {} input tokens, which leaves none for an answer. Please "
                             "shorten the input.",
                             model.max_model_len, num_tokens),
                 "context_length_exceeded");
}

ApiStatus check_text_bytes(const ServedModel& model, size_t num_bytes, const char* param) {
  const size_t longest = std::max<size_t>(model.longest_token_bytes, 1);
  if (num_bytes / longest < static_cast<size_t>(model.max_model_len)) return {};
  return invalid(
      param,
      fmt::format("This model's maximum context length is {} tokens. However, your "
                  "request has {} bytes of text, which are more tokens than that. Please "
                  "shorten the input.",
                  model.max_model_len, num_bytes),
      "context_length_exceeded");
}

ApiStatus check_ids(const ServedModel& model, const GenerationFields& request) {
  const int32_t vocab = model.engine->config().vocab;
  const auto check = [&](int32_t id, const char* param) -> ApiStatus {
    if (id >= 0 && id < vocab) return {};
    return invalid(param,
                   fmt::format("Invalid '{}': token id {} is outside of the vocabulary (0 to {}).",
                               param, id, vocab - 1),
                   "invalid_value");
  };
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    if (auto status = check(id, "logit_bias"); !status) return status;
  }
  for (const int32_t id : request.sampling.stop_ids) {
    if (auto status = check(id, "stop_token_ids"); !status) return status;
  }
  for (const int32_t id : request.sampling.allowed_ids) {
    if (auto status = check(id, "allowed_token_ids"); !status) return status;
  }
  return {};
}

namespace {

size_t text_bytes(const ChatRequest& request, size_t begin) {
  size_t bytes = request.instructions ? request.instructions->size() : 0;
  const auto& messages = request.conversation.messages;
  for (size_t i = begin; i < messages.size(); ++i) bytes += messages[i].text().size();
  return bytes;
}

// Renders the prompt of the messages from `begin` on.
Api<std::vector<int32_t>> prompt_from(const ServedModel& model, const ChatRequest& request,
                                      size_t begin) {
  if (auto status = check_text_bytes(model, text_bytes(request, begin), request.prompt_field);
      !status) {
    return tl::unexpected(status.error());
  }
  harmony::Conversation conversation;
  conversation.messages.push_back(
      harmony::default_system_message(harmony::local_date(), request.effort));
  std::vector<harmony::ToolDescription> functions;
  if (request.tool_choice.mode != ToolChoice::Mode::kNone) {
    for (const FunctionTool& tool : request.tools) functions.push_back(tool.description);
  }
  std::optional<std::string> instructions = request.instructions;
  if (request.structured.kind == StructuredOutput::Kind::kJsonSchema) {
    const std::string& name = request.structured.name;
    std::string format = "# Response Formats\n\n## " + (name.empty() ? "response" : name) + "\n\n" +
                         request.structured.text;
    instructions = instructions ? *instructions + "\n\n" + format : format;
  }
  if (auto message = harmony::developer_message(instructions, std::move(functions))) {
    conversation.messages.push_back(std::move(*message));
  }
  const auto& messages = request.conversation.messages;
  for (size_t i = begin; i < messages.size(); ++i) conversation.messages.push_back(messages[i]);
  harmony::drop_finished_analysis(conversation);
  auto prompt = harmony::render(conversation, harmony::RenderMode::kCompletion,
                                {.auto_drop_analysis = false}, *model.tokenizer);
  if (!prompt) {  // mostly because of a tool's schema
    return invalid(request.prompt_field,
                   "The conversation cannot be rendered: " + prompt.error().message(),
                   "invalid_value");
  }
  if (auto status = check_length(model, prompt->size(), request.prompt_field); !status) {
    return tl::unexpected(status.error());
  }
  return std::move(*prompt);
}

}  // namespace

Api<std::vector<int32_t>> chat_prompt(const ServedModel& model, const ChatRequest& request,
                                      size_t* num_left_out) {
  auto prompt = prompt_from(model, request, 0);
  const auto& messages = request.conversation.messages;
  if (prompt || !request.truncate || messages.empty() ||
      prompt.error().code != "context_length_exceeded") {
    return prompt;
  }
  // Leaves out as few messages as make room for the answer: its requested length, at most half the
  // context; without one, an eighth of the context.
  const auto context = static_cast<size_t>(model.max_model_len);
  const size_t room =
      request.max_tokens ? std::min<size_t>(*request.max_tokens, context / 2) : context / 8;
  size_t least = 1,
         most = messages.size();  // at least one is left out, and the last always stays
  while (least < most) {
    const size_t middle = least + (most - least) / 2;
    auto shorter = prompt_from(model, request, middle);
    if (!shorter && shorter.error().code != "context_length_exceeded") return shorter;
    const bool fits = shorter && shorter->size() + room <= context;
    (fits ? most : least) = fits ? middle : middle + 1;
  }
  least = std::min(least, messages.size() - 1);
  // A result without its call means nothing.
  while (least + 1 < messages.size() && messages[least].role == harmony::Role::kTool) ++least;
  if (num_left_out != nullptr) *num_left_out = least;
  return prompt_from(model, request, least);
}

ApiStatus check_choices(const ServedModel& model, const GenerationInput& input) {
  const ServiceOptions& limits = model.service->options();
  const int32_t most = std::max(limits.max_queue, model.service->stats().max_num_seqs);
  const auto n = static_cast<int64_t>(input.n);
  const int64_t count = n * static_cast<int64_t>(input.prompts.size());
  int64_t num_tokens = 0;
  for (const auto& prompt : input.prompts) num_tokens += n * static_cast<int64_t>(prompt.size());
  if (count <= 1 || (count <= most && num_tokens <= limits.max_queued_tokens)) return {};
  return invalid(n > 1 ? "n" : "prompt",
                 fmt::format("The request asks for {} answers at once, to prompts of {} tokens in "
                             "all. This server takes at most {} answers and {} tokens: please "
                             "split the request.",
                             count, num_tokens, most, limits.max_queued_tokens),
                 "invalid_value");
}

GenerationInput generation_input(const GenerationFields& request, float default_temperature) {
  GenerationInput input{.n = request.n,
                        .sampling = request.sampling,
                        .max_tokens = request.max_tokens.value_or(0),
                        .priority = request.priority,
                        .cache_salt = request.cache_salt,
                        .use_cache = request.use_cache,
                        .prompt_logprobs = request.prompt_logprobs};
  input.sampling.temperature = request.temperature.value_or(default_temperature);
  // The smallest share still keeps the best token.
  input.sampling.top_p = std::max(request.top_p.value_or(1.0f), 1e-6f);
  input.sampling.top_k = std::max(request.sampling.top_k, 0);
  input.sampling.max_tokens = input.max_tokens;
  input.reply = {.stop = request.stop,
                 .include_stop = request.keeps_stop(),
                 .min_tokens = request.sampling.min_tokens,
                 .skip_special = request.skip_special_tokens,
                 .logprobs = request.sampling.num_logprobs >= 0};
  if (!request.keeps_stop()) {
    input.silent_ends = request.sampling.stop_ids;
    std::sort(input.silent_ends.begin(), input.silent_ends.end());
  }
  return input;
}

GenerationInput generation_input(const App& app, const GenerationFields& request) {
  return generation_input(request, app.options().default_temperature);
}

Api<GenerationInput> chat_input_of(const ServedModel& model, const ChatRequest& request,
                                   float default_temperature) {
  if (auto status = check_ids(model, request); !status) return tl::unexpected(status.error());
  GenerationInput input = generation_input(request, default_temperature);
  size_t num_left_out = 0;
  auto prompt = chat_prompt(model, request, &num_left_out);
  if (!prompt) return tl::unexpected(prompt.error());
  input.prompts.push_back(std::move(*prompt));
  if (auto status = check_choices(model, input); !status) return tl::unexpected(status.error());
  auto constraints =
      make_constraints(model, request, &request, static_cast<size_t>(request.n), &input.warnings);
  if (!constraints) return tl::unexpected(constraints.error());
  input.constraints = std::move(*constraints);
  input.warnings.insert(input.warnings.end(), request.warnings.begin(), request.warnings.end());
  if (num_left_out > 0) {
    input.warnings.push_back(fmt::format(
        "truncation: the first {} messages of the conversation were left out", num_left_out));
  }
  for (const FunctionTool& tool : request.tools) {
    input.reply.known_functions.push_back(tool.description.name);
  }
  return input;
}

Api<GenerationInput> chat_input(const App& app, const ChatRequest& request) {
  return chat_input_of(app.model(), request, app.options().default_temperature);
}

Api<std::shared_ptr<Generation>> start_generation(App& app, Exchange& exchange,
                                                  GenerationInput input,
                                                  std::shared_ptr<ReplyWriter> writer) {
  input.arrived = exchange.request().arrived;
  auto generation = Generation::start(app.parts(), std::move(input), std::move(writer));
  if (!generation) return generation;
  exchange.on_abort([weak = std::weak_ptr(*generation)] {
    if (const auto running = weak.lock()) running->cancel();
  });
  return generation;
}

void Usage::add(const ChoiceEnd& end, bool first_of_prompt) {
  if (first_of_prompt) {
    prompt_tokens += end.prompt_tokens;
    cached_tokens += end.cache.hit_tokens;
    cache_report = end.cache.text(end.prompt_tokens);
  }
  completion_tokens += end.completion_tokens;
  reasoning_tokens += end.reasoning_tokens;
  drafts.add(end.drafts);
}

Json Usage::to_json() const {
  Json usage = {
      {"prompt_tokens", prompt_tokens},
      {"completion_tokens", completion_tokens},
      {"total_tokens", prompt_tokens + completion_tokens},
      {"prompt_tokens_details", {{"cached_tokens", cached_tokens}, {"cache_report", cache_report}}},
      {"completion_tokens_details", {{"reasoning_tokens", reasoning_tokens}}}};
  if (drafts.num_positions > 0) usage["speculation"] = drafts_json(drafts);
  return usage;
}

Json rendered_json(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt) {
  return {{"prompt", repaired_utf8(tokenizer.decode(prompt).value_or(""))},
          {"token_ids", prompt},
          {"prompt_token_ids", prompt}};
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return repaired_utf8(tokenizer.token_bytes(id));
}

std::string TokenNames::operator()(int32_t id) const {
  return as_ids ? "token_id:" + std::to_string(id) : token_text(*tokenizer, id);
}

namespace {

Json logprob_entry(const TokenNames& names, int32_t id, float logprob) {
  const std::string_view raw = names.tokenizer->token_bytes(id);
  Json bytes = Json::array();
  for (const char c : raw) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", names(id)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

}  // namespace

Json chat_logprob(const TokenNames& names, const ReplyToken& token) {
  Json entry = logprob_entry(names, token.id, token.logprob);
  Json top = Json::array();
  for (const auto& [id, logprob] : token.top) top.push_back(logprob_entry(names, id, logprob));
  entry["top_logprobs"] = std::move(top);
  return entry;
}

Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<ReplyToken>& tokens) {
  Json list = Json::array();
  for (const ReplyToken& token : tokens) {
    if (list.empty()) {  // the first token has no log-probability
      list.push_back(nullptr);
      continue;
    }
    Json at = Json::object();
    at[std::to_string(token.id)] = {{"logprob", token.logprob},
                                    {"rank", token.rank + 1},
                                    {"decoded_token", token_text(tokenizer, token.id)}};
    int32_t rank = 0;
    for (const auto& [id, logprob] : token.top) {
      at[std::to_string(id)] = {
          {"logprob", logprob}, {"rank", ++rank}, {"decoded_token", token_text(tokenizer, id)}};
    }
    list.push_back(std::move(at));
  }
  return list;
}

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) != name) continue;
    std::string value;
    if (equals == pair.npos || !percent_decode(pair.substr(equals + 1), &value)) return {};
    return value;
  }
  return {};
}

ApiError wrong_query(std::string_view name, std::string_view expected) {
  return {.message = fmt::format("Invalid value for '{}': expected {}.", name, expected),
          .param = std::string(name),
          .code = "invalid_value"};
}

Api<int64_t> query_integer(const HttpRequest& request, std::string_view name, int64_t low,
                           int64_t high, int64_t otherwise) {
  const auto text = query_value(request.query, name);
  if (!text) return otherwise;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error == std::errc() && end == text->data() + text->size() && value >= low && value <= high) {
    return value;
  }
  return tl::unexpected(wrong_query(name, fmt::format("a whole number from {} to {}", low, high)));
}

std::string named_sse(const Json& document) {
  return "event: " + document["type"].get<std::string>() + "\n" + sse(document);
}

std::string sse(const Json& document) { return "data: " + to_text(document) + "\n\n"; }

}  // namespace moxie
