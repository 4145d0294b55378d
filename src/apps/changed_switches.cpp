#include "apps/changed_switches.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <sstream>

#include "core/nearest.h"

namespace moxie {
namespace {

// Keeps for each declared switch how a value's text is read.
class Setters final : public Flags {
 public:
  using Set = std::function<Status(const std::string&)>;

  void text(const std::string& flag, std::string* value, const std::string&) override {
    add(flag, [value](const std::string& given) -> Status {
      *value = given;
      return {};
    });
  }
  void texts(const std::string& flag, std::vector<std::string>* values,
             const std::string&) override {
    add(flag, [values](const std::string& given) -> Status {
      values->push_back(given);
      return {};
    });
  }
  void integer(const std::string& flag, int32_t* value, Bounds<int32_t> bounds,
               const std::string&) override {
    add_number(flag, value, bounds);
  }
  void integers(const std::string& flag, std::vector<int32_t>*, Bounds<int32_t>,
                const std::string&) override {
    add(flag,
        [](const std::string&) -> Status { return fail("takes a list, which has no place here"); });
  }
  void unsigned64(const std::string& flag, uint64_t* value, Bounds<uint64_t> bounds,
                  const std::string&) override {
    add_number(flag, value, bounds);
  }
  void number(const std::string& flag, float* value, Bounds<float> bounds,
              const std::string&) override {
    add_number(flag, value, bounds);
  }
  void toggle(const std::string& flag, bool* value, const std::string&) override {
    add(flag, [value](const std::string& given) -> Status {
      if (given != "true" && given != "false") return fail("takes true or false");
      *value = given == "true";
      return {};
    });
  }
  void choice(const std::string& flag, std::string* value, const std::vector<std::string>& choices,
              const std::string&) override {
    add(flag, [value, choices](const std::string& given) -> Status {
      if (std::find(choices.begin(), choices.end(), given) == choices.end())
        return fail("'" + given + "' is no value of it", "",
                    "did you mean " + nearest_name(given, choices) + "?");
      *value = given;
      return {};
    });
  }
  void positional(const std::string&, std::vector<std::string>*, const std::string&,
                  bool) override {}
  bool given(const std::string&) const override { return false; }
  std::vector<Setting> settings() const override { return {}; }

  const Set* find(const std::string& flag) const {
    const auto found = setters_.find(flag);
    return found == setters_.end() ? nullptr : &found->second;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> list;
    for (const auto& [name, set] : setters_) list.push_back(name);
    return list;
  }
  void remove(const std::string& flag) { setters_.erase(flag); }

 private:
  void add(const std::string& flag, Set set) {
    setters_[flag.substr(flag.rfind(',') + 1)] = std::move(set);  // "-p,--prompt"
  }
  template <typename T>
  void add_number(const std::string& flag, T* value, Bounds<T> bounds) {
    add(flag, [value, bounds](const std::string& given) -> Status {
      T read{};
      const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), read);
      if (error != std::errc() || end != given.data() + given.size() || !(read >= bounds.least) ||
          !(read <= bounds.most)) {
        return fail("'" + given + "' is no number that it takes");
      }
      *value = read;
      return {};
    });
  }
  std::map<std::string, Set> setters_;
};

}  // namespace

Result<EngineOptions> with_switches(const EngineOptions& base, const std::string& text,
                                    const std::string& where) {
  EngineOptions options = base;
  Setters setters;
  declare_model_flags(setters, &options);
  setters.remove("--model");
  std::istringstream words(text);
  bool has_any = false;
  for (std::string word; words >> word; has_any = true) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const Setters::Set* set = setters.find(name);
    if (set == nullptr) {
      return fail("'" + name + "' is no switch of a model", where,
                  "did you mean " + nearest_name(name, setters.names()) + "?");
    }
    std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    if (equals == std::string::npos && !(words >> value))
      return fail(name + " has no value", where);
    if (auto status = (*set)(value); !status)
      return fail(name + ": " + status.error().what, where, status.error().hint);
  }
  if (!has_any) return fail("names no switch", where, "such as \"--activation mxfp8\"");
  return options;
}

}  // namespace moxie
