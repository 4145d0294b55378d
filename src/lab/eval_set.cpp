// Reads sets of questions. A set comes from outside: every fault names its line.
#include "lab/eval_set.h"

#include <fmt/format.h>
#include <regex.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/nearest.h"
#include "text/harmony_json.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxLineBytes = size_t{16} << 20;
constexpr size_t kMaxChoices = 26, kMaxRegexBytes = 1000;

constexpr std::pair<EvalMatch, const char*> kMatches[] = {
    {EvalMatch::kChoice, "choice"},     {EvalMatch::kExact, "exact"},
    {EvalMatch::kNumber, "number"},     {EvalMatch::kRegex, "regex"},
    {EvalMatch::kContains, "contains"}, {EvalMatch::kStartsWith, "starts_with"},
    {EvalMatch::kJson, "json"},         {EvalMatch::kCall, "call"}};

const std::vector<std::string> kFields = {"id",      "task",   "question", "messages", "tools",
                                          "choices", "answer", "match",    "meta"};

// The text that asks a question with choices.
std::string with_choices(const std::string& question, const std::vector<std::string>& choices) {
  std::string text = question + "\n\n";
  for (size_t i = 0; i < choices.size(); ++i) {
    text += fmt::format("{}) {}\n", static_cast<char>('A' + i), choices[i]);
  }
  return text + "\nAnswer with the letter of the right choice alone.";
}

// Reads one line; errors get their place from the caller.
class LineReader {
 public:
  explicit LineReader(const Json& line) : line_(line) {}

  Status read(EvalQuestion* question) {
    for (const auto& [key, value] : line_.items()) {
      if (std::find(kFields.begin(), kFields.end(), key) == kFields.end()) {
        return fail("unknown field '" + key + "'", "",
                    "did you mean " + nearest_name(key, kFields) + "? \"meta\" may hold anything");
      }
    }
    if (auto status = read_names(question); !status) return status;
    if (auto status = read_choices(question); !status) return status;
    if (auto status = read_match(question); !status) return status;
    if (auto status = read_answer(question); !status) return status;
    return read_chat(question);
  }

 private:
  const Json* find(const char* key) const {
    const auto found = line_.find(key);
    return found == line_.end() || found->is_null() ? nullptr : &*found;
  }
  Result<std::string> text(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return fail(fmt::format("\"{}\" is missing", key));
    if (!value->is_string()) return fail(fmt::format("\"{}\" is not a string", key));
    return value->get<std::string>();
  }

  Status read_names(EvalQuestion* question) const {
    auto id = text("id");
    if (!id) return fail(std::move(id.error()));
    if (id->empty()) return fail("\"id\" is empty");
    question->id = std::move(*id);
    if (find("task") == nullptr) return {};
    auto task = text("task");
    if (!task) return fail(std::move(task.error()));
    if (task->empty()) return fail("\"task\" is empty");
    question->task = std::move(*task);
    return {};
  }

  Status read_choices(EvalQuestion* question) const {
    const Json* choices = find("choices");
    if (choices == nullptr) return {};
    if (!choices->is_array() || choices->size() < 2 || choices->size() > kMaxChoices) {
      return fail(fmt::format("\"choices\" is not a list of 2 to {} strings", kMaxChoices));
    }
    for (const Json& choice : *choices) {
      if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
        return fail("a choice is not a string with text");
      question->choices.push_back(choice.get<std::string>());
    }
    auto sorted = question->choices;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      return fail("two choices are equal");
    return {};
  }

  Status read_match(EvalQuestion* question) const {
    question->match = question->choices.empty() ? EvalMatch::kExact : EvalMatch::kChoice;
    if (find("match") == nullptr) return {};
    auto name = text("match");
    if (!name) return fail(std::move(name.error()));
    std::vector<std::string> names;
    for (const auto& [match, known] : kMatches) {
      names.emplace_back(known);
      if (*name == known) question->match = match;
    }
    if (std::find(names.begin(), names.end(), *name) == names.end())
      return fail("\"match\" is '" + *name + "'", "", "did you mean " + nearest_name(*name, names));
    if ((question->match == EvalMatch::kChoice) != !question->choices.empty())
      return fail("\"choices\" and \"match\": \"choice\" go together");
    return {};
  }

  Status read_answer(EvalQuestion* question) const {
    const Json* value = find("answer");
    if (value == nullptr) return fail("\"answer\" is missing");
    const EvalMatch match = question->match;
    if (match == EvalMatch::kJson || match == EvalMatch::kCall) {
      if (match == EvalMatch::kCall && !is_call(*value))
        return fail("\"answer\" of a call is not {\"name\": \"...\", \"arguments\": {...}}");
      question->answer = value->dump();
      return {};
    }
    if (!value->is_string()) return fail("\"answer\" is not a string");
    question->answer = value->get<std::string>();
    if (question->answer.empty()) return fail("\"answer\" is empty");
    if (match == EvalMatch::kChoice) return read_letter(question);
    if (match == EvalMatch::kNumber) return read_number(question);
    if (match == EvalMatch::kRegex) return check_regex(question->answer);
    return {};
  }

  static bool is_call(const Json& value) {
    return value.is_object() && value.size() == 2 && value.contains("name") &&
           value["name"].is_string() && value.contains("arguments") &&
           value["arguments"].is_object();
  }

  static Status read_letter(EvalQuestion* question) {
    const auto& choices = question->choices;
    const auto found = std::find(choices.begin(), choices.end(), question->answer);
    if (found != choices.end()) {
      question->answer = static_cast<char>('A' + (found - choices.begin()));
      return {};
    }
    const char letter = question->answer.front();
    if (question->answer.size() != 1 || letter < 'A' ||
        letter >= 'A' + static_cast<int>(choices.size())) {
      return fail("\"answer\" is neither the letter of a choice nor a choice: '" +
                  question->answer + "'");
    }
    return {};
  }

  static Status read_number(EvalQuestion* question) {
    const std::string number = last_number(question->answer);
    const size_t sign = question->answer.rfind('-');
    if (number.empty() || (sign != 0 && sign != std::string::npos) ||
        question->answer.find_first_not_of("0123456789.,-") != std::string::npos) {
      return fail("\"answer\" is not a number: '" + question->answer + "'");
    }
    question->answer = number;
    return {};
  }

  static Status check_regex(const std::string& pattern) {
    if (pattern.size() > kMaxRegexBytes)
      return fail(fmt::format("the regular expression is longer than {} bytes", kMaxRegexBytes));
    regex_t compiled;
    if (const int error = ::regcomp(&compiled, pattern.c_str(), REG_EXTENDED | REG_NOSUB);
        error != 0) {
      char why[200] = {};
      ::regerror(error, nullptr, why, sizeof why);
      return fail(fmt::format("\"answer\" is no regular expression: {}", why));
    }
    ::regfree(&compiled);
    return {};
  }

  Status read_chat(EvalQuestion* question) const {
    Json messages = Json::array();
    if (const Json* given = find("messages")) {
      const auto is_message = [](const Json& m) {
        return m.is_object() && m.contains("role") && m["role"].is_string();
      };
      if (!given->is_array() || given->empty() ||
          !std::all_of(given->begin(), given->end(), is_message))
        return fail("\"messages\" is not a list of messages with roles");
      messages = *given;
    }
    if (find("question") != nullptr) {
      auto asked = text("question");
      if (!asked) return fail(std::move(asked.error()));
      if (asked->empty()) return fail("\"question\" is empty");
      const std::string& content =
          question->choices.empty() ? *asked : with_choices(*asked, question->choices);
      messages.push_back({{"role", "user"}, {"content", content}});
    } else if (messages.empty()) {
      return fail("\"question\" is missing", "", "or give the conversation as \"messages\"");
    } else if (!question->choices.empty()) {
      return fail("\"choices\" need a \"question\"");
    }
    Json chat = {{"messages", std::move(messages)}};
    if (const Json* tools = find("tools")) {
      if (!tools->is_array()) return fail("\"tools\" is not a list");
      chat["tools"] = *tools;
    }
    question->chat = chat.dump();
    return {};
  }

  const Json& line_;
};

}  // namespace

const char* match_name(EvalMatch match) {
  for (const auto& [known, name] : kMatches)
    if (known == match) return name;
  return "";
}

Result<std::vector<EvalQuestion>> parse_eval_set(std::string_view text, const std::string& where,
                                                 const std::string& default_task) {
  std::vector<EvalQuestion> questions;
  std::set<std::pair<std::string, std::string>> ids;
  size_t number = 0;
  for (size_t at = 0; at < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = fmt::format("{}: line {}", where, number + 1);
    if (line.size() > kMaxLineBytes)
      return fail(fmt::format("longer than {} bytes", kMaxLineBytes), place);
    auto document = harmony::parse_json_bounded(line, place);
    if (!document) return fail(std::move(document.error()));
    if (!(*document)->is_object()) return fail("expected a JSON object", place);
    EvalQuestion question{.task = default_task};
    if (auto status = LineReader(**document).read(&question); !status) {
      return fail(std::move(status.error().what), place, std::move(status.error().hint));
    }
    if (!ids.emplace(question.task, question.id).second)
      return fail(fmt::format("the id '{}' occurs twice in task '{}'", question.id, question.task),
                  place);
    questions.push_back(std::move(question));
  }
  if (questions.empty()) return fail("holds no question", where, "one JSON object a line");
  return questions;
}

}  // namespace moxie
