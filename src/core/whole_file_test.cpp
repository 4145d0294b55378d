// What is at a path before and after a write that fails or succeeds.
#include "core/whole_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <thread>

namespace moxie {
namespace {

namespace fs = std::filesystem;

class WholeFiles : public testing::Test {
 protected:
  void SetUp() override {
    const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = fs::path(testing::TempDir()) / ("whole_file_" + name);
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static std::string text_at(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  ptrdiff_t num_files() const { return std::distance(fs::directory_iterator(folder_), {}); }
  fs::path folder_;
};

TEST_F(WholeFiles, ReplaceAFileAtTheirEndAndNotBefore) {
  ASSERT_TRUE(write_whole_file(at("a"), "first", "text"));
  fs::permissions(at("a"), fs::perms::owner_read | fs::perms::owner_write);
  WholeFile file(at("a"), "text");
  file.out() << "second" << std::flush;
  EXPECT_EQ(text_at(at("a")), "first");
  EXPECT_TRUE(file.close());
  EXPECT_EQ(text_at(at("a")), "second");
  EXPECT_EQ(fs::status(at("a")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(num_files(), 1);
}

TEST_F(WholeFiles, ThatAreGivenUpLeaveTheFileBeforeAndNothingElse) {
  ASSERT_TRUE(write_whole_file(at("a"), "first", "text"));
  WholeFile(at("a"), "text").out() << "half";
  EXPECT_TRUE(try_whole_file(at("a"), "text"));
  EXPECT_TRUE(try_whole_file(at("b"), "text"));
  EXPECT_EQ(text_at(at("a")), "first");
  EXPECT_EQ(num_files(), 1);
  for (const std::string& path : {at("no/such"), folder_.string()}) {
    EXPECT_FALSE(try_whole_file(path, "text")) << path;
    const Status status = write_whole_file(path, "x", "text");
    ASSERT_FALSE(status) << path;
    EXPECT_NE(status.error().message().find("cannot write the text"), std::string::npos);
  }
}

TEST_F(WholeFiles, ReplaceWhatALinkNames) {
  fs::create_directories(at("folder"));
  ASSERT_TRUE(write_whole_file(at("folder/a"), "first", "text"));
  fs::create_symlink("folder/a", at("link"));
  fs::create_symlink(at("link"), at("link_of_link"));
  fs::create_symlink("folder/none", at("dangling"));
  EXPECT_TRUE(write_whole_file(at("link_of_link"), "second", "text"));
  EXPECT_TRUE(write_whole_file(at("dangling"), "third", "text"));
  for (const char* name : {"link", "link_of_link", "dangling"})
    EXPECT_TRUE(fs::is_symlink(at(name))) << name;
  EXPECT_EQ(text_at(at("folder/a")), "second");
  EXPECT_EQ(text_at(at("folder/none")), "third");
  EXPECT_EQ(std::distance(fs::directory_iterator(at("folder")), {}), 2);
}

TEST_F(WholeFiles, WriteADeviceOrAPipeDirectly) {
  fs::create_symlink("/dev/full", at("full"));
  EXPECT_TRUE(try_whole_file(at("full"), "text"));
  EXPECT_FALSE(write_whole_file(at("full"), "x", "text"));
  EXPECT_TRUE(fs::is_character_file(at("full")));
  EXPECT_EQ(num_files(), 1);

  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(try_whole_file(at("pipe"), "text"));
  std::string read;
  std::thread reader([&] { read = text_at(at("pipe")); });
  EXPECT_TRUE(write_whole_file(at("pipe"), "through it", "text"));
  reader.join();
  EXPECT_EQ(read, "through it");
  EXPECT_TRUE(fs::is_fifo(at("pipe")));
}

}  // namespace
}  // namespace moxie
