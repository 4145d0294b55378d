// Answers requests of `moxie eval` with an engine in this process. A request is the body of a chat
// completion and takes the way that it takes in `moxie serve`, without HTTP.
#pragma once

#include <memory>

#include "engine/service.h"
#include "lab/eval_set.h"
#include "server/app.h"

namespace moxie {

class EvalEngine {
 public:
  /// Loads the model for `num_seqs` requests at once. `tokenizer`: empty is the model's own.
  static Result<std::unique_ptr<EvalEngine>> load(EngineOptions options,
                                                  const std::string& tokenizer, int32_t num_seqs);
  ~EvalEngine();

  /// Waits for the answer; from any thread. A request that cannot be answered is a fault.
  Result<EvalReply> ask(const std::string& request);
  /// Ends all requests, and refuses new ones.
  void stop();
  /// The service is at an end, so that the caller may launch the model itself.
  Engine& release_engine();
  Engine& engine() { return *engine_; }
  const Tokenizer* tokenizer() const { return model_.tokenizer; }

 private:
  EvalEngine() = default;

  std::unique_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<grammar::Compiler> compiler_;
  ServedModel model_;
  std::unique_ptr<Service> service_;
};

}  // namespace moxie
