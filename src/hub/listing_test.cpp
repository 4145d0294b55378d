// Listings and the choice of files.
#include "hub/listing.h"

#include <gtest/gtest.h>

namespace moxie::hub {
namespace {

const std::string kGit(40, 'a'), kSha(64, 'b');

std::vector<RepoFile> files_of(const std::vector<std::string>& paths) {
  std::vector<RepoFile> files;
  for (const std::string& path : paths) files.push_back({.path = path, .etag = kGit, .bytes = 1});
  return files;
}

std::vector<std::string> chosen(const std::vector<std::string>& paths,
                                const std::vector<std::string>& include = {}) {
  const Result<std::vector<RepoFile>> files = choose_files(files_of(paths), include);
  if (!files) return {"fault: " + files.error().message()};
  std::vector<std::string> names;
  for (const RepoFile& file : *files) names.push_back(file.path);
  return names;
}

using Names = std::vector<std::string>;

TEST(HubListing, ReadsFilesOfGitAndOfLfs) {
  std::vector<RepoFile> files;
  const std::string json = R"([{"type":"directory","path":"original","oid":"x"},)"
                           R"({"type":"file","path":"config.json","size":10,"oid":")" +
                           kGit + R"("},{"type":"file","path":"m.safetensors","size":134,"oid":")" +
                           kGit + R"(","lfs":{"oid":"sha256:)" + kSha + R"(","size":5000000000}}])";
  ASSERT_TRUE(parse_tree_page(json, &files));
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].etag, kGit);
  EXPECT_EQ(files[0].hash, HashKind::kGitBlob);
  EXPECT_EQ(files[1].etag, kSha);
  EXPECT_EQ(files[1].hash, HashKind::kSha256);
  EXPECT_EQ(files[1].bytes, 5000000000u);
}

TEST(HubListing, RefusesWhatIsNone) {
  std::vector<RepoFile> files;
  for (const char* json : {"", "{}", "[1]", "[", "null", R"([{"type":"file"}])",
                           R"([{"type":"file","path":"a","size":1,"oid":"../../x"}])",
                           R"([{"type":"file","path":"a","size":1.5,"oid":"aa"}])"})
    EXPECT_FALSE(parse_tree_page(json, &files)) << json;
  EXPECT_TRUE(files.empty());
  EXPECT_FALSE(parse_tree_page(std::string(1 << 20, '['), &files));
  EXPECT_EQ(*parse_commit("{\"sha\":\"" + kGit + "\"}"), kGit);
  for (const char* json :
       {"", "[]", "{}", R"({"sha":1})", R"({"sha":"main"})", R"({"sha":"../x"})"})
    EXPECT_FALSE(parse_commit(json)) << json;
}

TEST(HubChoice, TheTopFolderWithoutCopiesOfTheWeights) {
  EXPECT_EQ(
      chosen({"LICENSE", "README.md", "chat_template.jinja", "config.json", "metal/model.bin",
              "model-1.safetensors", "model.safetensors.index.json", "original/config.json",
              "original/model.safetensors", "tokenizer.json", "tokenizer_config.json", "x.gguf"}),
      (Names{"config.json", "model-1.safetensors", "model.safetensors.index.json", "tokenizer.json",
             "tokenizer_config.json"}));
}

TEST(HubChoice, OriginalWhereThereIsNothingElse) {
  EXPECT_EQ(chosen({"README.md", "original/config.json", "original/model.safetensors"}),
            (Names{"original/config.json", "original/model.safetensors"}));
}

TEST(HubChoice, TheOnlyGgufOrTheOneInMxfp4) {
  EXPECT_EQ(chosen({"README.md", "a.gguf", "mmproj-a.gguf", "imatrix.gguf"}), (Names{"a.gguf"}));
  EXPECT_EQ(chosen({"d/a-00001-of-00002.gguf", "d/a-00002-of-00002.gguf"}),
            (Names{"d/a-00001-of-00002.gguf", "d/a-00002-of-00002.gguf"}));
  EXPECT_EQ(chosen({"a-F16.gguf", "a-mxfp4.gguf", "a-Q8_0.gguf"}), (Names{"a-mxfp4.gguf"}));
  EXPECT_NE(chosen({"a-F16.gguf", "a-Q8_0.gguf"}).front().find("--include"), std::string::npos);
  EXPECT_NE(chosen({"README.md"}).front().find("no safetensors"), std::string::npos);
}

TEST(HubChoice, IncludeDecidesAlone) {
  EXPECT_EQ(
      chosen({"a.gguf", "config.json", "original/model.safetensors"}, {"original/", "*.gguf"}),
      (Names{"a.gguf", "original/model.safetensors"}));
  EXPECT_NE(chosen({"a"}, {"b"}).front().find("no file matches"), std::string::npos);
}

TEST(HubChoice, HostileNamesAreRefusedOnlyWhereChosen) {
  EXPECT_NE(chosen({"config.json", "m.safetensors", "tokenizer\n.json"}).front().find("control"),
            std::string::npos);
  EXPECT_EQ(chosen({"../x.png", "m.safetensors"}), (Names{"m.safetensors"}));
  EXPECT_NE(chosen({"m.safetensors", "m.safetensors"}).front().find("twice"), std::string::npos);
}

TEST(HubErrors, TheStoresFaultsAreNotTheHubs) {
  const Settings settings{.endpoint = "https://hub.example"};
  Answer answer{.status = 403, .url = "https://store.example/x?signature=secret"};
  const std::string text = status_error(answer, settings, "a/b").message();
  EXPECT_NE(text.find("store"), std::string::npos);
  EXPECT_EQ(text.find("secret"), std::string::npos);
  answer.url = "https://hub.example/a/b/resolve/x";
  EXPECT_NE(status_error(answer, settings, "a/b").message().find("private"), std::string::npos);
}

}  // namespace
}  // namespace moxie::hub
