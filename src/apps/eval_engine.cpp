#include "apps/eval_engine.h"

#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/tokenizer_source.h"
#include "server/endpoints.h"

namespace moxie {
namespace {

// Reads one answer on the scheduling thread, and lets another thread wait for its end.
class PendingReply {
 public:
  explicit PendingReply(ReplyReader reader) : reader_(std::move(reader)) {}

  void take(const RequestUpdate& update) {
    const std::lock_guard lock(mutex_);
    for (const SampleAnswer& answer : update.tokens) {
      ++num_tokens_;
      reader_.take({.id = answer.token, .top = {}}, &deltas_);
    }
    deltas_.clear();
    if (update.finish == nullptr) return;
    reader_.finish(&deltas_);
    finish_ = *update.finish;
    ended_.notify_all();
  }

  Result<EvalReply> wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return finish_.has_value(); });
    if (finish_->reason == FinishReason::kError) return fail(finish_->error);
    const Reply& reply = reader_.reply();
    EvalReply answer{.content = reply.content,
                     .reasoning = reply.reasoning,
                     .calls = {},
                     .finish_reason = finish_reason_name(finish_->reason),
                     .prompt_tokens = finish_->prompt_tokens,
                     .completion_tokens = num_tokens_};
    for (const ToolCall& call : reply.tool_calls)
      answer.calls.push_back({call.name, call.arguments});
    if (finish_->reason == FinishReason::kStop && !answer.calls.empty())
      answer.finish_reason = "tool_calls";
    return answer;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  ReplyReader reader_;
  std::vector<Delta> deltas_;
  int64_t num_tokens_ = 0;
  std::optional<Finish> finish_;
};

Error error_of(const ApiError& error) {
  return {error.message, error.param.empty() ? "request" : "request: " + error.param, ""};
}

}  // namespace

EvalEngine::~EvalEngine() { stop(); }

Result<std::unique_ptr<EvalEngine>> EvalEngine::load(EngineOptions options,
                                                     const std::string& tokenizer,
                                                     int32_t num_seqs) {
  std::unique_ptr<EvalEngine> loaded(new EvalEngine);
  const int32_t logit_rows = options.max_logit_rows;
  fit_service(num_seqs, &options);
  options.max_logit_rows = std::max(options.max_logit_rows, logit_rows);
  if (!tokenizer.empty()) {
    auto read = tokenizer_from(tokenizer);
    if (!read) return fail(std::move(read.error()));
    loaded->tokenizer_ = std::move(*read);
  }
  auto engine = Engine::load(options);
  if (!engine) return fail(std::move(engine.error()));
  loaded->engine_ = std::move(*engine);
  if (loaded->tokenizer_) loaded->engine_->stop_at_ends_of(*loaded->tokenizer_);
  auto model = served_model(*loaded->engine_, loaded->tokenizer_.get(), &loaded->compiler_);
  if (!model) return fail(std::move(model.error()));
  loaded->service_ = Service::create(*loaded->engine_, {});
  loaded->model_ = *model;
  loaded->model_.service = loaded->service_.get();
  return loaded;
}

Result<EvalReply> EvalEngine::ask(const std::string& request) {
  const auto body = parse_body(request);
  if (!body) return fail(error_of(body.error()));
  const auto chat = read_chat_request(*body);
  if (!chat) return fail(error_of(chat.error()));
  auto input = chat_input_of(model_, *chat, 0);
  if (!input) return fail(error_of(input.error()));
  auto pending =
      std::make_shared<PendingReply>(ReplyReader(*model_.tokenizer, model_.control, input->reply));
  ServiceRequest asked{
      .prompt = std::move(input->prompts.front()), .sampling = input->sampling, .cache_salt = {}};
  if (!input->constraints.empty()) asked.constraint = input->constraints.front();
  asked.sink = [pending](const RequestUpdate& update) { pending->take(update); };
  const auto id = service_->submit(std::move(asked));
  if (!id) return fail(id.error().error);
  return pending->wait();
}

void EvalEngine::stop() {
  if (service_) service_->stop();
}

Engine& EvalEngine::release_engine() {
  service_.reset();
  return *engine_;
}

}  // namespace moxie
