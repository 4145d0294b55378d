// The parser's states. One token completes at most one message, except where a broken header turns
// out to hold several.
//
// Positions in raw_ (bytes since the last finished message) mark where headers begin, so that every
// message gets exactly the bytes of its own tokens and nothing is ever dropped.
#include <algorithm>
#include <array>
#include <span>

#include "text/bpe.h"
#include "text/harmony_header.h"
#include "text/harmony_parser.h"
#include "text/utf8.h"

namespace moxie::harmony {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
// How long a possible header in the middle of a content (whose end is missing) is held.
constexpr size_t kMaxHeldIds = 64;
constexpr size_t kMaxWarnings = 100;
constexpr size_t kMaxQuotedBytes = 4000;

std::string in_quotes(std::string_view text) {
  std::string out = "'" + repaired_utf8(text.substr(0, kMaxQuotedBytes));
  return out + (text.size() > kMaxQuotedBytes ? "'..." : "'");
}

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\n\v\f\r") == std::string_view::npos;
}

// Whether `word` is one of `names`, or (not `whole`) begins one.
bool begins_any(std::span<const std::string_view> names, std::string_view word, bool whole) {
  return std::ranges::any_of(
      names, [&](std::string_view name) { return whole ? name == word : name.starts_with(word); });
}

bool begins_role(std::string_view word, bool whole) {
  constexpr std::string_view kNames[] = {"assistant", "user", "system", "developer", "tool"};
  return begins_any(kNames, word, whole);
}

bool begins_channel(std::string_view word, bool whole) {
  constexpr std::string_view kNames[] = {"analysis", "commentary", "final"};
  return begins_any(kNames, word, whole);
}

}  // namespace

std::string_view state_name(ParserState state) {
  switch (state) {
    case ParserState::kExpectStart:
      return "ExpectStart";
    case ParserState::kHeader:
      return "Header";
    case ParserState::kContent:
      return "Content";
  }
  return "";
}

Parser::Parser(const Tokenizer& tokenizer, const ControlTokens& control, ParserOptions options)
    : tokenizer_(&tokenizer),
      control_(control),
      options_(std::move(options)),
      is_model_output_(options_.repair_answers && options_.role == Role::kAssistant),
      state_(options_.role ? ParserState::kHeader : ParserState::kExpectStart),
      hint_(options_.role) {}

const std::vector<Event>& Parser::process(int32_t id) {
  CHECK(!finished_, "process after finish");
  events_.clear();
  last_delta_.reset();
  raw_ += bytes_of(id);
  switch (state_) {
    case ParserState::kExpectStart:
      on_expect_start(id);
      break;
    case ParserState::kHeader:
      on_header(id);
      break;
    case ParserState::kContent:
      on_content(id);
      break;
  }
  return events_;
}

const std::vector<Event>& Parser::finish() {
  events_.clear();
  last_delta_.reset();
  if (finished_) return events_;
  finished_ = true;
  if (state_ == ParserState::kHeader) {
    refuse();
    if (header_.empty()) {
      warn("the output ends before a message");
      state_ = ParserState::kExpectStart;
      hint_.reset();
    } else {
      end_header(MessageEnd::kCut, 0);
    }
  } else if (state_ == ParserState::kContent) {
    if (!held_.empty() && holds_header(/*complete=*/false)) {
      begin_held_message();
      end_header(MessageEnd::kCut, 0);
    } else {
      release_held();
      close(MessageEnd::kCut, raw_.size());
    }
  }
  return events_;
}

// ---- the three states

void Parser::on_expect_start(int32_t id) {
  if (id == control_.start) {
    begin_header(/*implicit=*/false);
    return;
  }
  refuse();
  if (is_end(id)) {
    warn(in_quotes(tokenizer_->token_bytes(id)) + " outside a message");
    return;
  }
  begin_header(/*implicit=*/true);
  header_raw_ -= bytes_of(id).size();
  on_header(id);
}

void Parser::begin_header(bool implicit) {
  state_ = ParserState::kHeader;
  implicit_ = implicit;
  header_.clear();
  header_raw_ = raw_.size();
}

void Parser::on_header(int32_t id) {
  if (id == control_.message) {
    finish_header();
  } else if (is_end(id) && (is_model_output_ || implicit_)) {
    end_header(end_of(id), bytes_of(id).size());
  } else if (control_.is_stop(id) && !options_.strict) {
    salvage_leniently(id);
  } else if (id == control_.start && implicit_) {
    end_header(MessageEnd::kMissing, 0);
    begin_header(/*implicit=*/false);
  } else {
    header_.push_back(id);
  }
}

void Parser::on_content(int32_t id) {
  if (!held_.empty()) {
    const bool gives_up = control_.is_stop(id) || id == control_.start || id == control_.message ||
                          held_.size() >= kMaxHeldIds;
    if (id == control_.message && holds_header(/*complete=*/true)) {
      begin_held_message();
      finish_header();
      return;
    }
    if (!gives_up) {
      held_.push_back(id);
      if (!holds_header(/*complete=*/false)) release_held();
      return;
    }
    release_held();
  }
  if (control_.is_stop(id)) {
    close(end_of(id), raw_.size());
    last_delta_.reset();
  } else if (is_model_output_ && (id == control_.start || id == control_.channel) &&
             undecoded_.empty() && !saw_unknown_id_) {
    held_.push_back(id);
    held_raw_ = raw_.size() - tokenizer_->token_bytes(id).size();
  } else {
    append_content(id);
  }
}

// ---- headers

void Parser::finish_header() {
  std::string text;
  StrictHeader strict;
  if (!implicit_ && decode_soundly(header_, &text)) strict = parse_header_strictly(text, hint_);
  if (!strict.ok) {
    refuse();
    recover_header();
  } else if (is_model_output_ && is_lone_content_type(strict)) {
    strict.header.content_type = std::move(strict.header.recipient);
    strict.header.recipient.reset();
    warn("the header's only word " + in_quotes(*strict.header.content_type) +
         " is taken as the content type");
    open(strict.header, /*repaired=*/true);
  } else if (is_model_output_ && is_misread(strict, options_.known_recipients)) {
    recover_header();
  } else {
    open(strict.header, /*repaired=*/false);
  }
}

// The header reached <|message|> but is not valid. It may hold the remains of earlier messages; any
// text among these becomes separate messages.
void Parser::recover_header() {
  const std::vector<Segment> segments = split_header(MessageEnd::kMissing);
  for (size_t i = 0; i + 1 < segments.size(); ++i) salvage(segments[i], i == 0);
  const Segment& last = segments.back();
  const bool is_first = segments.size() == 1;
  const std::optional<Role> role = is_first && !last.has_start ? hint_ : std::nullopt;
  const std::string text = decode(last.ids);
  RepairedHeader repaired = repair_header(text, role, is_first && implicit_ && !last.has_start,
                                          options_.known_recipients);
  std::string note = "the header " + in_quotes(text) + " was repaired";
  if (!repaired.rest.empty()) note += ", nothing in it takes " + in_quotes(repaired.rest);
  warn(std::move(note));
  open(repaired.header, /*repaired=*/true);
  header_rest_ = header_text(std::move(repaired.rest));
}

// The header ended without <|message|>, by a token of `end_bytes` bytes.
void Parser::end_header(MessageEnd end, size_t end_bytes) {
  std::vector<Segment> segments = split_header(end);
  segments.back().raw_bytes += end_bytes;
  for (size_t i = 0; i < segments.size(); ++i) salvage(segments[i], i == 0);
  header_.clear();
  hint_.reset();
  implicit_ = false;
  state_ = ParserState::kExpectStart;
}

// The package's lenient mode, for input that is not a model's output: a stop ends the header, and
// its words after role and channel become a message if the role was known beforehand.
void Parser::salvage_leniently(int32_t id) {
  if (hint_ && !header_.empty()) {
    std::string text;
    StrictHeader strict;
    if (decode_soundly(header_, &text)) strict = parse_header_strictly(text, hint_, true);
    if (!strict.ok) {
      refuse();
      return end_header(end_of(id), bytes_of(id).size());
    }
    warn("no <|message|> in " + in_quotes(text) + ": its words were taken as the content");
    open(strict.header, /*repaired=*/true);
    add_text(header_text(strict.rest));
    close(end_of(id), raw_.size());
    last_delta_.reset();
  } else if (!header_.empty()) {
    warn("dropped a header without <|message|>: " + in_quotes(decode(header_)));
  }
  header_.clear();
  hint_.reset();
  state_ = ParserState::kExpectStart;
}

// Makes a message of a header without <|message|>, if it has text, or if it ended soundly and names
// a recipient or channel. The message's raw text is taken from the front of raw_; without a message
// it stays there for the next one.
bool Parser::salvage(const Segment& segment, bool is_first) {
  const std::optional<Role> role = is_first && !segment.has_start ? hint_ : std::nullopt;
  const bool bare =
      (is_first && implicit_ && !segment.has_start) || (!is_first && !segment.has_start);
  const std::string text = decode(segment.ids);
  RepairedHeader parts = salvage_header(text, role, bare, segment.end == MessageEnd::kCut);
  const size_t raw_end = header_raw_ + segment.raw_bytes;
  header_raw_ = raw_end;
  const bool ended = segment.end != MessageEnd::kCut && segment.end != MessageEnd::kMissing;
  const bool goes_somewhere = parts.header.channel || parts.header.recipient;
  if (parts.rest.empty() && !(ended && goes_somewhere)) {
    warn(text.empty() ? "an empty header" : "dropped a header without content: " + in_quotes(text));
    return false;
  }
  warn(bare ? "text outside a message: " + in_quotes(parts.rest)
            : "no <|message|> in " + in_quotes(text) + ": the text was taken as the content");
  open(parts.header, /*repaired=*/true);
  add_text(header_text(std::move(parts.rest)));
  close(segment.end, raw_end);
  last_delta_.reset();
  header_raw_ = 0;
  return true;
}

// Cuts the header ids at the tokens that end messages and at each <|start|> that begins one. There
// is always a last segment, perhaps empty.
std::vector<Parser::Segment> Parser::split_header(MessageEnd last_end) const {
  std::vector<Segment> segments(1, Segment{{}, false, last_end, 0});
  for (size_t i = 0; i < header_.size(); ++i) {
    const int32_t id = header_[i];
    const size_t num_bytes = bytes_of(id).size();
    if (is_end(id)) {
      segments.back().end = end_of(id);
      segments.back().raw_bytes += num_bytes;
      segments.push_back({{}, false, last_end, 0});
    } else if (id == control_.start && begins_message(i)) {
      if (!segments.back().ids.empty()) {
        segments.back().end = MessageEnd::kMissing;
        segments.push_back({{}, false, last_end, 0});
      }
      segments.back().has_start = true;
      segments.back().raw_bytes += num_bytes;
    } else {
      segments.back().ids.push_back(id);
      segments.back().raw_bytes += num_bytes;
    }
  }
  return segments;
}

// Whether the <|start|> at header_[header_idx] begins a message: a role follows, or nothing comes
// before. A stray <|start|> inside a header does not.
bool Parser::begins_message(size_t header_idx) const {
  std::string text;
  const size_t end_idx = std::min(header_.size(), header_idx + 16);
  for (size_t i = header_idx + 1; i < end_idx; ++i) {
    if (tokenizer_->is_special(header_[i])) break;
    text += tokenizer_->token_bytes(header_[i]);
  }
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos) {
    const int32_t before = header_idx > 0 ? header_[header_idx - 1] : control_.start;
    return before == control_.start || is_end(before);
  }
  const size_t end = text.find_first_of(" \t\r\n:", begin);
  const std::string word = text.substr(begin, end - begin);
  return begins_role(word, /*whole=*/true) || word.starts_with("functions.") ||
         word.starts_with("to=");
}

// ---- a header in a content: the message before it has no end

// Whether the held ids are a header (`complete`: <|message|> came) or may become one: <|start|> and
// a role, or <|channel|> and a channel. Anything else is text with control tokens in it.
bool Parser::holds_header(bool complete) const {
  const bool has_start = held_.front() == control_.start;
  std::string text;
  if (!decode_soundly({held_.begin() + 1, held_.end()}, &text)) return false;
  const size_t word_end = std::min(text.find_first_of(" \t\r\n:<"), text.size());
  const std::string_view word = std::string_view(text).substr(0, word_end);
  if (!complete) {
    const bool whole = word_end < text.size();
    return has_start ? begins_role(word, whole) : begins_channel(word, whole);
  }
  if (has_start) {
    return begins_role(word, /*whole=*/true) || parse_header_strictly(text, std::nullopt).ok;
  }
  const StrictHeader strict = parse_header_strictly(decode(held_), Role::kAssistant);
  return strict.ok && begins_channel(word, /*whole=*/true) &&
         (!strict.bare_recipient || is_lone_content_type(strict));
}

void Parser::begin_held_message() {
  warn("the message has no end: the next one begins inside it");
  const bool has_start = held_.front() == control_.start;
  const size_t start_bytes = has_start ? tokenizer_->token_bytes(control_.start).size() : 0;
  close(MessageEnd::kMissing, held_raw_);
  state_ = ParserState::kHeader;
  implicit_ = false;
  header_.assign(held_.begin() + (has_start ? 1 : 0), held_.end());
  header_raw_ = start_bytes;
  if (!has_start) hint_ = Role::kAssistant;
  held_.clear();
}

void Parser::release_held() {
  const std::vector<int32_t> ids = std::move(held_);
  held_.clear();
  for (const int32_t id : ids) append_content(id);
}

// ---- contents

// One token's bytes to text, with at most one repair: openai-harmony's deltas lag behind a token
// with several faults, and so do these.
void Parser::append_content(int32_t id) {
  if (options_.drop_stray_control && tokenizer_->is_special(id)) {
    warn(in_quotes(tokenizer_->token_bytes(id)) + " inside a text was left out");
    return;
  }
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (bytes.empty()) saw_unknown_id_ = true;
  if (saw_unknown_id_) {
    swallowed_ += bytes;
    return;
  }
  undecoded_ += bytes;
  std::string text;
  size_t pos = 0;
  while (pos < undecoded_.size()) {
    const Utf8Char c = decode_utf8(undecoded_, pos);
    if (c.valid) {
      pos += c.size_bytes;
      continue;
    }
    text = undecoded_.substr(0, pos);
    if (!c.truncated) {
      text += kReplacement;
      pos += c.size_bytes;
    }
    break;
  }
  if (pos == undecoded_.size() && text.empty()) {
    text = std::move(undecoded_);
    undecoded_.clear();
  } else {
    undecoded_.erase(0, pos);
  }
  if (!text.empty()) add_text(text);
}

void Parser::open(const Header& header, bool repaired) {
  open_ = {};
  open_.repaired = repaired;
  Message& message = open_.message;
  message.role = header.role;
  message.name = header.name;
  message.channel = header.channel;
  message.recipient = header.recipient;
  message.content_type = header.content_type;
  message.content.push_back(TextContent{});
  header_.clear();
  hint_.reset();
  implicit_ = false;
  state_ = ParserState::kContent;
  events_.push_back({Event::Kind::kOpen, messages_.size(), {}});
}

void Parser::add_text(std::string_view text) {
  if (text.empty()) return;
  open_text() += text;
  last_delta_ = last_delta_.value_or("") + std::string(text);
  if (!events_.empty() && events_.back().kind == Event::Kind::kText) {
    events_.back().text += text;
  } else {
    events_.push_back({Event::Kind::kText, messages_.size(), std::string(text)});
  }
}

void Parser::close(MessageEnd end, size_t raw_end) {
  std::string tail = saw_unknown_id_ ? std::string(kReplacement) : std::string();
  append_repaired_utf8(undecoded_, &tail);
  if (saw_unknown_id_) {
    warn("an id that is in no table; what follows it is not in the content: " +
         in_quotes(swallowed_));
  }
  if (!header_rest_.empty() && is_blank(open_text() + tail)) {
    warn("an empty content: the header's " + in_quotes(header_rest_) + " was taken instead");
    tail += header_rest_;
    open_.repaired = true;
  }
  open_text() += tail;
  events_.push_back({Event::Kind::kClose, messages_.size(), std::move(tail)});
  open_.end = end;
  open_.raw = raw_.substr(0, raw_end);
  raw_.erase(0, raw_end);
  messages_.push_back(std::move(open_));
  open_ = {};
  undecoded_.clear();
  swallowed_.clear();
  header_rest_.clear();
  saw_unknown_id_ = false;
  state_ = ParserState::kExpectStart;
}

// ---- small parts

std::string_view Parser::bytes_of(int32_t id) const {
  const std::string_view bytes = tokenizer_->token_bytes(id);
  return bytes.empty() ? kReplacement : bytes;
}

std::array<int32_t, 7> Parser::format_ids() const {
  return {control_.start,     control_.end,          control_.message, control_.channel,
          control_.constrain, control_.return_token, control_.call};
}

std::string Parser::decode(const std::vector<int32_t>& ids) const {
  std::string bytes;
  const auto format = format_ids();
  for (const int32_t id : ids) {
    const bool is_stray = options_.drop_stray_control && tokenizer_->is_special(id) &&
                          std::ranges::find(format, id) == format.end();
    if (!is_stray) bytes += bytes_of(id);
  }
  return repaired_utf8(bytes);
}

bool Parser::decode_soundly(const std::vector<int32_t>& ids, std::string* text) const {
  text->clear();
  for (const int32_t id : ids) {
    const std::string_view token = tokenizer_->token_bytes(id);
    if (token.empty()) return false;
    *text += token;
  }
  return is_valid_utf8(*text);
}

// The text of a header that is shown.
std::string Parser::header_text(std::string text) const {
  if (!options_.drop_stray_control) return text;
  for (const int32_t id : format_ids()) {
    const std::string_view name = tokenizer_->token_bytes(id);
    for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at)) {
      text.erase(at, name.size());
    }
  }
  return text;
}

MessageEnd Parser::end_of(int32_t id) const {
  if (id == control_.call) return MessageEnd::kCall;
  return id == control_.end ? MessageEnd::kEnd : MessageEnd::kReturn;
}

std::string& Parser::open_text() { return std::get<TextContent>(open_.message.content[0]).text; }

void Parser::warn(std::string text) {
  if (warnings_.size() == kMaxWarnings) warnings_.push_back("further warnings are left out");
  if (warnings_.size() > kMaxWarnings) return;
  warnings_.push_back("message " + std::to_string(messages_.size()) + ": " + std::move(text));
}

void Parser::refuse() {
  if (!refused_after_) refused_after_ = messages_.size();
}

const Message& Parser::message(size_t message_idx) const {
  CHECK(message_idx < messages_.size() + (has_open_message() ? 1 : 0), "no such message");
  return message_idx < messages_.size() ? messages_[message_idx].message : open_.message;
}

std::string_view Parser::current_content() const {
  if (!has_open_message()) return {};
  return std::get<TextContent>(open_.message.content[0]).text;
}

std::optional<Role> Parser::current_role() const {
  return has_open_message() ? std::optional<Role>(open_.message.role) : hint_;
}

std::optional<std::string> Parser::current_channel() const {
  return has_open_message() ? open_.message.channel : std::nullopt;
}

std::optional<std::string> Parser::current_recipient() const {
  return has_open_message() ? open_.message.recipient : std::nullopt;
}

std::optional<std::string> Parser::current_content_type() const {
  return has_open_message() ? open_.message.content_type : std::nullopt;
}

}  // namespace moxie::harmony
