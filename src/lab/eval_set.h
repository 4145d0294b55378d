// Questions with known answers, one JSON object a line, and how an answer is judged.
//
//   {"id": "q1", "question": "...", "choices": ["red", "blue"], "answer": "B"}
//   {"id": "q2", "question": "...", "answer": "42", "match": "number"}
//
// docs/eval.md lists the fields.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie {

/// What makes an answer right.
enum class EvalMatch : uint8_t {
  kChoice,      ///< the letter of the right choice, or the choice itself
  kExact,       ///< the text, without white space around it
  kNumber,      ///< the last number of the text has the same value
  kRegex,       ///< a POSIX extended regular expression is found in the text
  kContains,    ///< the text holds it, whatever the case of ASCII letters
  kStartsWith,  ///< the text begins with it
  kJson,        ///< the text is JSON of the same value
  kCall,        ///< one call of that function with arguments of the same value
};
const char* match_name(EvalMatch match);

struct EvalQuestion {
  std::string task, id;
  std::string chat;  ///< members of a chat completion: {"messages": [...], "tools": [...]}
  std::vector<std::string> choices;
  std::string answer;  ///< kChoice: "A", "B", ...
  EvalMatch match = EvalMatch::kExact;
};

/// Reads a set. `where` names it in errors, beside the line; a line without "task" belongs to
/// `default_task`. Fails on the first line that is not of the form above: a field that is unknown,
/// missing or of a wrong type, an id that its task has already, an answer that cannot be right.
Result<std::vector<EvalQuestion>> parse_eval_set(std::string_view text, const std::string& where,
                                                 const std::string& default_task);

/// What a model answered.
struct EvalReply {
  std::string content, reasoning;
  struct Call {
    std::string name, arguments;  ///< arguments: JSON text
  };
  std::vector<Call> calls;
  std::string finish_reason;  ///< "stop", "length", "tool_calls"
  int64_t prompt_tokens = 0, completion_tokens = 0;
};

/// kInvalid: no answer could be extracted, or the answer was cut at the greatest length.
enum class EvalVerdict : uint8_t { kRight, kWrong, kInvalid };
const char* eval_verdict_name(EvalVerdict verdict);

struct EvalJudgement {
  EvalVerdict verdict = EvalVerdict::kInvalid;
  std::string extracted;  ///< the part of the answer that was judged; kInvalid: why there is none
};
EvalJudgement judge(const EvalQuestion& question, const EvalReply& reply);

/// The letter of the choice that a text names, or 0. In this order: the text is a letter ("(b)");
/// the last letter that follows "answer", as in "the answer is B"; a letter in front ("B) blue");
/// the text is one of the choices; one choice alone stands in the text.
char chosen_letter(std::string_view text, const std::vector<std::string>& choices);

/// The last number of a text in its shortest decimal form ("1,200.50" gives "1200.5"), or empty.
/// A minus sign behind a digit or a letter is no sign of the number.
std::string last_number(std::string_view text);

}  // namespace moxie
