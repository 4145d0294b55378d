// Requests of the OpenAI endpoints as structs, and their tables of fields.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/fields.h"
#include "text/harmony.h"

namespace moxie {

/// The constraint on an answer's text.
struct StructuredOutput {
  enum class Kind : uint8_t { kNone, kJsonObject, kJsonSchema, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kNone;
  std::string name;                  ///< of a schema; may be empty
  std::string text;                  ///< the schema as JSON text, the regex, the grammar
  std::vector<std::string> choices;  ///< kChoice
  bool compact = false;              ///< JSON without white space
  std::string param;                 ///< the field that asked for it, for errors
};

struct ToolChoice {
  enum class Mode : uint8_t { kAuto, kNone, kRequired, kNamed };
  Mode mode = Mode::kAuto;
  std::string name;                  ///< kNamed
  std::vector<std::string> allowed;  ///< kAuto and kRequired: the tools allowed; empty: all
};

/// The fields of all generating endpoints.
struct GenerationFields {
  std::string model;
  SamplingOptions sampling;  ///< as asked; the seed of choice i is seed + i
  std::optional<float> temperature, top_p;
  int32_t n = 1;
  bool stream = false;
  bool include_usage = false, continuous_usage = false;
  std::vector<std::string> stop;
  std::vector<std::string> bad_words;
  bool include_stop = false, no_stop_trim = false;  ///< two names of one wish, see keeps_stop()
  bool skip_special_tokens = true;
  bool return_token_ids = false;
  bool tokens_as_ids = false;  ///< log-probabilities name tokens "token_id:N"
  std::optional<int32_t> max_tokens;
  int32_t priority = 0;
  std::string cache_salt;
  bool use_cache = true;
  int32_t prompt_logprobs = -1;
  StructuredOutput structured;
  /// The stop string stays in the text.
  bool keeps_stop() const { return include_stop || no_stop_trim; }
};

/// One tool of a chat, with the data that a constraint needs.
struct FunctionTool {
  harmony::ToolDescription description;
  std::optional<bool> strict;  ///< as the request says
};

struct ChatRequest : GenerationFields {
  harmony::Conversation conversation;  ///< without system and developer message
  std::optional<std::string> instructions;
  std::vector<FunctionTool> tools;
  ToolChoice tool_choice;
  bool parallel_tool_calls = true;
  harmony::ReasoningEffort effort = harmony::ReasoningEffort::kMedium;
  /// Of chat_template_kwargs or chat_template_args: counts if no other field asks for an effort.
  std::optional<harmony::ReasoningEffort> template_effort;
  bool logprobs = false;
  bool include_reasoning = true;
  bool separate_reasoning = true;  ///< false: reasoning stands in the content
  bool stream_reasoning = true;    ///< false: a stream sends a piece of reasoning as a whole
  std::optional<int32_t> max_completion_tokens;  ///< as asked; overrides max_tokens
  const char* prompt_field = "messages";         ///< of the route, for errors
  bool truncate = false;              ///< a prompt that is too long loses its first messages
  std::vector<std::string> warnings;  ///< wishes that will not be met; for the answer
};

struct CompletionRequest : GenerationFields {
  /// Texts or token ids, one answer (of n choices) each.
  std::vector<std::string> texts;
  std::vector<std::vector<int32_t>> ids;
  bool echo = false;
  int32_t logprobs = -1;
  /// How many tokens of a prompt are kept; -1: as many as leave room for the answer.
  std::optional<int32_t> truncate_prompt_tokens;
  bool truncate_end = false;  ///< the first tokens are kept, not the last
};

/// Texts or token ids of /tokenize and /detokenize.
struct TokenizeRequest {
  std::string model, prompt;
  std::optional<ChatRequest> chat;  ///< messages instead of a prompt
  bool add_special_tokens = true, return_token_strings = false;
};
struct DetokenizeRequest {
  std::string model;
  std::vector<int32_t> tokens;
};

const Fields<ChatRequest>& chat_fields();
const Fields<CompletionRequest>& completion_fields();
const Fields<DetokenizeRequest>& detokenize_fields();

Api<ChatRequest> read_chat_request(const Json& document);
Api<CompletionRequest> read_completion_request(const Json& document);
Api<TokenizeRequest> read_tokenize_request(const Json& document);
Api<DetokenizeRequest> read_detokenize_request(const Json& document);

// Fields that other endpoints use too.

template <class T>
void add_sampling_fields(Fields<T>& fields);
template <class T>
void add_generation_fields(Fields<T>& fields);
/// tools and tool_choice, for chats.
template <class T>
void add_tool_fields(Fields<T>& fields);
/// priority and cache_salt.
template <class T>
void add_scheduling_fields(Fields<T>& fields);
/// Fields of OpenAI's platform that mean nothing to a single server.
template <class T>
void add_platform_fields(Fields<T>& fields);
/// How much a chat reasons, and where the reasoning stands.
void add_reasoning_fields(Fields<ChatRequest>& fields);
/// An effort of chat_template_kwargs or chat_template_args counts if `document` has no other.
void choose_effort(const Json& document, ChatRequest* request);
/// The member `effort` of "reasoning", which must be an object.
ApiStatus read_reasoning_effort(const Json& reasoning, ChatRequest& request);
/// `left_out` not null: tools that OpenAI's platform would run are skipped, and each adds a line
/// there.
ApiStatus read_tools(const Json& value, const std::string& param, std::vector<FunctionTool>* tools,
                     std::vector<std::string>* left_out = nullptr);
Api<ToolChoice> read_tool_choice(const Json& value);
/// {"type": "text" | "json_object" | "json_schema", ...}; `param` is the field.
ApiStatus read_response_format(const Json& value, const std::string& param, StructuredOutput* out);
Api<harmony::ReasoningEffort> read_effort(const Json& value, const std::string& param);
/// Fails unless the name is one that OpenAI allows; dots are allowed too.
ApiStatus check_function_name(const std::string& name, const std::string& param);
/// Fails if the named tool does not exist, or if a tool is required and there are none.
ApiStatus check_tool_choice(const ChatRequest& request);
ApiStatus read_token_ids(const Json& value, const std::string& param, std::vector<int32_t>* ids);

}  // namespace moxie
