// A request to the service. A generation submits its choices to the service, brings their tokens to
// the server's thread, turns them into replies (reply_reader.h) and gives these to a ReplyWriter.
//
// Sinks run on the scheduling thread and only put tokens into a mailbox. Everything else here runs
// on the server's thread.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/service.h"
#include "server/metrics.h"
#include "server/reply_reader.h"
#include "server/requests.h"

namespace moxie {

/// How one choice ended.
struct ChoiceEnd {
  std::string finish_reason;  ///< stop, length, tool_calls, abort, error
  std::string stop_string;    ///< the stop string that ended it
  int32_t stop_id = -1;       ///< the requested stop token that ended it
  ApiError error;             ///< with "error"
  CacheReport cache;
  int32_t prompt_tokens = 0, completion_tokens = 0, reasoning_tokens = 0;
  DraftCounts drafts;
  std::vector<std::string> warnings;
};

/// Writes the answer of one endpoint. Called on the server's thread; on_end is the last call.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  // By value, for writers that keep the tokens. NOLINTNEXTLINE(performance-unnecessary-value-param)
  virtual void on_prompt_logprobs(size_t /*choice*/, std::vector<ReplyToken> /*tokens*/) {}
  /// Called for every token, before the deltas that the token makes.
  virtual void on_token(size_t /*choice*/, int32_t /*id*/) {}
  virtual void on_delta(size_t choice, const Delta& delta) = 0;
  /// All deltas of a launch have been given: the time to send.
  virtual void on_flush(size_t /*choice*/) {}
  virtual void on_choice_end(size_t choice, const ReplyReader& reader, const ChoiceEnd& end) = 0;
  virtual void on_end() = 0;
};

struct GenerationInput {
  std::vector<std::vector<int32_t>> prompts;  ///< choice i belongs to prompt i / n
  int32_t n = 1;
  SamplingOptions sampling;
  int32_t max_tokens = 0;  ///< as asked
  int32_t priority = 0;
  std::string cache_salt;
  bool use_cache = true;
  bool passes_queue_limits = false;
  int32_t prompt_logprobs = -1;
  ReplyOptions reply;
  /// Sorted: tokens that end an answer and do not appear in its text. The reply reader handles the
  /// tokens that end an answer by harmony's format.
  std::vector<int32_t> silent_ends;
  /// One for each choice, or empty.
  std::vector<std::shared_ptr<TokenConstraint>> constraints;
  std::vector<std::string> warnings;  ///< for the answers
  Clock::time_point arrived = Clock::now();
};

class Generation;

/// Takes tokens and ends of choices from the scheduling thread to the server's thread.
class Mailbox {
 public:
  using Post = std::function<void(std::function<void()>)>;
  explicit Mailbox(Post post) : post_(std::move(post)) {}

  struct Letter {
    std::shared_ptr<Generation> to;
    size_t choice = 0;
    Clock::time_point at{};
    std::vector<ReplyToken> tokens, prompt_tokens;
    std::unique_ptr<Finish> finish;
  };
  void put(Letter letter);

 private:
  void deliver();

  Post post_;
  std::mutex mutex_;
  std::vector<Letter> waiting_;
  bool posted_ = false;
  std::vector<Letter> open_;  // being delivered
  size_t next_ = 0;
};

/// What a generation uses. All of it outlives every generation.
struct GenerationParts {
  Service& service;
  const Tokenizer& tokenizer;
  const harmony::ControlTokens& control;
  Metrics& metrics;
  Mailbox& mailbox;
};

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  /// Submits all choices, or none and returns the reason. The writer is not called before this
  /// returns.
  static Api<std::shared_ptr<Generation>> start(const GenerationParts& parts, GenerationInput input,
                                                std::shared_ptr<ReplyWriter> writer);
  /// Aborts all choices; the writer is not called again.
  void cancel();
  size_t num_choices() const { return choices_.size(); }
  bool ended() const { return num_open_ == 0; }

 private:
  friend class Mailbox;
  struct Choice {
    RequestId id = 0;
    std::unique_ptr<ReplyReader> reader;
    std::vector<Delta> deltas;  // reused
    Clock::time_point last_token{};
    int32_t num_tokens = 0;
    int32_t first_prompt_id = -1;
    bool complete = false;  // no more of its tokens are read
    bool ended = false;     // the service has ended its request
  };

  Generation(const GenerationParts& parts, GenerationInput input,
             std::shared_ptr<ReplyWriter> writer)
      : parts_(parts), input_(std::move(input)), writer_(std::move(writer)) {}
  ApiStatus submit();
  void take(Mailbox::Letter& letter);
  void take_token(size_t idx, ReplyToken token);
  void end_choice(size_t idx, const Finish& finish);

  GenerationParts parts_;
  GenerationInput input_;
  std::shared_ptr<ReplyWriter> writer_;  // null after cancel()
  std::vector<Choice> choices_;
  size_t num_open_ = 0;
};

/// The error for a request that the service refused.
ApiError refusal_error(const Refusal& refusal);

}  // namespace moxie
