// Reads the stream of an OpenAI-compatible endpoint: server-sent events, and the JSON of each.
// Bytes come in pieces of any size; what is no valid stream is a fault with its kind and its place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie {

/// Splits server-sent events (WHATWG HTML, 9.2.6): lines end in LF, CRLF or CR, comments and other
/// fields than `data` are skipped, several `data` lines of one event are joined by LF.
class SseReader {
 public:
  static constexpr size_t kMaxEventBytes = size_t{4} << 20;

  /// Appends the payloads of the events that these bytes complete. Fails if a line or an event is
  /// longer than kMaxEventBytes; memory stays below a small multiple of that.
  Status read(std::string_view bytes, std::vector<std::string>* payloads);
  /// The end of the stream: an event without its empty line counts too, since servers leave it out.
  void finish(std::vector<std::string>* payloads);
  /// Comments seen, which servers send to keep a silent stream alive.
  int64_t num_comments() const { return num_comments_; }

 private:
  Status end_line(std::vector<std::string>* payloads);

  std::string line_, event_;
  bool has_data_ = false, skips_lf_ = false, is_first_line_ = true;
  int64_t num_comments_ = 0;
};

/// Numbers of an answer's `usage`; -1: not told.
struct TokenUsage {
  int64_t num_prompt = -1, num_completion = -1, num_cached = -1;
};

/// What one event of a completion or chat completion tells.
struct StreamChunk {
  bool is_done = false;        ///< "[DONE]"
  bool has_choice = false;     ///< the first response may be a role without text
  bool has_content = false;    ///< text, reasoning or the arguments of a call
  int64_t num_token_ids = -1;  ///< of `token_ids`; -1: absent
  std::string finish_reason;   ///< empty: not the last
  std::optional<TokenUsage> usage;
  std::string error;  ///< the message of an error event
};

/// Reads one payload. Fails where it is no JSON object, or a field has another type than the
/// interface says.
Result<StreamChunk> read_stream_chunk(std::string_view payload);

/// The usage of a whole (not streamed) answer; fails where there is none.
Result<TokenUsage> read_answer_usage(std::string_view body);

/// The message in the body of an error, or the beginning of the body, as one printable line.
std::string error_text(std::string_view body);

}  // namespace moxie
