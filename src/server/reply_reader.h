// Turns the tokens of one answer into the pieces of a reply (ReplyPart): harmony's channels or
// plain text, cut at stop strings, with log-probabilities beside the text that they belong to. No
// control token ever becomes text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/chat.h"
#include "server/stop_strings.h"
#include "text/bpe_detokenizer.h"
#include "text/harmony_parser.h"

namespace moxie {

/// A drawn token with the log-probabilities that were asked for.
struct ReplyToken {
  int32_t id = -1;
  float logprob = 0;
  int32_t rank = 0;  ///< tokens with a greater logit
  std::vector<std::pair<int32_t, float>> top;
};

/// An addition to a reply.
struct Delta {
  ReplyPart part = ReplyPart::kContent;
  std::string text;
  size_t call_idx = 0;             ///< kToolName and kToolArguments
  std::vector<ReplyToken> tokens;  ///< kContent: those whose log-probabilities go with it
};

struct ReplyOptions {
  bool harmony = true;                       ///< false: all is content
  std::vector<std::string> known_functions;  ///< without namespace
  std::vector<std::string> stop;
  bool include_stop = false;
  int32_t min_tokens = 0;    ///< stop strings that end in the text of these count for nothing
  bool skip_special = true;  ///< plain text: special tokens add none
  bool logprobs = false;
};

class ReplyReader {
 public:
  /// The tokenizer must outlive this.
  ReplyReader(const Tokenizer& tokenizer, const harmony::ControlTokens& control,
              ReplyOptions options);

  /// Takes a token and appends new deltas. False if a stop string has completed the answer.
  bool take(ReplyToken token, std::vector<Delta>* out);
  /// Takes a token that ends the answer and is not in its text.
  void take_end(ReplyToken token);
  /// The answer has ended: appends the last deltas.
  void finish(std::vector<Delta>* out);

  /// The whole reply so far.
  const Reply& reply() const { return reply_; }
  bool stopped() const { return stopped_; }
  const std::string& stop_string() const { return stop_.found(); }
  int32_t num_reasoning_tokens() const { return num_reasoning_tokens_; }
  /// The messages that were written, with harmony.
  std::vector<harmony::Message> messages() const;
  std::vector<std::string> warnings() const;

 private:
  void take_events(const std::vector<harmony::Event>& events, std::vector<Delta>* out);
  void open(const harmony::Message& message, std::vector<Delta>* out);
  void add(ReplyPart part, std::string_view text, std::vector<Delta>* out);
  void add_content(std::string_view text, std::vector<Delta>* out);
  /// `is_certain`: no stop string can begin in taken text that is not in `text`.
  void emit_content(std::string text, bool is_certain, std::vector<Delta>* out);

  const Tokenizer* tokenizer_;
  harmony::ControlTokens control_;
  ReplyOptions options_;
  std::optional<harmony::Parser> parser_;
  IncrementalDetokenizer plain_;
  StopStrings stop_;
  std::vector<ReplyToken> pending_;  // of content whose text is held back
  Reply reply_;
  int32_t num_tokens_ = 0, num_reasoning_tokens_ = 0;
  bool stopped_ = false;
};

}  // namespace moxie
