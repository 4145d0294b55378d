// The file of self-tests: which chains of rows were proven on a device by this binary, and which
// rows failed there. docs/self-test.md describes it.
//
// A file comes from outside: its reader accepts the form that the writer makes and nothing else.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie {

/// What a result depends on. It counts only where every member is equal.
struct SelfTestKey {
  std::string device;    ///< "NVIDIA H200", "AMD EPYC ..."
  std::string driver;    ///< device_driver()
  std::string features;  ///< feature_names()
  std::string binary;    ///< this_binary()
  friend bool operator==(const SelfTestKey&, const SelfTestKey&) = default;
};

struct KeptFault {
  std::string row;                  ///< put out of the plan
  std::vector<std::string> beside;  ///< rows that stood before it and could be at fault as well
  std::string launch, what;
  std::string shapes;  ///< hash of self_test_shapes(): of the models for which it is out
  friend bool operator==(const KeptFault&, const KeptFault&) = default;
};

struct KeptSelfTest {
  SelfTestKey key;
  std::vector<std::string> proven;  ///< hashes of chains in their launches
  std::vector<KeptFault> faults;
};

/// `where` names the file in errors, which name the member at fault.
Result<std::vector<KeptSelfTest>> parse_self_tests(std::string_view text, const std::string& where);
std::string self_tests_text(const std::vector<KeptSelfTest>& tests);

/// Nothing if there is no such file.
Result<std::optional<std::vector<KeptSelfTest>>> read_self_tests(const std::string& path);
Status write_self_tests(const std::string& path, const std::vector<KeptSelfTest>& tests);

/// Puts a result in front of the others, in place of one of the same key, and drops the last beyond
/// what a file may have.
void replace_self_test(std::vector<KeptSelfTest>* tests, KeptSelfTest test);

/// In the user's cache: self-test.json; empty if nothing says where.
std::string default_self_test_path();

/// `commit` with the size and the time of the program's file, which tell builds of a commit apart.
std::string this_binary(const std::string& commit);

}  // namespace moxie
