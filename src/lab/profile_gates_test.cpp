// The decision gates on made-up phases: bars, and what each says to do next.
#include <gtest/gtest.h>

#include "kernels/attend/attend.h"
#include "kernels/experts/experts.h"
#include "lab/profile.h"

namespace moxie {
namespace {

PhaseProfile phase_of(BenchTest test) {
  PhaseProfile phase{.test = test};
  for (int c = 0; c < kNumCategories; ++c) {
    phase.categories.push_back({{.name = category_name(static_cast<Category>(c))}});
  }
  return phase;
}
LimitedPart& of(PhaseProfile& phase, Category c) {
  return phase.categories[static_cast<size_t>(c)];
}
const Gate& gate(const std::vector<Gate>& gates, const std::string& name) {
  for (const Gate& one : gates) {
    if (one.name == name) return one;
  }
  ADD_FAILURE() << "no gate " << name;
  return gates.front();
}

TEST(Gates, AShareAtTheBarPassesAndOneAboveDoesNot) {
  PhaseProfile phase = phase_of({.n_gen = 8});
  of(phase, Category::kExperts).share_of_time = 0.5;
  of(phase, Category::kAttention).share_of_time = 0.4;
  of(phase, Category::kGap).share_of_time = 0.1;
  for (const Gate& one : gates_of(phase, true)) {
    EXPECT_TRUE(one.passed()) << one.name;
    EXPECT_EQ(one.next, "") << one.name;
  }
  of(phase, Category::kExperts).share_of_time = 0.51;
  of(phase, Category::kAttention).share_of_time = 0.41;
  of(phase, Category::kGap).share_of_time = 0.11;
  phase.kernels = {{{.name = "stage_float_rows<4>", .share_of_time = 0.07}, "", {"qkv"}},
                   {{.name = "attend_split", .share_of_time = 0.5}, "", {"attend"}},
                   {{.name = "stage_slot_rows", .share_of_time = 0.04}, "", {"experts"}}};
  for (const Gate& one : gates_of(phase, true)) {
    EXPECT_FALSE(one.passed()) << one.name;
    EXPECT_NE(one.next, "") << one.name;
  }
  EXPECT_NEAR(*gate(gates_of(phase, true), "quantisation").share, 0.11, 1e-12);
  EXPECT_NE(
      gate(gates_of(phase, true), "quantisation").next.find("stage_float_rows<4> of step qkv"),
      std::string::npos);
}

TEST(Gates, WhereRowsAreTimedAsAWholeQuantisationIsNotPassed) {
  const std::vector<Gate> gates = gates_of(phase_of({.n_prompt = 8}), false);
  EXPECT_FALSE(gate(gates, "quantisation").share.has_value());
  EXPECT_FALSE(gate(gates, "quantisation").passed());
  EXPECT_FALSE(gate(gates, "quantisation").is_over());
  EXPECT_NE(gate(gates, "quantisation").next, "");
}

TEST(Gates, WhatIsNextNamesTheRowAndDependsOnItsLimitAndPhase) {
  PhaseProfile phase = phase_of({.n_gen = 8, .streams = 4});
  phase.rows = {{&Op<ExpertsParams>::info, "experts_row", 9},
                {&Op<AttendParams>::info, "attend_row", 9}};
  for (const Category c : {Category::kExperts, Category::kAttention}) {
    of(phase, c).share_of_time = 0.6;
    of(phase, c).share_of_limit = 0.541;
  }
  const auto next = [&](const char* name) { return gate(gates_of(phase, true), name).next; };
  const auto expect_word = [&](const char* name, const char* word) {
    EXPECT_NE(next(name).find(word), std::string::npos) << word << " in: " << next(name);
  };
  expect_word("experts", "experts_row at 54.1% of its limit");
  expect_word("experts", "moxie kernels --plan -n 4");
  expect_word("experts", "--kernel experts=NAME");
  expect_word("attention", "attend_row at 54.1% of its limit");
  of(phase, Category::kExperts).share_of_limit = 0.9;
  of(phase, Category::kAttention).share_of_limit = 0.9;
  expect_word("experts", "--spec ngram");
  expect_word("attention", "--kv-dtype fp8_e4m3");
  phase.test = {.n_prompt = 64};
  expect_word("experts", "--activation int8");
  expect_word("attention", "--prefix-caching");
  phase.limits.gpu = "a card";
  expect_word("experts", "--activation mxfp8");
  of(phase, Category::kGap).share_of_time = 0.3;
  expect_word("gaps", "--chunk");
  phase.test = {.n_gen = 64};
  expect_word("gaps", "--graphs on");
  phase.by_drafts = {{.name = "draft"}};
  expect_word("gaps", "docs/speculation.md");
}

}  // namespace
}  // namespace moxie
