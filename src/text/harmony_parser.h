// The streaming parser of harmony: token ids in, messages and text deltas out. It never fails.
//
// Where openai-harmony 0.0.8 has a sound result, this parser gives the same one, after every token.
// Where that package throws (or silently misreads what a model wrote), this parser recovers: it
// keeps finished messages, repairs the rest as well as it can, and adds a warning. Every input byte
// is in some message's `raw` or in trailing_raw().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/harmony.h"

namespace moxie::harmony {

enum class MessageEnd {
  kEnd,
  kCall,
  kReturn,
  kCut,      ///< the stream ended inside the message
  kMissing,  ///< the next message began without an end of this one
};

struct ParsedMessage {
  Message message;  ///< one text content
  std::string raw;  ///< the bytes of its tokens, control tokens as their names; may be bad UTF-8
  MessageEnd end = MessageEnd::kCut;
  bool repaired = false;  ///< made by a repair: a warning says which
};

/// One effect of a token; effects come in order. A token may close one message and open others.
struct Event {
  enum class Kind { kOpen, kText, kClose };
  Kind kind;
  size_t message_idx;  ///< into messages(); the open message has index messages().size()
  std::string text;    ///< kText: valid UTF-8 to append; kClose: the held tail, appended last
};

struct ParserOptions {
  /// The role that the prompt already ended with (<|start|>role); none: the ids start with
  /// <|start|>. With kAssistant the ids count as a model's output, see `repair_answers`.
  std::optional<Role> role = Role::kAssistant;
  /// The package's flag: a stop token inside a header is header text (strict) or ends it.
  bool strict = true;
  /// Also repairs what the package accepts but misreads in a model's output (role kAssistant): a
  /// content type or channel read as recipient, doubled channels, stops in headers, a missing end.
  /// Off: repairs only what the package refuses.
  bool repair_answers = true;
  /// Control tokens inside a text are left out. Off: the text has their names, as in the package.
  bool drop_stray_control = false;
  /// Full tool names ("functions.f"), used to tell a glued content type from a name.
  std::vector<std::string> known_recipients;
};

enum class ParserState { kExpectStart, kHeader, kContent };
std::string_view state_name(ParserState state);  ///< "ExpectStart", "Header", "Content"

/// The parts of a header.
struct Header {
  Role role = Role::kAssistant;
  std::optional<std::string> name;
  std::optional<std::string> channel;
  std::optional<std::string> recipient;
  std::optional<std::string> content_type;
};

class Parser {
 public:
  /// `tokenizer` must outlive the parser; only its id -> bytes table is used.
  Parser(const Tokenizer& tokenizer, const ControlTokens& control, ParserOptions options = {});

  /// Takes one token; ids that are in no table are allowed. The events are valid until the next
  /// call of process or finish.
  const std::vector<Event>& process(int32_t id);
  /// The stream is over: closes what is open. A second call does nothing.
  const std::vector<Event>& finish();

  const std::vector<ParsedMessage>& messages() const { return messages_; }  ///< the finished ones
  /// Header (and so far the content) of a finished or of the open message.
  const Message& message(size_t message_idx) const;
  bool has_open_message() const { return state_ == ParserState::kContent; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  std::string_view trailing_raw() const { return raw_; }

  // The package's accessors, with its meaning.
  ParserState state() const { return state_; }
  std::optional<Role> current_role() const;
  std::optional<std::string> current_channel() const;
  std::optional<std::string> current_recipient() const;
  std::optional<std::string> current_content_type() const;
  const std::optional<std::string>& last_content_delta() const { return last_delta_; }
  /// Text of the open message so far, without a held tail.
  std::string_view current_content() const;

  /// Set where the package would have thrown: the number of messages finished by then.
  std::optional<size_t> refused_after() const { return refused_after_; }

 private:
  // A stretch of header ids between control tokens that begin or end messages.
  struct Segment {
    std::vector<int32_t> ids;
    bool has_start;    // began with <|start|>
    MessageEnd end;    // what stands behind it
    size_t raw_bytes;  // of it and of what stands behind it
  };

  void begin_header(bool implicit);
  void on_expect_start(int32_t id);
  void on_header(int32_t id);
  void on_content(int32_t id);
  void finish_header();
  void recover_header();
  void end_header(MessageEnd end, size_t end_bytes);
  void salvage_leniently(int32_t id);
  bool salvage(const Segment& segment, bool is_first);
  std::vector<Segment> split_header(MessageEnd last_end) const;
  bool begins_message(size_t header_idx) const;

  bool holds_header(bool complete) const;
  void begin_held_message();
  void release_held();
  void append_content(int32_t id);
  void open(const Header& header, bool repaired);
  void add_text(std::string_view text);
  void close(MessageEnd end, size_t raw_end);

  std::string_view bytes_of(int32_t id) const;  // U+FFFD for an id in no table
  std::array<int32_t, 7> format_ids() const;
  std::string header_text(std::string text) const;
  std::string decode(const std::vector<int32_t>& ids) const;
  bool decode_soundly(const std::vector<int32_t>& ids, std::string* text) const;
  bool is_end(int32_t id) const { return control_.is_stop(id) || id == control_.endoftext; }
  MessageEnd end_of(int32_t id) const;
  std::string& open_text();
  void warn(std::string text);
  void refuse();

  const Tokenizer* tokenizer_;
  ControlTokens control_;
  ParserOptions options_;
  bool is_model_output_;  // answers are repaired too

  ParserState state_;
  std::optional<Role> hint_;  // until the first <|message|>
  bool implicit_ = false;     // this header began without <|start|>
  bool finished_ = false;
  std::vector<int32_t> header_;  // ids of the header so far
  size_t header_raw_ = 0;        // where the header begins in raw_
  std::vector<int32_t> held_;    // ids in a content that may be the next message's header
  size_t held_raw_ = 0;

  ParsedMessage open_;
  std::string undecoded_;  // bytes that are not yet a character
  std::string swallowed_;  // the text after an unknown id, up to the end of its message
  bool saw_unknown_id_ = false;
  std::string header_rest_;  // header text that belongs to no field

  std::string raw_;  // bytes since the last finished message
  std::vector<ParsedMessage> messages_;
  std::vector<std::string> warnings_;
  std::vector<Event> events_;
  std::optional<std::string> last_delta_;
  std::optional<size_t> refused_after_;
};

}  // namespace moxie::harmony

namespace moxie {
using HarmonyParser = harmony::Parser;
}
