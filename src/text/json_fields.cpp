// The depth is counted before the parser sees the text, since what is parsed is freed and walked
// level by level.
#include "text/json_fields.h"

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace moxie {
namespace {

using Json = nlohmann::json;

// "~" and "/" of a key, as RFC 6901 writes them.
std::string escaped(std::string_view key) {
  std::string text;
  for (const char c : key) {
    if (c == '~')
      text += "~0";
    else if (c == '/')
      text += "~1";
    else
      text += c;
  }
  return text;
}

// Texts of a hostile file in a message: printable and short.
std::string shown(std::string_view text) {
  constexpr size_t kMost = 60;
  std::string out;
  for (const char c : text.substr(0, kMost)) out += c >= ' ' && c < 0x7f ? c : '?';
  return text.size() > kMost ? out + "..." : out;
}

std::string offset_text(size_t offset) { return "at byte " + std::to_string(offset); }

// The byte where brackets nest deeper than `most`.
std::optional<size_t> too_deep_at(std::string_view text, int most) {
  int depth = 0;
  bool is_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_string) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        is_string = false;
    } else if (c == '"') {
      is_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > most) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::nullopt;
}

// Told of each event of parsing: finds a key that an object has twice.
class KeysOnce {
 public:
  bool operator()(int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_.pop_back();
    } else if (event == Json::parse_event_t::key && !open_.empty()) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_.back().insert(key).second && twice.empty()) twice = key;
    }
    return true;
  }
  std::string twice;

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  if (text.size() > limits.bytes) {
    return fail(std::to_string(text.size()) + " bytes, at most " + std::to_string(limits.bytes) +
                    " are read",
                where);
  }
  if (const auto offset = too_deep_at(text, limits.depth)) {
    return fail(offset_text(*offset) + ": nested deeper than " + std::to_string(limits.depth),
                where);
  }
  KeysOnce keys;
  try {
    Json json = Json::parse(text, std::ref(keys));
    if (!keys.twice.empty())
      return fail("the key '" + shown(keys.twice) + "' is there twice", where);
    return json;
  } catch (const Json::parse_error& error) {
    const bool is_cut = error.byte > text.size();
    return fail(offset_text(error.byte) + (is_cut ? ": the text ends within a value" : ": no JSON"),
                where, is_cut ? "was the file cut off?" : "");
  } catch (const Json::exception&) {  // a number that no double holds
    return fail("a number is too large", where);
  }
}

Result<Json> read_json_file(const std::string& path, const JsonLimits& limits) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (error || !std::filesystem::exists(status)) {
    return fail("cannot be opened", path, "check the path and its permissions");
  }
  if (!std::filesystem::is_regular_file(status)) return fail("is no regular file", path);
  const auto size = std::filesystem::file_size(path, error);
  if (!error && size > limits.bytes) {
    return fail(
        std::to_string(size) + " bytes, at most " + std::to_string(limits.bytes) + " are read",
        path);
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail("cannot be opened", path, "check the path and its permissions");
  std::string text(error ? 0 : static_cast<size_t>(size), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  return parse_json(text, path, limits);
}

JsonFields::JsonFields(const Json& json, std::string pointer, std::string where, Fault* fault)
    : json_(&json), pointer_(std::move(pointer)), where_(std::move(where)), fault_(fault) {
  if (!json.is_object()) refuse(nullptr, std::string("expected an object, is ") + json.type_name());
}

std::string JsonFields::at(std::string_view key) const { return pointer_ + "/" + escaped(key); }

void JsonFields::refuse(const char* key, std::string what) {
  if (fault_->has_value()) return;
  const std::string pointer = key == nullptr ? pointer_ : at(key);
  *fault_ = Error{(pointer.empty() ? "" : shown(pointer) + ": ") + std::move(what), where_, ""};
}

void JsonFields::refuse_at(const char* key, size_t i, const char* what) {
  if (fault_->has_value()) return;
  *fault_ = Error{shown(at(key) + "/" + std::to_string(i)) + ": " + what, where_, ""};
}

const Json* JsonFields::find(const char* key) {
  if (!is_sound()) return nullptr;
  asked_.insert(key);
  const auto found = json_->find(key);
  if (found != json_->end()) return &*found;
  refuse(key, "is missing");
  return nullptr;
}

const Json* JsonFields::typed(const char* key, bool (*is_type)(const Json&), const char* type,
                              bool takes_null) {
  const Json* value = find(key);
  if (value == nullptr) return nullptr;
  if (takes_null && value->is_null()) return nullptr;
  if (is_type(*value)) return value;
  refuse(key, std::string("expected ") + type + (takes_null ? " or null" : "") + ", is " +
                  value->type_name());
  return nullptr;
}

namespace {

bool is_text(const Json& json) { return json.is_string(); }
bool is_boolean(const Json& json) { return json.is_boolean(); }
bool is_number(const Json& json) { return json.is_number(); }
bool is_integer(const Json& json) { return json.is_number_integer(); }
bool is_count(const Json& json) { return json.is_number_unsigned(); }
bool is_list(const Json& json) { return json.is_array(); }
bool is_object(const Json& json) { return json.is_object(); }

}  // namespace

std::string JsonFields::text(const char* key, size_t most_bytes) {
  const Json* value = typed(key, is_text, "a text");
  if (value == nullptr) return "";
  const auto& text = value->get_ref<const std::string&>();
  if (text.size() <= most_bytes) return text;
  refuse(key, "is longer than " + std::to_string(most_bytes) + " bytes");
  return "";
}

std::string JsonFields::text_or_null(const char* key) {
  const Json* value = typed(key, is_text, "a text", true);
  return value == nullptr ? "" : value->get<std::string>();
}

bool JsonFields::boolean(const char* key) {
  const Json* value = typed(key, is_boolean, "true or false");
  return value != nullptr && value->get<bool>();
}

std::optional<bool> JsonFields::boolean_or_null(const char* key) {
  const Json* value = typed(key, is_boolean, "true, false", true);
  return value == nullptr ? std::nullopt : std::optional(value->get<bool>());
}

std::optional<bool> JsonFields::boolean_if_there(const char* key) {
  if (!json_->is_object() || !json_->contains(key)) return std::nullopt;
  return boolean(key);
}

double JsonFields::number(const char* key) {
  const Json* value = typed(key, is_number, "a number");
  return value == nullptr ? 0 : value->get<double>();
}

std::optional<double> JsonFields::number_or_null(const char* key) {
  const Json* value = typed(key, is_number, "a number", true);
  return value == nullptr ? std::nullopt : std::optional(value->get<double>());
}

std::optional<double> JsonFields::number_if_there(const char* key) {
  if (!json_->is_object() || !json_->contains(key)) return std::nullopt;
  return number(key);
}

int64_t JsonFields::integer(const char* key, int64_t least, int64_t most) {
  const Json* value = typed(key, is_integer, "a whole number");
  if (value == nullptr) return least;
  const bool fits = value->is_number_unsigned()
                        ? std::cmp_less_equal(value->get<uint64_t>(), most) &&
                              std::cmp_greater_equal(value->get<uint64_t>(), least)
                        : value->get<int64_t>() >= least && value->get<int64_t>() <= most;
  if (fits) return value->get<int64_t>();
  refuse(key, "must be from " + std::to_string(least) + " to " + std::to_string(most));
  return least;
}

uint64_t JsonFields::count(const char* key) {
  const Json* value = typed(key, is_count, "a count");
  return value == nullptr ? 0 : value->get<uint64_t>();
}

std::optional<uint64_t> JsonFields::count_or_null(const char* key) {
  const Json* value = typed(key, is_count, "a count", true);
  return value == nullptr ? std::nullopt : std::optional(value->get<uint64_t>());
}

std::vector<std::string> JsonFields::texts(const char* key) {
  std::vector<std::string> list;
  const Json* values = typed(key, is_list, "a list of texts");
  for (size_t i = 0; values != nullptr && i < values->size(); ++i) {
    if (!(*values)[i].is_string()) {
      refuse_at(key, i, "expected a text");
      return {};
    }
    list.push_back((*values)[i].get<std::string>());
  }
  return list;
}

std::vector<double> JsonFields::numbers(const char* key) {
  std::vector<double> list;
  const Json* values = typed(key, is_list, "a list of numbers");
  for (size_t i = 0; values != nullptr && i < values->size(); ++i) {
    if (!(*values)[i].is_number()) {
      refuse_at(key, i, "expected a number");
      return {};
    }
    list.push_back((*values)[i].get<double>());
  }
  return list;
}

std::vector<double> JsonFields::numbers_if_there(const char* key) {
  if (!json_->is_object() || !json_->contains(key)) return {};
  return numbers(key);
}

JsonFields JsonFields::object(const char* key) {
  static const Json kNothing = Json::object();
  const Json* value = typed(key, is_object, "an object");
  return {value == nullptr ? kNothing : *value, at(key), where_, fault_};
}

std::optional<JsonFields> JsonFields::object_or_null(const char* key) {
  const Json* value = typed(key, is_object, "an object", true);
  if (value == nullptr) return std::nullopt;
  return JsonFields(*value, at(key), where_, fault_);
}

void JsonFields::objects(const char* key, const std::function<void(JsonFields&)>& read,
                         size_t most) {
  const Json* values = typed(key, is_list, "a list of objects");
  if (values != nullptr && values->size() > most)
    return refuse(key, "has more than " + std::to_string(most) + " entries");
  for (size_t i = 0; values != nullptr && i < values->size() && is_sound(); ++i) {
    JsonFields one((*values)[i], at(key) + "/" + std::to_string(i), where_, fault_);
    if (is_sound()) read(one);
  }
}

void JsonFields::objects_by_name(const char* key,
                                 const std::function<void(const std::string&, JsonFields&)>& read) {
  const Json* values = typed(key, is_object, "an object");
  if (values == nullptr) return;
  for (const auto& [name, value] : values->items()) {
    JsonFields one(value, at(key) + "/" + escaped(name), where_, fault_);
    if (!is_sound()) return;
    read(name, one);
  }
}

const Json& JsonFields::any(const char* key) {
  static const Json kNull;
  const Json* value = find(key);
  return value == nullptr ? kNull : *value;
}

void JsonFields::done() {
  if (!is_sound()) return;
  for (const auto& [key, value] : json_->items()) {
    if (asked_.contains(key)) continue;
    const std::string known = key;
    refuse(known.c_str(), "is not a key of this form");
    return;
  }
}

}  // namespace moxie
