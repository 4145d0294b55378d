// moxie matrix as people run it: cells in processes of their own, a record that is resumed, the
// table, the page, and what is refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/child_process.h"
#include "core/testing/paths.h"
#include "lab/testing/xml_check.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

ProcessResult matrix(Arguments arguments, const std::vector<std::string>& environment = {}) {
  arguments.insert(arguments.begin(), {MOXIE_BINARY, "matrix"});
  return run_process(arguments, "", environment, 600);
}

std::string slurp(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class MatrixCliTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("moxie_matrix_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  fs::path folder_;
};

TEST_F(MatrixCliTest, CellsAreValidatedKeptAndNotRunAgain) {
  const Arguments base = {"--model",  test_data() + "/goldens/nano-a",
                          "--device", "cpu",
                          "--level",  "1.5",
                          "--quick",  "--json",
                          "--switch", "kv-dtype=auto,bf16",
                          "--switch", "tile=auto,256x64",
                          "--record", at("matrix.json")};
  Arguments first = base;
  first.insert(first.end(), {"--markdown", at("table.md"), "--report", at("page.html")});
  // A switch from the environment is one of all cells, not one of those that are varied.
  const ProcessResult ran = matrix(first, {"MOXIE_THREADS=2"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err << ran.out;
  const Json document = Json::parse(ran.out, nullptr, false);
  ASSERT_TRUE(document.is_object()) << ran.out;
  const Json& cells = document["matrix"]["cells"];
  ASSERT_EQ(cells.size(), 4u);
  Arguments common = document["matrix"]["key"]["common"];
  std::sort(common.begin(), common.end());
  EXPECT_EQ(common, (Arguments{"--device=cpu", "--model=" + test_data() + "/goldens/nano-a",
                               "--threads=2"}));
  for (const Json& cell : cells) {
    const bool is_refused = cell["settings"]["--tile"] == "256x64";  // of GPUs
    EXPECT_EQ(cell["verdict"], is_refused ? "cannot run" : "passed") << cell;
    EXPECT_EQ(cell["why"].get<std::string>().empty(), !is_refused);
    if (is_refused) continue;
    EXPECT_EQ(cell["levels"].size(), 2u);
    EXPECT_EQ(cell["orthogonality"][0]["passed"], true) << "the plan: " << cell;
    EXPECT_EQ(cell["orthogonality"][1]["passed"], true) << "the bits: " << cell;
    EXPECT_EQ(cell["orthogonality"][3]["passed"], true) << "other rows: " << cell;
  }
  EXPECT_EQ(document["record"]["kind"], "matrix");
  EXPECT_EQ(document["record"]["details"], document["matrix"]);
  EXPECT_NE(slurp(at("table.md")).find("| auto | auto | yes | yes | yes | yes |"),
            std::string::npos)
      << slurp(at("table.md"));
  EXPECT_EQ(fault_of_xml(slurp(at("page.html"))), "");

  // The record says which cells are done; a cell with a mark shows that it was taken from there.
  Json record = Json::parse(slurp(at("matrix.json")));
  record["details"]["cells"].erase(1);
  record["details"]["cells"][0]["why"] = "taken over";
  std::ofstream(at("matrix.json")) << record.dump();
  Arguments again = base;
  again.emplace_back("--resume");
  const ProcessResult resumed = matrix(again, {"MOXIE_THREADS=2"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  const Json after = Json::parse(resumed.out, nullptr, false);
  ASSERT_EQ(after["matrix"]["cells"].size(), 4u) << resumed.out;
  EXPECT_EQ(after["matrix"]["cells"][0]["why"], "taken over");
  EXPECT_EQ(after["matrix"]["cells"][1]["settings"], cells[1]["settings"]);

  again.insert(again.end(), {"--threads", "1"});
  const ProcessResult other = matrix(again);
  EXPECT_EQ(other.exit_code, 1) << "other switches in all cells";
  EXPECT_NE(other.err.find("--resume"), std::string::npos) << other.err;
}

// Starts a command, ends it by `signal` once it has a child, and prints its exit code and whether
// the child is alive after it.
ProcessResult end_with_child(const std::string& signal, const std::string& temporary_folder,
                             const Arguments& command) {
  Arguments shell = {"/bin/bash", "-c",
                     "signal=$1; shift; \"$@\" >/dev/null 2>&1 & pid=$!; "
                     "for i in $(seq 600); do child=$(cat /proc/$pid/task/$pid/children); "
                     "[[ $child ]] && break; sleep 0.05; done; "
                     "sleep 0.3; kill -$signal $pid; wait $pid; echo \"code $?\"; "
                     "for i in $(seq 100); do grep -qs '^State:.[^ZX]' /proc/${child% }/status || "
                     "break; sleep 0.05; done; "
                     "grep -qs '^State:.[^ZX]' /proc/${child% }/status && echo alive; exit 0",
                     "bash", signal};
  shell.insert(shell.end(), command.begin(), command.end());
  return run_process(shell, "", {"TMPDIR=" + temporary_folder}, 300);
}

TEST_F(MatrixCliTest, ASignalEndsTheChildToo) {
  if (!fs::exists("/proc/self/task/" + std::to_string(::getpid()) + "/children"))
    GTEST_SKIP() << "this kernel lists no children";
  const std::string model = test_data() + "/goldens/nano-a", record = at("record.json");
  const auto bench = run_process({MOXIE_BINARY, "bench", "--model", model, "--device", "cpu", "-p",
                                  "0", "-n", "2", "-r", "2", "--record", record});
  ASSERT_EQ(bench.exit_code, 0) << bench.err;
  // So many repetitions that it is running still when the signal comes.
  Json document = Json::parse(slurp(record));
  for (Json& argument : document["command"]["arguments"])
    if (argument.get<std::string>().starts_with("--repetitions")) argument = "--repetitions=1000";
  std::ofstream(record) << document;
  fs::create_directories(at("tmp"));
  for (const auto& [signal, code] :
       {std::pair("TERM", "code 143\n"), std::pair("KILL", "code 137\n")}) {
    for (const Arguments& command :
         {Arguments{MOXIE_BINARY, "matrix", "--switch", "kv-dtype=auto,bf16", "--model", model},
          Arguments{MOXIE_BINARY, "bench", "replay", record}}) {
      const auto ended = end_with_child(signal, at("tmp"), command);
      EXPECT_EQ(ended.out, code) << command[1] << ' ' << ended.err;
      if (code == std::string("code 143\n")) {
        EXPECT_TRUE(fs::is_empty(at("tmp"))) << command[1];
      }
      fs::remove_all(at("tmp"));
      fs::create_directories(at("tmp"));
    }
  }
}

TEST_F(MatrixCliTest, WhatCannotBeVariedIsAUsageFault) {
  for (const Arguments& wrong :
       std::vector<Arguments>{{},
                              {"--switch", "kv-dtype"},
                              {"--switch", "no-such=a,b"},
                              {"--switch", "graphs=on,maybe"},
                              {"--switch", "json=a"},
                              {"--switch", "level=1,2"},
                              {"--switch", "graphs=on", "--graphs", "off"},
                              {"--switch", "graphs=on", "--switch", "graphs=off"},
                              {"--switch", "graphs=on", "--resume"}}) {
    const ProcessResult result = matrix(wrong);
    EXPECT_EQ(result.exit_code, 2) << testing::PrintToString(wrong) << result.err;
    EXPECT_NE(result.err, "");
  }
  const ProcessResult missing = matrix({"--switch", "graphs=on", "--model", at("none")});
  EXPECT_EQ(missing.exit_code, 1) << missing.err;
}

TEST_F(MatrixCliTest, AStaleTableIsToldByLines) {
  const std::string path = source_dir() + "/docs/feature-matrix.md";
  const ProcessResult current = matrix({"--check-markdown", path});
  EXPECT_EQ(current.exit_code, 0) << current.out << "docs/reports.md says how to make it again";
  std::string text = slurp(path);
  const size_t line = text.find("| `--kv-dtype` | ");
  ASSERT_NE(line, std::string::npos);
  text.replace(line, std::string("| `--kv-dtype` | ").size(), "| `--kv-dtype` | f64, ");
  std::ofstream(at("stale.md")) << text;
  const ProcessResult stale = matrix({"--check-markdown", at("stale.md")});
  EXPECT_EQ(stale.exit_code, 1);
  EXPECT_NE(stale.out.find("--kv-dtype"), std::string::npos) << stale.out;
  EXPECT_EQ(matrix({"--check-markdown", at("none.md")}).exit_code, 1);
}

}  // namespace
}  // namespace moxie
