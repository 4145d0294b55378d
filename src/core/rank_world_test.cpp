// The variables of launchers.
#include "core/rank_world.h"

#include <gtest/gtest.h>

#include <map>

namespace moxie {
namespace {

using Environment = std::map<std::string, std::string>;

Result<std::optional<RankWorld>> world_of(const Environment& environment) {
  return rank_world([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}
std::string error_of(const Environment& environment) {
  const auto world = world_of(environment);
  return world ? std::string() : world.error().message();
}

TEST(RankWorld, NothingWithoutALauncherOrWithOneProcess) {
  for (const Environment& environment : {Environment{},
                                         {{"WORLD_SIZE", "4"}},
                                         {{"RANK", "0"}},
                                         {{"RANK", "0"}, {"WORLD_SIZE", "1"}}}) {
    const auto world = world_of(environment);
    ASSERT_TRUE(world.has_value());
    EXPECT_FALSE(world->has_value());
  }
}

TEST(RankWorld, AsTorchrunAndMpirunSetIt) {
  auto world = world_of({{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "node-0"},
                         {"MASTER_PORT", "1234"}});
  ASSERT_TRUE(world && *world);
  EXPECT_EQ((*world)->rank, 3);
  EXPECT_EQ((*world)->size, 4);
  EXPECT_EQ((*world)->local_rank, 1);
  EXPECT_EQ((*world)->local_size, 2);
  EXPECT_EQ((*world)->master_host, "node-0");
  EXPECT_EQ((*world)->master_port, 1234);
  for (const auto& [rank, size, local_rank, local_size] :
       {std::array{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                   "OMPI_COMM_WORLD_LOCAL_SIZE"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}}) {
    Environment all{{rank, "1"}, {size, "2"}, {local_rank, "1"}, {local_size, "2"}};
    world = world_of(all);
    ASSERT_TRUE(world && *world) << rank;
    EXPECT_EQ((*world)->rank, 1);
    EXPECT_EQ((*world)->master_host, "127.0.0.1") << "all are on this host";
    EXPECT_EQ((*world)->master_port, 29500);
    all[local_size] = "1", all[local_rank] = "0";
    EXPECT_NE(error_of(all).find("MASTER_ADDR"), std::string::npos) << "they are not";
  }
}

TEST(RankWorld, WhatMakesNoSenseIsNamed) {
  const Environment sound{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}};
  EXPECT_EQ(error_of(sound), "");
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"RANK", "2"},
                                                                  {"RANK", "-1"},
                                                                  {"RANK", "1x"},
                                                                  {"RANK", ""},
                                                                  {"WORLD_SIZE", "0"},
                                                                  {"WORLD_SIZE", "65"},
                                                                  {"WORLD_SIZE", "two"},
                                                                  {"MASTER_PORT", "65536"},
                                                                  {"MASTER_PORT", "0"}}) {
    Environment broken = sound;
    broken[name] = value;
    EXPECT_NE(error_of(broken).find(name), std::string::npos) << name << "=" << value;
  }
}

}  // namespace
}  // namespace moxie
