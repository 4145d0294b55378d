// When drafts that are hardly ever accepted are warned of, and when not.
#include "engine/acceptance_watch.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/testing/scheduler_drive.h"

namespace moxie {
namespace {

constexpr int kFew = 29;  // of 200: below 0.15

std::vector<std::string> said_after(const std::vector<std::pair<int, int>>& accepted_of) {
  std::vector<std::string> said;
  AcceptanceWatch watch("eagle3", "it reads boundaries 2, 5, 7",
                        [&said](std::string_view text) { said.emplace_back(text); });
  for (const auto& [accepted, launches] : accepted_of) {
    for (int i = 0; i < launches; ++i) watch.add(i < accepted);
  }
  return said;
}

TEST(AcceptanceWatchTest, SaysOnceThatDraftsAreHardlyAccepted) {
  const auto said = said_after({{kFew, 200}, {0, 1000}});
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said.front(),
            "eagle3: the first draft was accepted in only 29 of 200 launches: it reads boundaries "
            "2, 5, 7");
  EXPECT_EQ(said_after({{200, 200}, {0, 200}}).size(), 1u);  // it may begin later
}

TEST(AcceptanceWatchTest, SaysNothingOfFewLaunchesNorOfDraftsThatAreAccepted) {
  EXPECT_TRUE(said_after({{0, 199}}).empty());
  EXPECT_TRUE(said_after({{kFew + 1, 200}, {kFew + 1, 200}, {kFew + 1, 200}}).empty());
}

// Told by the scheduler: drafts that are always wrong are seen, right ones are not.
TEST(AcceptanceWatchTest, IsToldOfLaunchesWithDrafts) {
  for (const auto manner : {StandInDrafter::Manner::kWrong, StandInDrafter::Manner::kRight}) {
    std::vector<std::string> said;
    AcceptanceWatch watch("dflash", "advice",
                          [&said](std::string_view text) { said.emplace_back(text); });
    // One draft a launch, so that a wrong one is wrong at the first place.
    Drive drive({.max_num_seqs = 2, .max_drafts = 1, .manner = manner, .watch = &watch});
    for (int i = 0; i < 10; ++i) drive.add(request_for({1, 2, i}, 60));
    drive.run_out();
    EXPECT_EQ(said.size(), manner == StandInDrafter::Manner::kWrong ? 1u : 0u);
  }
}

}  // namespace
}  // namespace moxie
