// The cache's folder as the environment names it.
#include "core/hub_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>

namespace moxie {
namespace {

class HubCacheFolder : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) {
      const char* value = std::getenv(name);
      if (value != nullptr) before_[name] = value;
      ::unsetenv(name);
    }
    set("HOME", "/home/u");
  }
  void TearDown() override {
    for (const char* name : kNames) {
      ::unsetenv(name);
      if (before_.contains(name)) set(name, before_[name]);
    }
  }
  static void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }
  static constexpr const char* kNames[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME",
                                           "XDG_CACHE_HOME", "HOME"};
  std::map<std::string, std::string> before_;
};

TEST_F(HubCacheFolder, TheFirstVariableThatIsSetNamesIt) {
  EXPECT_EQ(hub_cache(), "/home/u/.cache/huggingface/hub");
  set("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(hub_cache(), "/xdg/huggingface/hub");
  set("HF_HOME", "~/hf");
  EXPECT_EQ(hub_home(), "/home/u/hf");
  EXPECT_EQ(hub_cache(), "/home/u/hf/hub");
  set("HUGGINGFACE_HUB_CACHE", "/old");
  EXPECT_EQ(hub_cache(), "/old");
  set("HF_HUB_CACHE", "${HOME}/new");
  EXPECT_EQ(hub_cache(), "/home/u/new");
  EXPECT_EQ(hub_caches(),
            (std::vector<std::string>{"/home/u/new", "/old", "/home/u/hf/hub",
                                      "/xdg/huggingface/hub", "/home/u/.cache/huggingface/hub"}));
}

TEST_F(HubCacheFolder, NothingSaysWhere) {
  ::unsetenv("HOME");
  EXPECT_EQ(hub_cache(), "");
  EXPECT_TRUE(hub_caches().empty());
}

TEST_F(HubCacheFolder, PathsExpandAsPythonsDo) {
  EXPECT_EQ(expand_path("~"), "/home/u");
  EXPECT_EQ(expand_path("~other/x"), "~other/x");
  EXPECT_EQ(expand_path("/a/$HOME/${HOME}b"), "/a//home/u//home/ub");
  EXPECT_EQ(expand_path("$HF_HOME/${HF_HOME}/$/${/${HOME"), "$HF_HOME/${HF_HOME}/$/${/${HOME");
}

TEST(HubRepoFolder, JoinsTheParts) {
  EXPECT_EQ(hub_repo_folder("openai/gpt-oss-20b"), "models--openai--gpt-oss-20b");
  EXPECT_EQ(hub_repo_folder("gpt2"), "models--gpt2");
}

}  // namespace
}  // namespace moxie
