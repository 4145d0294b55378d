// The sinks write under one lock; the caller waits for news.
#include "lab/validate_requests.h"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>

namespace moxie {
namespace {

// Shared with the sinks: a request that was given up may still have news later.
struct Board {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<ValidateAnswer> answers;
  std::deque<size_t> ended;
  uint64_t num_updates = 0;

  void take(size_t index, const RequestUpdate& update) {
    const std::lock_guard lock(mutex);
    ValidateAnswer& answer = answers[index];
    for (const SampleAnswer& token : update.tokens) {
      answer.ids.push_back(token.token);
      answer.logprobs.push_back(token.logprob);
      answer.token_times.push_back(update.at);
    }
    for (const SampleAnswer& token : update.prompt_tokens)
      answer.prompt_logprobs.push_back(token.logprob);
    if (update.finish != nullptr) {
      answer.finish = *update.finish;
      if (++answer.num_finishes == 1) ended.push_back(index);
    }
    ++num_updates;
    changed.notify_all();
  }
};

}  // namespace

std::vector<ValidateAnswer> answer_all(Service& service, std::vector<ServiceRequest> requests,
                                       const AnswerOptions& options) {
  const auto board = std::make_shared<Board>();
  board->answers.resize(requests.size());
  std::vector<RequestId> ids(requests.size());
  size_t next = 0, under_way = 0;
  std::unique_lock lock(board->mutex);
  while (next < requests.size() || under_way > 0) {
    if (next < requests.size() && std::cmp_less(under_way, options.concurrency)) {
      const size_t index = next++;
      requests[index].sink = [board, index](const RequestUpdate& u) { board->take(index, u); };
      lock.unlock();
      const auto id = service.submit(std::move(requests[index]));
      lock.lock();
      if (id) {
        ids[index] = *id, ++under_way;
      } else {
        board->answers[index].refusal = id.error().error.message();
      }
      continue;
    }
    const uint64_t seen = board->num_updates;
    const bool has_news = board->changed.wait_for(
        lock, std::chrono::duration<double>(options.patience_s),
        [&] { return board->num_updates != seen || !board->ended.empty(); });
    if (!has_news) break;
    while (!board->ended.empty()) {
      const size_t index = board->ended.front();
      board->ended.pop_front();
      --under_way;
      if (!options.on_finish) continue;
      lock.unlock();
      options.on_finish(index);
      lock.lock();
    }
  }
  return board->answers;
}

std::vector<int32_t> random_ids(int32_t count, int32_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return ids;
}

ServiceRequest greedy_request(std::vector<int32_t> prompt, int32_t max_tokens) {
  return {.prompt = std::move(prompt),
          .sampling = {.temperature = 0, .seed = 0, .max_tokens = max_tokens, .ignore_eos = true}};
}

std::string answers_fault(std::span<const ValidateAnswer> answers, size_t num_tokens) {
  size_t num_faults = 0;
  std::string first;
  for (size_t i = 0; i < answers.size(); ++i) {
    const ValidateAnswer& answer = answers[i];
    std::string fault;
    if (!answer.refusal.empty()) {
      fault = "was refused: " + answer.refusal;
    } else if (answer.num_finishes != 1) {
      fault = fmt::format("ended {} times", answer.num_finishes);
    } else if (answer.finish.reason == FinishReason::kError) {
      fault = "failed: " + answer.finish.error.message();
    } else if (answer.ids.size() != num_tokens) {
      fault = fmt::format("has {} tokens of {}", answer.ids.size(), num_tokens);
    }
    if (fault.empty()) continue;
    if (num_faults++ == 0) first = fmt::format("request {} {}", i, fault);
  }
  return num_faults > 1 ? fmt::format("{} requests at fault; {}", num_faults, first) : first;
}

}  // namespace moxie
