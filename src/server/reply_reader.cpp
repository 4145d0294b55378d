// Turns tokens into a reply.
#include "server/reply_reader.h"

namespace moxie {
namespace {

using harmony::is_function_call, harmony::kFunctions;

// Recipients that are no functions were not offered; text addressed to them counts as reasoning.
bool is_reasoning(const harmony::Message& message) {
  return message.channel == "analysis" || (message.recipient && !is_function_call(message));
}

harmony::ParserOptions parser_options(const ReplyOptions& options) {
  harmony::ParserOptions parser;
  parser.drop_stray_control = true;
  for (const std::string& name : options.known_functions) {
    parser.known_recipients.push_back(std::string(kFunctions) + name);
  }
  return parser;
}

}  // namespace

ReplyReader::ReplyReader(const Tokenizer& tokenizer, const harmony::ControlTokens& control,
                         ReplyOptions options)
    : tokenizer_(&tokenizer),
      control_(control),
      options_(std::move(options)),
      plain_(tokenizer, options_.skip_special),
      stop_(options_.stop, options_.include_stop) {
  if (options_.harmony) parser_.emplace(tokenizer, control, parser_options(options_));
}

bool ReplyReader::take(ReplyToken token, std::vector<Delta>* out) {
  if (stopped_) return false;
  const int32_t id = token.id;
  ++num_tokens_;
  if (!parser_) {
    // Tokens without text have an entry too, so that entries match the drawn tokens.
    if (options_.logprobs) pending_.push_back(std::move(token));
    add_content(plain_.push(id), out);
    return !stopped_;
  }
  if (id == control_.endoftext) return true;  // ends the answer; not in its text
  const auto& events = parser_->process(id);
  if (parser_->has_open_message()) {
    const harmony::Message& open = parser_->message(parser_->messages().size());
    if (is_reasoning(open)) {
      ++num_reasoning_tokens_;
    } else if (options_.logprobs && !is_function_call(open) && !tokenizer_->is_special(id)) {
      pending_.push_back(std::move(token));
    }
  }
  take_events(events, out);
  return !stopped_;
}

void ReplyReader::take_end(ReplyToken token) {
  // Programs that score texts count on an entry for each drawn token.
  if (!stopped_ && !parser_ && options_.logprobs) pending_.push_back(std::move(token));
}

void ReplyReader::finish(std::vector<Delta>* out) {
  if (!stopped_) {
    if (parser_) {
      take_events(parser_->finish(), out);
    } else {
      add_content(plain_.flush(), out);
    }
  }
  if (!stopped_) {
    std::string rest;
    stop_.flush(&rest);
    emit_content(std::move(rest), /*is_certain=*/true, out);
  }
  for (ToolCall& call : reply_.tool_calls) {
    if (call.arguments.empty()) {
      call.arguments = "{}";
      out->push_back({.part = ReplyPart::kToolArguments,
                      .text = "{}",
                      .call_idx = static_cast<size_t>(&call - reply_.tool_calls.data()),
                      .tokens = {}});
    }
  }
}

void ReplyReader::take_events(const std::vector<harmony::Event>& events, std::vector<Delta>* out) {
  for (const harmony::Event& event : events) {
    if (stopped_) return;
    const harmony::Message& message = parser_->message(event.message_idx);
    if (event.kind == harmony::Event::Kind::kOpen) {
      open(message, out);
    } else if (is_function_call(message)) {
      add(ReplyPart::kToolArguments, event.text, out);
    } else if (is_reasoning(message)) {
      add(ReplyPart::kReasoning, event.text, out);
    } else {
      add_content(event.text, out);
    }
  }
}

void ReplyReader::open(const harmony::Message& message, std::vector<Delta>* out) {
  if (is_function_call(message)) {
    reply_.tool_calls.push_back({message.recipient->substr(kFunctions.size()), ""});
    out->push_back({.part = ReplyPart::kToolName,
                    .text = reply_.tool_calls.back().name,
                    .call_idx = reply_.tool_calls.size() - 1,
                    .tokens = {}});
    return;
  }
  // Several texts of one kind are joined by a line break.
  if (is_reasoning(message)) {
    if (!reply_.reasoning.empty()) add(ReplyPart::kReasoning, "\n", out);
  } else if (!reply_.content.empty()) {
    add_content("\n", out);
  }
}

void ReplyReader::add(ReplyPart part, std::string_view text, std::vector<Delta>* out) {
  if (text.empty()) return;
  Delta delta{.part = part, .text = std::string(text), .call_idx = 0, .tokens = {}};
  if (part == ReplyPart::kReasoning) {
    reply_.reasoning += text;
  } else {
    reply_.tool_calls.back().arguments += text;
    delta.call_idx = reply_.tool_calls.size() - 1;
  }
  out->push_back(std::move(delta));
}

void ReplyReader::add_content(std::string_view text, std::vector<Delta>* out) {
  std::string certain;
  stopped_ = stop_.push(text, &certain, num_tokens_ > options_.min_tokens);
  emit_content(std::move(certain), stopped_ || stop_.empty(), out);
}

void ReplyReader::emit_content(std::string text, bool is_certain, std::vector<Delta>* out) {
  if (text.empty() && pending_.empty()) return;
  if (text.empty() && !is_certain) return;  // the text is held back, with its tokens
  reply_.content += text;
  out->push_back({.part = ReplyPart::kContent,
                  .text = std::move(text),
                  .call_idx = 0,
                  .tokens = std::exchange(pending_, {})});
}

std::vector<harmony::Message> ReplyReader::messages() const {
  std::vector<harmony::Message> list;
  if (!parser_) return list;
  for (const auto& parsed : parser_->messages()) list.push_back(parsed.message);
  return list;
}

std::vector<std::string> ReplyReader::warnings() const {
  return parser_ ? parser_->warnings() : std::vector<std::string>();
}

}  // namespace moxie
