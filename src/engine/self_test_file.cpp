#include "engine/self_test_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/kept_file.h"
#include "text/json_fields.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kForm = "moxie self-test 1";
constexpr size_t kMaxTests = 64, kMaxProven = 1024, kMaxFaults = 256, kMaxBeside = 16;
constexpr size_t kMaxTextBytes = 4096;
constexpr uint64_t kMaxFileBytes = uint64_t{16} << 20;

struct Member {
  const char* name;
  std::string SelfTestKey::*field;
};
constexpr Member kMembers[] = {{"device", &SelfTestKey::device},
                               {"driver", &SelfTestKey::driver},
                               {"features", &SelfTestKey::features},
                               {"binary", &SelfTestKey::binary}};

// A list of texts, as objects of one member.
std::vector<std::string> read_names(JsonFields& fields, const char* list, size_t most) {
  std::vector<std::string> names;
  const auto read = [&](JsonFields& entry) {
    names.push_back(entry.text("name", kMaxTextBytes));
    entry.done();
  };
  fields.objects(list, read, most);
  return names;
}
Json names_json(const std::vector<std::string>& names) {
  Json list = Json::array();
  for (const std::string& name : names) list.push_back({{"name", name}});
  return list;
}

SelfTestKey read_key(JsonFields fields) {
  SelfTestKey key;
  for (const Member& member : kMembers) key.*member.field = fields.text(member.name, kMaxTextBytes);
  fields.done();
  return key;
}

KeptFault read_fault(JsonFields& fields) {
  KeptFault fault;
  fault.row = fields.text("row", kMaxTextBytes);
  fault.beside = read_names(fields, "beside", kMaxBeside);
  fault.launch = fields.text("launch", kMaxTextBytes);
  fault.what = fields.text("what", kMaxTextBytes);
  fault.shapes = fields.text("shapes", kMaxTextBytes);
  fields.done();
  return fault;
}

KeptSelfTest read_test(JsonFields& fields) {
  KeptSelfTest test;
  test.key = read_key(fields.object("key"));
  test.proven = read_names(fields, "proven", kMaxProven);
  fields.objects(
      "faults", [&](JsonFields& entry) { test.faults.push_back(read_fault(entry)); }, kMaxFaults);
  fields.done();
  return test;
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
  const auto parsed = parse_json(text, where);
  if (!parsed) return fail(parsed.error().what, where, kMend);
  JsonFields::Fault fault;
  JsonFields fields(*parsed, "", where, &fault);
  if (fields.text("form", kMaxTextBytes) != kForm)
    fields.refuse("form", fmt::format("is not \"{}\"", kForm));
  std::vector<KeptSelfTest> tests;
  fields.objects(
      "tests", [&](JsonFields& entry) { tests.push_back(read_test(entry)); }, kMaxTests);
  fields.done();
  if (fault) return fail(fault->what, where, kMend);
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
