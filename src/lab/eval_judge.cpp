// Extracts an answer from a model's text and compares it with the right one.
#include <regex.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <optional>

#include "lab/eval_set.h"
#include "text/harmony_json.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// Longer texts are searched from their end: what counts stands there.
constexpr size_t kMaxSearchedBytes = size_t{64} << 10;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_alnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }
char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return lower(c); });
  return out;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

// Without the marks that only make a text bold, quoted, code or a formula.
std::string without_marks(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with("\\boxed")) {
      i += 5;
    } else if (std::string_view("*`$\"{}").find(text[i]) == std::string_view::npos) {
      out += text[i];
    }
  }
  return std::string(trimmed(out));
}

// Equal JSON values: numbers by value, objects whatever their order.
bool is_equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a == b;
  if (a.type() != b.type()) return false;
  if (a.is_array()) return std::equal(a.begin(), a.end(), b.begin(), b.end(), is_equal);
  if (!a.is_object()) return a == b;
  return a.size() == b.size() &&
         std::all_of(a.items().begin(), a.items().end(), [&](const auto& m) {
           const auto found = b.find(m.key());
           return found != b.end() && is_equal(m.value(), *found);
         });
}

std::optional<Json> parsed(std::string_view text) {
  auto document = harmony::parse_json_bounded(text, "answer");
  if (!document) return std::nullopt;
  return std::move(**document);
}

EvalJudgement judged(bool is_right, std::string extracted) {
  return {is_right ? EvalVerdict::kRight : EvalVerdict::kWrong, std::move(extracted)};
}
EvalJudgement invalid_because(const char* why) { return {EvalVerdict::kInvalid, why}; }

bool is_found(const std::string& pattern, const std::string& text) {
  regex_t compiled;  // the pattern was checked when the set was read
  if (::regcomp(&compiled, pattern.c_str(), REG_EXTENDED | REG_NOSUB) != 0) return false;
  const bool found = ::regexec(&compiled, text.c_str(), 0, nullptr, 0) == 0;
  ::regfree(&compiled);
  return found;
}

EvalJudgement judge_call(const EvalQuestion& question, const EvalReply& reply) {
  if (reply.calls.empty()) return invalid_because("no call");
  const EvalReply::Call& call = reply.calls.front();
  const std::string shown = call.name + " " + call.arguments;
  const auto arguments = parsed(call.arguments);
  if (!arguments || !arguments->is_object()) return invalid_because("its arguments are not JSON");
  const auto want = parsed(question.answer);
  CHECK(want.has_value(), "checked when the set was read");
  return judged(reply.calls.size() == 1 && call.name == (*want)["name"].get<std::string>() &&
                    is_equal(*arguments, (*want)["arguments"]),
                shown);
}

EvalJudgement judge_json(const EvalQuestion& question, const std::string& text) {
  const auto found = parsed(text);
  if (!found) return invalid_because("not JSON");
  const auto want = parsed(question.answer);
  CHECK(want.has_value(), "checked when the set was read");
  return judged(is_equal(*found, *want), text);
}

// Whether `text` has `word` with nothing of a word on either side.
bool holds_word(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_alnum(text[at - 1]) || !is_alnum(word.front());
    const bool ends = end == text.size() || !is_alnum(text[end]) || !is_alnum(word.back());
    if (begins && ends) return true;
  }
  return false;
}

// The letter at text[at...] with brackets around it, if no word goes on behind it.
char letter_at(std::string_view text, size_t at, size_t num_choices, bool any_case) {
  at = text.find_first_not_of("([ ", at);
  if (at == std::string_view::npos) return 0;
  char letter = text[at];
  if (any_case && letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  if (letter < 'A' || letter >= 'A' + static_cast<int>(num_choices)) return 0;
  const std::string_view rest = text.substr(at + 1);
  return rest.empty() || (!is_alnum(rest.front()) && rest.front() != '\'') ? letter : char{0};
}

// Behind the last "answer", perhaps with "is", a colon, "option" and the like between.
char letter_behind_answer(const std::string& text, size_t num_choices) {
  const std::string small = lower(text);
  size_t at = small.rfind("answer");
  while (at != std::string::npos) {
    size_t next = at + 6;
    for (bool skips = true; skips;) {
      skips = false;
      for (const std::string_view word : {" ", ":", "=", "is", "option", "choice", "letter"}) {
        if (!std::string_view(small).substr(next).starts_with(word)) continue;
        next += word.size();
        skips = true;
      }
    }
    const char letter = letter_at(text, next, num_choices, false);
    if (letter != 0) return letter;
    if (at == 0) break;
    at = small.rfind("answer", at - 1);
  }
  return 0;
}

}  // namespace

const char* eval_verdict_name(EvalVerdict verdict) {
  constexpr const char* kNames[] = {"right", "wrong", "invalid"};
  return kNames[static_cast<size_t>(verdict)];
}

char chosen_letter(std::string_view raw, const std::vector<std::string>& choices) {
  if (raw.size() > kMaxSearchedBytes) raw.remove_prefix(raw.size() - kMaxSearchedBytes);
  const std::string text = without_marks(raw);
  if (text.empty()) return 0;
  const size_t past = text.find_last_not_of(").]: ");
  if (past != std::string::npos && past <= 2) {
    const char letter =
        letter_at(std::string_view(text).substr(0, past + 1), 0, choices.size(), true);
    if (letter != 0 && text.find_first_not_of("([ ") == past) return letter;
  }
  if (const char letter = letter_behind_answer(text, choices.size()); letter != 0) return letter;
  const size_t first = text.find_first_not_of("([");
  if (first != std::string::npos && first + 1 < text.size() &&
      std::string_view(").:]").find(text[first + 1]) != std::string_view::npos) {
    if (const char letter = letter_at(text, first, choices.size(), false); letter != 0)
      return letter;
  }
  const std::string small = lower(text);
  char found = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    const std::string choice = lower(without_marks(choices[i]));
    const auto letter = static_cast<char>('A' + i);
    if (small == choice || small == choice + ".") return letter;
    if (choice.empty() || !holds_word(small, choice)) continue;
    if (found != 0) found = '?';
    if (found == 0) found = letter;
  }
  return found == '?' ? char{0} : found;
}

std::string last_number(std::string_view text) {
  if (text.size() > kMaxSearchedBytes) text.remove_prefix(text.size() - kMaxSearchedBytes);
  size_t end = text.size();
  while (end > 0 && !is_digit(text[end - 1])) --end;
  if (end == 0) return {};
  size_t begin = end - 1;
  const auto continues = [&](size_t i) {  // a digit, or a comma or point between digits
    return is_digit(text[i]) ||
           ((text[i] == '.' || text[i] == ',') && i > 0 && is_digit(text[i - 1]));
  };
  while (begin > 0 && continues(begin - 1)) --begin;
  std::string_view digits = text.substr(begin, end - begin);
  // More than one point, or commas that part no thousands: only what stands behind the last one.
  const size_t point = digits.find('.');
  if (point != std::string_view::npos && digits.find_first_of(".,", point + 1) != digits.npos) {
    begin += digits.find_last_of(".,") + 1;
    digits = text.substr(begin, end - begin);
  }
  std::string whole(digits.substr(0, digits.find('.')));
  std::string part(digits.find('.') == digits.npos ? "" : digits.substr(digits.find('.') + 1));
  const size_t comma = whole.find(',');
  if (comma != std::string::npos) {
    bool parts_thousands = comma >= 1 && comma <= 3 && (whole.size() - comma) % 4 == 0;
    for (size_t i = comma; i < whole.size() && parts_thousands; ++i)
      parts_thousands = (whole[i] == ',') == ((i - comma) % 4 == 0);
    if (parts_thousands) {
      std::erase(whole, ',');
    } else {
      begin += whole.rfind(',') + 1;
      whole.erase(0, whole.rfind(',') + 1);
    }
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size() - 1));
  part.erase(part.find_last_not_of('0') + 1);
  const bool has_minus = begin > 0 && text[begin - 1] == '-';
  const bool has_long_minus = begin >= 3 && text.substr(begin - 3, 3) == "\xe2\x88\x92";
  const size_t sign = begin - (has_minus ? 1 : has_long_minus ? 3 : 0);
  const bool is_difference = sign > 0 && (is_alnum(text[sign - 1]) || text[sign - 1] == ')');
  const bool is_zero = whole == "0" && part.empty();
  const bool is_negative = (has_minus || has_long_minus) && !is_difference && !is_zero;
  return (is_negative ? "-" : "") + whole + (part.empty() ? "" : "." + part);
}

EvalJudgement judge(const EvalQuestion& question, const EvalReply& reply) {
  if (reply.finish_reason == "length") return invalid_because("cut at the greatest length");
  if (question.match == EvalMatch::kCall) return judge_call(question, reply);
  const std::string text(trimmed(reply.content));
  if (!reply.calls.empty()) return invalid_because("a call instead of an answer");
  if (text.empty()) return invalid_because("empty");
  const std::string& want = question.answer;
  switch (question.match) {
    case EvalMatch::kChoice: {
      const char letter = chosen_letter(text, question.choices);
      if (letter == 0) return invalid_because("names no choice");
      return judged(want[0] == letter, std::string(1, letter));
    }
    case EvalMatch::kNumber: {
      std::string number = last_number(text);
      if (number.empty()) return invalid_because("holds no number");
      return judged(number == want, number);
    }
    case EvalMatch::kExact:
      return judged(text == trimmed(want), text);
    case EvalMatch::kRegex:
      if (text.size() > kMaxSearchedBytes) return invalid_because("longer than 64 KiB");
      return judged(is_found(want, text), text);
    case EvalMatch::kContains:
      return judged(lower(text).find(lower(want)) != std::string::npos, text);
    case EvalMatch::kStartsWith:
      return judged(text.starts_with(want), text);
    default:
      return judge_json(question, text);
  }
}

}  // namespace moxie
