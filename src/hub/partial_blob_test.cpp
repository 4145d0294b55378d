// Blobs that come in pieces, against a plain copy of the content.
#include "hub/partial_blob.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <thread>

namespace moxie::hub {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string hash_of(const std::string& content) {
  Hasher hasher(HashKind::kSha256, content.size());
  hasher.add(std::as_bytes(std::span(content)));
  return hasher.finish();
}

class PartialBlobTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("moxie_partial_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::unique_ptr<PartialBlob> open(const std::string& content) const {
    auto blob = PartialBlob::open(
        path(), {.path = "x", .bytes = content.size(), .hash = HashKind::kSha256}, never_);
    CHECK(blob.has_value(), blob.error().message());
    return std::move(*blob);
  }
  std::string path() const { return (folder_ / "blob.incomplete").string(); }
  const std::atomic<bool> never_{false};
  fs::path folder_;
};

std::span<const std::byte> bytes_at(const std::string& content, uint64_t at, uint64_t count) {
  return std::as_bytes(std::span(content)).subspan(at, count);
}

TEST_F(PartialBlobTest, AnyOrderOfPiecesMakesTheContent) {
  EXPECT_TRUE(rc::check("content and hash", [&](const std::string& content) {
    fs::remove(path());
    const auto found = *rc::gen::inRange<size_t>(0, content.size() + 1);
    std::ofstream(path(), std::ios::binary) << content.substr(0, found);
    const auto blob = open(content);
    RC_ASSERT(blob->found() == found);
    std::deque<Piece> pieces;
    const auto piece_bytes = *rc::gen::inRange<uint64_t>(1, 20);
    while (auto piece = blob->cut(piece_bytes)) pieces.push_back(std::move(*piece));
    while (!pieces.empty()) {
      // Some bytes of any piece; the file is a beginning of the content at all times.
      Piece& piece = pieces[*rc::gen::inRange<size_t>(0, pieces.size())];
      const auto count = *rc::gen::inRange<uint64_t>(1, piece.end - piece.at + 1);
      RC_ASSERT(blob->accept(&piece, bytes_at(content, piece.at, count)).has_value());
      if (piece.at == piece.end) {
        RC_ASSERT(blob->close(&piece).has_value());
        std::swap(piece, pieces.back());
        pieces.pop_back();
      }
      RC_ASSERT(read(path()) == content.substr(0, blob->written()));
    }
    RC_ASSERT(blob->is_whole());
    RC_ASSERT(blob->hash() == hash_of(content));
    RC_ASSERT(blob->publish((folder_ / "blob").string()).has_value());
    RC_ASSERT(read(folder_ / "blob") == content && !fs::exists(path()));
  }));
}

TEST_F(PartialBlobTest, SeveralThreadsAtOnce) {
  std::string content(300'000, 'x');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 2654435761u >> 13);
  const auto blob = open(content);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      while (auto piece = blob->cut(1000)) {
        while (piece->at < piece->end)
          ASSERT_TRUE(blob->accept(&*piece, bytes_at(content, piece->at, 100)));
        ASSERT_TRUE(blob->close(&*piece));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(blob->is_whole());
  EXPECT_EQ(blob->num_waiting(), 0u);
  EXPECT_EQ(blob->hash(), hash_of(content));
}

TEST_F(PartialBlobTest, StartingOverDropsOtherPieces) {
  const std::string content = "0123456789";
  const auto blob = open(content);
  Piece first = *blob->cut(4), second = *blob->cut(4);
  ASSERT_TRUE(blob->accept(&second, bytes_at(content, 4, 4)));
  ASSERT_TRUE(blob->accept(&first, bytes_at(content, 0, 2)));
  EXPECT_TRUE(*blob->start_over(&first));
  EXPECT_EQ(first.at, 0u);
  EXPECT_EQ(first.end, content.size());
  EXPECT_FALSE(*blob->start_over(&second));
  EXPECT_FALSE(blob->cut(4));
  ASSERT_TRUE(blob->close(&second));  // of no use, and no harm
  ASSERT_TRUE(blob->accept(&first, bytes_at(content, 0, 10)));
  ASSERT_TRUE(blob->close(&first));
  EXPECT_EQ(blob->hash(), hash_of(content));
  ASSERT_TRUE(blob->reset());
  EXPECT_EQ(blob->written(), 0u);
  EXPECT_TRUE(blob->cut(4));
}

TEST_F(PartialBlobTest, AStopEndsTheReadingOfWhatWasLeft) {
  std::ofstream(path()) << "0123";
  const std::atomic<bool> stop{true};
  EXPECT_FALSE(PartialBlob::open(path(), {.path = "x", .bytes = 9}, stop));
  EXPECT_EQ(read(path()), "0123");
}

TEST_F(PartialBlobTest, AFileThatIsTooLongIsDropped) {
  std::ofstream(path()) << "much longer";
  const auto blob = open("short");
  EXPECT_EQ(blob->written(), 0u);
  EXPECT_EQ(read(path()), "");
}

}  // namespace
}  // namespace moxie::hub
