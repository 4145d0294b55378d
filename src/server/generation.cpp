// From the service's sinks to writers of answers.
#include "server/generation.h"

#include <fmt/format.h>

#include <algorithm>

namespace moxie {
namespace {

// Letters delivered in one turn of the server's thread, so that other work, such as /health, need
// not wait long.
constexpr size_t kLettersATurn = 64;

ReplyToken reply_token(const SampleAnswer& answer, bool logprobs) {
  ReplyToken token{.id = answer.token, .logprob = answer.logprob, .rank = answer.rank, .top = {}};
  if (!logprobs) return token;
  for (int32_t i = 0; i < answer.num_top; ++i) {
    token.top.emplace_back(answer.top_ids[i], answer.top_logprobs[i]);
  }
  return token;
}

std::vector<ReplyToken> reply_tokens(std::span<const SampleAnswer> answers, bool logprobs) {
  std::vector<ReplyToken> tokens;
  tokens.reserve(answers.size());
  for (const SampleAnswer& answer : answers) tokens.push_back(reply_token(answer, logprobs));
  return tokens;
}

}  // namespace

ApiError refusal_error(const Refusal& refusal) {
  ApiError error{.message = refusal.error.message(), .retry_after_s = refusal.retry_after_s};
  switch (refusal.kind) {
    case RefusalKind::kInvalid:
      error.code = "invalid_value";
      error.param = refusal.error.where;
      break;
    case RefusalKind::kTooLong:
      error.code = "context_length_exceeded";
      error.param = "messages";
      break;
    case RefusalKind::kQueueFull:
      error.status = 429;
      error.type = "rate_limit_error";
      error.code = "queue_full";
      break;
    case RefusalKind::kDraining:
    case RefusalKind::kUnhealthy:
      error.status = 503;
      error.type = "service_unavailable_error";
      error.code = refusal.kind == RefusalKind::kDraining ? "shutting_down" : "device_failed";
      break;
  }
  return error;
}

void Mailbox::put(Letter letter) {
  bool post = false;
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(letter));
    post = !std::exchange(posted_, true);
  }
  if (post) post_([this] { deliver(); });
}

void Mailbox::deliver() {
  if (next_ == open_.size()) {
    open_.clear();
    next_ = 0;
    const std::lock_guard lock(mutex_);
    std::swap(open_, waiting_);
  }
  const size_t end = std::min(next_ + kLettersATurn, open_.size());
  for (; next_ < end; ++next_) {
    Letter letter = std::move(open_[next_]);
    letter.to->take(letter);
  }
  if (next_ == open_.size()) {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      posted_ = false;
      return;
    }
  }
  post_([this] { deliver(); });
}

Api<std::shared_ptr<Generation>> Generation::start(const GenerationParts& parts,
                                                   GenerationInput input,
                                                   std::shared_ptr<ReplyWriter> writer) {
  std::shared_ptr<Generation> generation(
      new Generation(parts, std::move(input), std::move(writer)));
  if (auto status = generation->submit(); !status) {
    generation->cancel();
    return tl::unexpected(status.error());
  }
  return generation;
}

ApiStatus Generation::submit() {
  const auto n = static_cast<size_t>(input_.n);
  const size_t count = input_.prompts.size() * n;
  choices_.resize(count);
  for (Choice& choice : choices_) {
    choice.reader = std::make_unique<ReplyReader>(parts_.tokenizer, parts_.control, input_.reply);
  }
  num_open_ = count;
  for (size_t i = 0; i < count; ++i) {
    ServiceRequest request{.prompt = input_.prompts[i / n],
                           .sampling = input_.sampling,
                           .priority = input_.priority,
                           .cache_salt = input_.cache_salt,
                           .use_prefix_cache = input_.use_cache,
                           .prompt_logprobs = input_.prompt_logprobs,
                           .passes_queue_limits = input_.passes_queue_limits};
    if (request.sampling.seed) *request.sampling.seed += i % n;
    const bool logprobs = request.sampling.num_logprobs > 0 || request.prompt_logprobs > 0;
    if (!input_.constraints.empty()) request.constraint = input_.constraints[i];
    request.sink = [self = shared_from_this(), i, logprobs,
                    &mailbox = parts_.mailbox](const RequestUpdate& update) {
      mailbox.put({.to = self,
                   .choice = i,
                   .at = update.at,
                   .tokens = reply_tokens(update.tokens, logprobs),
                   .prompt_tokens = reply_tokens(update.prompt_tokens, logprobs),
                   .finish = update.finish ? std::make_unique<Finish>(*update.finish) : nullptr});
    };
    auto id = parts_.service.submit(std::move(request));
    if (id) {
      choices_[i].id = *id;
      choices_[i].first_prompt_id = input_.prompts[i / n].front();
      continue;
    }
    num_open_ -= count - i;  // these were never submitted
    for (size_t j = i; j < count; ++j) choices_[j].complete = choices_[j].ended = true;
    return tl::unexpected(refusal_error(id.error()));
  }
  input_.constraints.clear();
  input_.prompts.clear();
  input_.prompts.shrink_to_fit();
  return {};
}

void Generation::cancel() {
  writer_ = nullptr;
  for (Choice& choice : choices_) {
    choice.complete = true;
    if (!choice.ended) parts_.service.cancel(choice.id);
  }
}

void Generation::take(Mailbox::Letter& letter) {
  Choice& choice = choices_[letter.choice];
  // A writer's call may drop a client that reads too slowly, which cancels this generation.
  const auto keep = shared_from_this();
  const auto keep_writer = writer_;
  if (input_.prompt_logprobs >= 0 && choice.first_prompt_id >= 0 && writer_) {
    // The service starts with the second token: the first has no log-probability.
    writer_->on_prompt_logprobs(letter.choice,
                                {{.id = std::exchange(choice.first_prompt_id, -1), .top = {}}});
  }
  if (writer_ && !letter.prompt_tokens.empty()) {
    writer_->on_prompt_logprobs(letter.choice, std::move(letter.prompt_tokens));
  }
  if (!letter.tokens.empty() && !choice.complete) {
    const auto count = letter.tokens.size();
    if (choice.num_tokens > 0) {
      parts_.metrics.on_inter_token(
          std::chrono::duration<double>(letter.at - choice.last_token).count(), count);
    }
    choice.last_token = letter.at;
    for (ReplyToken& token : letter.tokens) {
      if (choice.complete) break;
      take_token(letter.choice, std::move(token));
    }
    if (writer_ && !letter.finish) writer_->on_flush(letter.choice);
  }
  if (letter.finish) end_choice(letter.choice, *letter.finish);
}

void Generation::take_token(size_t idx, ReplyToken token) {
  Choice& choice = choices_[idx];
  ++choice.num_tokens;
  parts_.metrics.on_tokens(1);
  if (writer_) writer_->on_token(idx, token.id);
  const auto& ends = input_.silent_ends;
  if (std::binary_search(ends.begin(), ends.end(), token.id)) {
    return choice.reader->take_end(std::move(token));
  }
  choice.deltas.clear();
  const bool go_on = choice.reader->take(std::move(token), &choice.deltas);
  for (const Delta& delta : choice.deltas) {
    if (writer_) writer_->on_delta(idx, delta);
  }
  if (go_on) return;
  choice.complete = true;
  parts_.service.cancel(choice.id);
}

void Generation::end_choice(size_t idx, const Finish& finish) {
  Choice& choice = choices_[idx];
  ReplyReader& reader = *choice.reader;
  choice.deltas.clear();
  reader.finish(&choice.deltas);
  ChoiceEnd end{.finish_reason = finish_reason_name(finish.reason),
                .stop_string = reader.stop_string(),
                .cache = finish.cache,
                .prompt_tokens = finish.prompt_tokens,
                .completion_tokens = choice.num_tokens,
                .reasoning_tokens = reader.num_reasoning_tokens(),
                .drafts = finish.drafts,
                .warnings = reader.warnings()};
  end.warnings.insert(end.warnings.end(), input_.warnings.begin(), input_.warnings.end());
  if (reader.stopped()) {
    end.finish_reason = "stop";
  } else if (finish.reason == FinishReason::kError) {
    end.finish_reason = "error";
    end.error = {.status = 500,
                 .message = "The request failed: " + finish.error.message(),
                 .type = "server_error",
                 .code = "request_failed"};
    if (finish.error.where == "sampling") {  // the constraint left no token
      end.error.status = 400;
      end.error.type = "invalid_request_error";
    }
  } else if (finish.reason == FinishReason::kAborted && !choice.complete) {
    end.finish_reason = "error";  // neither the client nor this generation has ended it
    end.error = {.status = 503,
                 .message = "The server is shutting down.",
                 .type = "service_unavailable_error",
                 .code = "shutting_down",
                 .retry_after_s = 1};
  } else if (finish.reason == FinishReason::kStop) {
    const auto& asked = input_.sampling.stop_ids;
    if (std::find(asked.begin(), asked.end(), finish.stop_id) != asked.end()) {
      end.stop_id = finish.stop_id;
    }
    if (!reader.reply().tool_calls.empty()) end.finish_reason = "tool_calls";
  }
  parts_.metrics.on_choice({.finish_reason = end.finish_reason,
                            .prompt_tokens = end.prompt_tokens,
                            .completion_tokens = end.completion_tokens,
                            .cached_tokens = finish.cache.hit_tokens,
                            .num_preemptions = finish.num_preemptions,
                            .is_first = idx % static_cast<size_t>(input_.n) == 0,
                            .n = input_.n,
                            .max_tokens = input_.max_tokens,
                            .times = finish.times,
                            .arrived = input_.arrived});
  choice.complete = choice.ended = true;
  --num_open_;
  if (writer_) {
    for (const Delta& delta : choice.deltas) writer_->on_delta(idx, delta);
    writer_->on_choice_end(idx, reader, end);
  }
  if (num_open_ > 0 || !writer_) return;
  const auto writer = std::exchange(writer_, nullptr);
  writer->on_end();
}

}  // namespace moxie
