// For tests that run the binary as people do.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/child_process.h"
#include "core/testing/paths.h"

namespace moxie {

namespace fs = std::filesystem;
using Json = nlohmann::json;

inline const std::string kNano = test_data() + "/goldens/nano-a";

inline ProcessResult moxie(std::vector<std::string> arguments, const std::string& input = "",
                           const std::vector<std::string>& environment = {}) {
  arguments.insert(arguments.begin(), MOXIE_BINARY);
  return run_process(arguments, input, environment, 300);
}

inline Json json_of(const ProcessResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Json document = Json::parse(result.out, nullptr, false);
  EXPECT_FALSE(document.is_discarded()) << result.out;
  return document;
}

inline std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A folder of its own for each test, removed afterwards.
class CliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("moxie_cli_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

}  // namespace moxie
