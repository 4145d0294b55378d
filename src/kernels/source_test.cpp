// The structure of the tables as the sources show it: who names a row, which folders of kernels/
// include which, and how kernels are launched.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "core/testing/paths.h"
#include "kernels/registry.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

struct Source {
  std::string path;  // below src/
  std::string text;
};

std::vector<Source> sources() {
  const fs::path root = source_dir() + "/src";
  std::vector<Source> found;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh")
      continue;
    std::ifstream file(entry.path());
    found.push_back({fs::relative(entry.path(), root).generic_string(),
                     {std::istreambuf_iterator<char>(file), {}}});
  }
  return found;
}

// Tests, their cases and benchmarks are about rows: they may name them.
bool is_test(const std::string& path) {
  static const std::regex kTest("(_test\\.cpp|_case\\.h|_bench\\.cpp|/testing/)");
  return std::regex_search(path, kTest);
}

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool names(const std::string& text, const std::string& word) {
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_word(text[at - 1])) && (end == text.size() || !is_word(text[end])))
      return true;
  }
  return false;
}

// The folder of an operation has its name, or the beginning of its name: what a format adds may be
// left out.
bool is_folder_of(const std::string& folder, const std::string& op) {
  return op == folder || op.starts_with(folder + "_");
}
std::string folder_of(const std::string& op) {
  for (const auto& entry : fs::directory_iterator(source_dir() + "/src/kernels")) {
    const std::string folder = entry.path().filename();
    if (entry.is_directory() && is_folder_of(folder, op)) return folder;
  }
  return op;
}

TEST(Sources, ARowIsNamedByItsOwnFileItsTableAndTestsAlone) {
  int num_named = 0;
  const std::vector<Source> files = sources();
  const std::vector<RowInfo> rows = all_rows();
  for (const Source& file : files) {
    if (is_test(file.path)) continue;
    for (const RowInfo& row : rows) {
      if (file.text.find(row.name) == file.text.npos || !names(file.text, row.name)) continue;
      const std::string name = folder_of(row.op().name), folder = "kernels/" + name + "/";
      const bool is_listed =
          file.path == folder + name + "_table.cpp" || file.path == folder + name + "_rows.h";
      const bool is_its_own = file.path.starts_with(folder) && !file.path.ends_with("_rows.h") &&
                              file.text.find(" " + row.name + "(const ") != file.text.npos;
      EXPECT_TRUE(is_listed || is_its_own) << file.path << " names " << row.name;
      num_named += is_listed ? 1 : 0;
    }
  }
  EXPECT_GE(num_named, static_cast<int>(rows.size())) << "each is in a table";
}

// Of a folder of kernels/: it may include those below it. Steps know no other operation
// but those whose products others fold into theirs.
int rank_of(const std::string& folder) {
  if (folder == "testing") return 3;
  const auto holds = [&](const OpTable& table) { return is_folder_of(folder, table.op->name); };
  if (std::ranges::none_of(all_ops(), holds)) return 0;  // what steps share
  return folder == "route" || folder == "rotate" || folder == "reduce" ? 1 : 2;
}

TEST(Sources, NoFolderOfKernelsIncludesOneAboveIt) {
  static const std::regex kInclude("#include \"kernels/(\\w+)/([\\w.]+)\"");
  int num_includes = 0;
  for (const Source& file : sources()) {
    if (!file.path.starts_with("kernels/") || is_test(file.path)) continue;
    if (file.path == "kernels/ops.cpp") continue;  // the list of them all
    const std::string below = file.path.substr(std::string("kernels/").size());
    const size_t slash = below.find('/');
    const std::string folder = slash == below.npos ? "" : below.substr(0, slash);
    for (std::sregex_iterator at(file.text.begin(), file.text.end(), kInclude), end; at != end;
         ++at) {
      const std::string included = (*at)[1];
      ++num_includes;
      EXPECT_TRUE(included == folder || rank_of(included) < rank_of(folder) ||
                  (rank_of(included) == 0 && rank_of(folder) == 0))
          << file.path << " includes " << included << "/" << (*at)[2];
    }
  }
  EXPECT_GT(num_includes, 100);
}

// A profile counts on it: it knows the launches that are noted there. ("<<<" launches in CUDA code
// alone; a script of a shell may contain it.)
TEST(Sources, KernelsAreLaunchedInOnePlace) {
  static const std::regex kLaunch("<<<|[lL]aunchKernel|LaunchCooperativeKernel");
  int num_launches = 0;
  for (const Source& file : sources()) {
    if (is_test(file.path)) continue;
    const bool is_cuda = file.path.ends_with(".cu") || file.path.ends_with(".cuh");
    for (std::sregex_iterator at(file.text.begin(), file.text.end(), kLaunch), end; at != end;
         ++at) {
      if (!is_cuda && (*at)[0] == "<<<") continue;
      ++num_launches;
      EXPECT_EQ(file.path, "core/cuda_launch.cuh") << (*at)[0];
    }
  }
  EXPECT_EQ(num_launches, 1);
}

TEST(Sources, ThePassAsksForNoDevice) {
  int num_read = 0;
  for (const Source& file : sources()) {
    if (!file.path.starts_with("model/pass") && !file.path.starts_with("model/gpt_oss")) continue;
    ++num_read;
    EXPECT_EQ(file.text.find("DeviceKind::"), file.text.npos) << file.path;
  }
  EXPECT_GE(num_read, 6);
}

}  // namespace
}  // namespace moxie
