// The file of answers: one JSON object a line, in the order in which the answers came. A run that
// was interrupted goes on from it.
//
// The first line says what the answers depend on besides the question; a file of another origin is
// not continued. Each answer carries a hash of its request, so that a question that was changed is
// asked again.
#pragma once

#include <array>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "lab/eval_set.h"

namespace moxie {

struct EvalSample {
  std::string variant, effort, task, id;
  std::string request_hash;
  EvalReply reply;
  EvalJudgement judgement;  ///< not read from the file: made from the reply
};

/// 16 hexadecimal digits.
std::string request_hash_of(const std::string& request);

class EvalSamples {
 public:
  /// Keeps nothing but what this process adds.
  EvalSamples() = default;
  /// Opens `path` for appending and reads what it holds. `origin`: what the answers depend on, one
  /// line. Fails if the file is of another origin or no file of answers. A last line without an end
  /// is that of an interrupted run, and is dropped.
  static Result<std::unique_ptr<EvalSamples>> open(const std::string& path,
                                                   const std::string& origin);
  ~EvalSamples();
  EvalSamples(const EvalSamples&) = delete;
  EvalSamples& operator=(const EvalSamples&) = delete;

  size_t num_read() const { return num_read_; }
  /// The answer to this request, or null. Valid until the next add().
  const EvalSample* find(const std::string& variant, const std::string& effort,
                         const std::string& task, const std::string& id,
                         const std::string& request_hash) const;
  /// Writes the sample as a line, whole and at once. Not from several threads.
  Status add(const EvalSample& sample);

 private:
  Status read(const std::string& text, const std::string& origin);
  Status read_line(std::string_view line, size_t number);
  Status write_line(const std::string& line);

  using Key = std::array<std::string, 5>;
  std::string path_;
  std::FILE* file_ = nullptr;
  std::map<Key, EvalSample> samples_;
  size_t num_read_ = 0;
};

}  // namespace moxie
