#include "engine/self_test_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/kept_file.h"
#include "engine/strict_json.h"
#include "text/harmony_json.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kForm = "moxie self-test 1";
constexpr size_t kMaxTests = 64, kMaxProven = 1024, kMaxFaults = 256, kMaxBeside = 16;
constexpr uint64_t kMaxFileBytes = uint64_t{16} << 20;

struct Member {
  const char* name;
  std::string SelfTestKey::*field;
};
constexpr Member kMembers[] = {{"device", &SelfTestKey::device},
                               {"driver", &SelfTestKey::driver},
                               {"features", &SelfTestKey::features},
                               {"binary", &SelfTestKey::binary}};

// A list of texts, as objects of one member: the reader knows no bare texts.
std::vector<std::string> read_names(StrictReader& reader, const char* list, size_t most) {
  std::vector<std::string> names;
  reader.list(list, most, [&](const Json& entry, const std::string& place) {
    StrictReader of_entry(entry, place);
    names.push_back(of_entry.text("name"));
    reader.take(of_entry.end());
  });
  return names;
}
Json names_json(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& name : names) list.push_back({{"name", name}});
  return list;
}

std::string read_key(const Json& object, const std::string& at, SelfTestKey* key) {
  StrictReader reader(object, at);
  for (const Member& member : kMembers) key->*member.field = reader.text(member.name);
  return reader.end();
}

std::string read_fault(const Json& object, const std::string& at, KeptFault* fault) {
  StrictReader reader(object, at);
  fault->row = reader.text("row");
  fault->beside = read_names(reader, "beside", kMaxBeside);
  fault->launch = reader.text("launch");
  fault->what = reader.text("what");
  fault->shapes = reader.text("shapes");
  return reader.end();
}

std::string read_test(const Json& object, const std::string& at, KeptSelfTest* test) {
  StrictReader reader(object, at);
  reader.take(read_key(reader.member("key"), reader.place("key"), &test->key));
  test->proven = read_names(reader, "proven", kMaxProven);
  reader.list("faults", kMaxFaults, [&](const Json& entry, const std::string& place) {
    reader.take(read_fault(entry, place, &test->faults.emplace_back()));
  });
  return reader.end();
}

Json to_json(const KeptSelfTest& test) {
  Json key = Json::object(), faults = Json::array();
  for (const Member& member : kMembers) key[member.name] = test.key.*member.field;
  for (const KeptFault& fault : test.faults) {
    faults.push_back({{"row", fault.row},
                      {"beside", names_json(fault.beside)},
                      {"launch", fault.launch},
                      {"what", fault.what},
                      {"shapes", fault.shapes}});
  }
  return {{"key", std::move(key)}, {"proven", names_json(test.proven)}, {"faults", faults}};
}

}  // namespace

Result<std::vector<KeptSelfTest>> parse_self_tests(std::string_view text,
                                                   const std::string& where) {
  constexpr const char* kMend = "remove the file; the next start writes another";
  const auto parsed = harmony::parse_json_bounded(text, where);
  if (!parsed) return fail("is no JSON: " + parsed.error().what, where, kMend);
  StrictReader reader(**parsed, "");
  const std::string form = reader.text("form");
  if (form != kForm) reader.take(fmt::format("/form is not \"{}\"", kForm));
  std::vector<KeptSelfTest> tests;
  reader.list("tests", kMaxTests, [&](const Json& entry, const std::string& place) {
    reader.take(read_test(entry, place, &tests.emplace_back()));
  });
  if (std::string fault = reader.end(); !fault.empty()) return fail(std::move(fault), where, kMend);
  return tests;
}

std::string self_tests_text(const std::vector<KeptSelfTest>& tests) {
  Json list = Json::array();
  for (const KeptSelfTest& test : tests) list.push_back(to_json(test));
  return Json{{"form", kForm}, {"tests", std::move(list)}}.dump(1, ' ', false,
                                                                Json::error_handler_t::replace) +
         "\n";
}

Result<std::optional<std::vector<KeptSelfTest>>> read_self_tests(const std::string& path) {
  const auto text = read_kept_file(path, kMaxFileBytes, "self-tests");
  if (!text) return fail(text.error());
  if (!*text) return std::nullopt;
  auto tests = parse_self_tests(**text, path);
  if (!tests) return fail(std::move(tests.error()));
  return std::optional(std::move(*tests));
}

Status write_self_tests(const std::string& path, const std::vector<KeptSelfTest>& tests) {
  return write_kept_file(path, self_tests_text(tests), "self-test");
}

void replace_self_test(std::vector<KeptSelfTest>* tests, KeptSelfTest test) {
  // The oldest first: what does not fit is tested again.
  const auto drop = [](auto* list, size_t most) {
    if (list->size() > most) list->erase(list->begin(), list->end() - static_cast<int64_t>(most));
  };
  drop(&test.proven, kMaxProven);
  drop(&test.faults, kMaxFaults);
  std::erase_if(*tests, [&](const KeptSelfTest& other) { return other.key == test.key; });
  tests->insert(tests->begin(), std::move(test));
  if (tests->size() > kMaxTests) tests->resize(kMaxTests);
}

std::string default_self_test_path() { return kept_file_path("self-test.json"); }

std::string this_binary(const std::string& commit) {
  struct stat file = {};
  if (::stat("/proc/self/exe", &file) != 0) return commit;
  return fmt::format("{} {} {}.{:09}", commit, file.st_size, file.st_mtim.tv_sec,
                     file.st_mtim.tv_nsec);
}

}  // namespace moxie
