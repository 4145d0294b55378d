// A session of the decode loop over some sequences. Owns their pages as a scheduler does: reserves
// them for each launch, frees them as the window passes, and at the end truncates the sequences to
// the tokens of launches whose answers were taken.
#pragma once

#include <vector>

#include "engine/engine.h"

namespace moxie {

class LoopSession {
 public:
  explicit LoopSession(Engine& engine) : engine_(engine), loop_(engine.decode_loop()) {}
  ~LoopSession() {
    end();
    for (const Member& member : members_) engine_.kv().free_sequence(member.seq);
  }
  LoopSession(const LoopSession&) = delete;
  LoopSession& operator=(const LoopSession&) = delete;

  /// Runs all tokens of the prompt but the last now; the last is the session's first token.
  void add(std::span<const int32_t> prompt, const SampleRequest& request) {
    const SeqId seq = engine_.kv().add_sequence();
    const Chunk chunk{seq, prompt.first(prompt.size() - 1), Logits::kNone};
    CHECK(engine_.step({&chunk, 1}).has_value());
    members_.push_back({seq, prompt.back(), request});
  }
  /// The first launch. `fed`: as HostArrays::fed.
  Status begin(std::span<const int32_t> fed = {}) {
    std::vector<Chunk> chunks = append();
    std::vector<SampleRequest> requests;
    for (const Member& member : members_) requests.push_back(member.request);
    HostArrays arrays;
    build_arrays(chunks, engine_.kv(), 0, &arrays);
    arrays.fed.assign(fed.begin(), fed.end());
    arrays.num_fed = static_cast<int32_t>(fed.size() / members_.size());
    return engine_.begin_decoding(arrays, requests);
  }
  Status launch() {
    const std::vector<Chunk> chunks = append();
    HostArrays arrays;
    build_next_arrays(chunks, engine_.kv(), &arrays);
    return engine_.decode_next(arrays);
  }
  /// Waits for the oldest launch.
  Result<std::span<const SampleAnswer>> next() {
    auto answers = loop_.next();
    if (!answers) return answers;
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& member = members_[i];
      member.last = (*answers)[i].token;
      ++member.request.step;
      engine_.kv().release_window(member.seq,
                                  engine_.kv().num_tokens(member.seq) - loop_.num_in_flight());
    }
    return answers;
  }
  /// `count` tokens of each member, with as many launches under way as allowed.
  std::vector<std::vector<int32_t>> run(size_t count, std::span<const int32_t> fed = {}) {
    CHECK(begin(fed).has_value());
    std::vector<std::vector<int32_t>> tokens(members_.size());
    for (size_t n = 0; n < count; ++n) {
      while (loop_.num_in_flight() < DecodeLoop::kRunAhead) {
        const Status status = launch();
        CHECK(status.has_value(), status ? "" : status.error().message());
      }
      const auto answers = next();
      CHECK(answers.has_value(), answers ? "" : answers.error().message());
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i].push_back((*answers)[i].token);
    }
    end();
    return tokens;
  }
  Status end() {
    const int32_t num_dropped = loop_.num_in_flight();
    const Status status = engine_.end_decoding();
    for (const Member& member : members_) {
      KvCache& kv = engine_.kv();
      CHECK(kv.truncate(member.seq, kv.num_tokens(member.seq) - num_dropped).has_value());
    }
    engine_.kv().check_integrity();
    return status;
  }
  SeqId seq(size_t member) const { return members_[member].seq; }

 private:
  struct Member {
    SeqId seq = 0;
    int32_t last = 0;  // token, to be run next
    SampleRequest request;
  };
  std::vector<Chunk> append() {
    std::vector<Chunk> chunks;
    for (const Member& member : members_) {
      CHECK(engine_.kv().append(member.seq, 1), "no page");
      chunks.push_back({member.seq, {&member.last, 1}, Logits::kLast});
    }
    return chunks;
  }

  Engine& engine_;
  DecodeLoop& loop_;
  std::vector<Member> members_;
};

}  // namespace moxie
