#include "engine/self_test_file.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/kept_file.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTests = 64, kMaxProven = 1024, kMaxFaults = 256, kMaxBeside = 16;
constexpr uint64_t kMaxFileBytes = uint64_t{16} << 20;

constexpr KeptForm kForm{"moxie self-test 1", "tests", kMaxTests,
                         "remove the file; the next start writes another"};

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
    names.push_back(entry.text("name", kMostKeptText));
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
  for (const Member& member : kMembers) key.*member.field = fields.text(member.name, kMostKeptText);
  fields.done();
  return key;
}

KeptFault read_fault(JsonFields& fields) {
  KeptFault fault;
  fault.row = fields.text("row", kMostKeptText);
  fault.beside = read_names(fields, "beside", kMaxBeside);
  fault.launch = fields.text("launch", kMostKeptText);
  fault.what = fields.text("what", kMostKeptText);
  fault.shapes = fields.text("shapes", kMostKeptText);
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
  std::vector<KeptSelfTest> tests;
  auto parsed =
      parse_kept(text, where, kForm, [&](JsonFields& entry) { tests.push_back(read_test(entry)); });
  if (!parsed) return fail(std::move(parsed.error()));
  return tests;
}

std::string self_tests_text(const std::vector<KeptSelfTest>& tests) {
  Json list = Json::array();
  for (const KeptSelfTest& test : tests) list.push_back(to_json(test));
  return kept_text(kForm, std::move(list));
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
