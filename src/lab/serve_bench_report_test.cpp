#include "lab/serve_bench_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

namespace moxie {
namespace {

// `count` blocks of one request each, whose times grow by a twentieth a block and are `ratio` times
// those of a base of 1 s to the first content and 2 s in all.
ServeFigures drifting(size_t count, double ratio) {
  ServeFigures figures;
  for (size_t i = 0; i < count; ++i) {
    const double s = ratio * (1 + 0.05 * static_cast<double>(i));
    const StreamResult result{.start_s = 0,
                              .first_response_s = 0.1 * s,
                              .content_s = {s, 1.5 * s, 2 * s},
                              .end_s = 2 * s,
                              .usage = {.num_prompt = 100, .num_completion = 3, .num_cached = 10}};
    figures.block_begins.push_back(i);
    figures.block_tok_s.push_back(3 / (2 * s));
    figures.requests.push_back(figures_of(result, 100, 0, 0));
    figures.busy_s += 2 * s;
  }
  return figures;
}

ServeRun run_of(std::vector<ServeFigures> figures) {
  ServeRun run;
  for (size_t i = 0; i < figures.size(); ++i)
    run.endpoints.push_back({.url = "http://" + std::string(1, static_cast<char>('a' + i))});
  run.cells.push_back({.test = {.n_prompt = 100, .n_gen = 3, .concurrency = 1},
                       .outcome = {.figures = std::move(figures), .wall_s = 1}});
  return run;
}

std::set<std::string> verdicts_of(const ServeRun& run) {
  std::set<std::string> found;
  const auto json = to_json(run);
  for (const auto& one : json["verdicts"]) found.insert(one["verdict"].get<std::string>());
  return found;
}

TEST(ServeReport, CallsADifferenceThroughADriftAndNoneWhereNoneIs) {
  EXPECT_EQ(verdicts_of(run_of({drifting(16, 1), drifting(16, 1.2)})),
            std::set<std::string>{"slower"});
  EXPECT_EQ(verdicts_of(run_of({drifting(16, 1), drifting(16, 0.8)})),
            std::set<std::string>{"faster"});
  EXPECT_EQ(verdicts_of(run_of({drifting(16, 1), drifting(16, 1)})), std::set<std::string>{"same"});
  EXPECT_EQ(verdicts_of(run_of({drifting(4, 1), drifting(4, 1.2)})),
            std::set<std::string>{"unclear"});
}

TEST(ServeReport, ABlockWithoutSamplesLeavesItsPairOut) {
  ServeFigures second = drifting(16, 1.2);
  second.requests.erase(second.requests.begin());  // the first block failed
  for (size_t i = 1; i < 16; ++i) --second.block_begins[i];
  const auto json = to_json(run_of({drifting(16, 1), second}));
  ASSERT_FALSE(json["verdicts"].empty());
  for (const auto& one : json["verdicts"]) {
    if (one["figure"] == "output") continue;
    EXPECT_EQ(one["pairs"], 15) << one["figure"];
  }
}

TEST(ServeReport, SeriesHaveEachNameOnceAndKnowWhatIsBetter) {
  std::set<std::string> names;
  for (const Series& one : series_of(run_of({drifting(2, 1), drifting(2, 1)}))) {
    EXPECT_TRUE(names.insert(one.name).second) << one.name;
    EXPECT_EQ(one.better == Better::kLower, one.unit == "ms") << one.name;
    EXPECT_FALSE(one.samples.empty());
  }
  EXPECT_EQ(names.count("pp100 tg3 c1 ttft"), 1U);
  EXPECT_EQ(names.count("pp100 tg3 c1 ttft #2"), 1U);
}

TEST(ServeReport, NotesTellWhatFiguresHide) {
  ServeRun run = run_of({drifting(2, 1)});
  run.cells[0].test.n_gen = 4;
  run.cells[0].outcome.client_cpu_s = 0.9;
  run.cells[0].outcome.figures[0].num_disagreements = 1;
  std::string all;
  for (const std::string& note : notes_of(run)) all += note + "\n";
  for (const char* words :
       {"20 of 200 prompt tokens came from the prefix cache", "role of an answer",
        "1 prompts have another length", "2 answers are shorter than 4", "90% of a core"})
    EXPECT_NE(all.find(words), std::string::npos) << words << " in " << all;
  EXPECT_EQ(all.find("tokens came in"), std::string::npos);  // three events for three tokens
}

TEST(ServeReport, ARateAtSeveralEndpointsComesWithANote) {
  const auto tells = [](const ServeRun& run) {
    for (const std::string& note : notes_of(run))
      if (note.find("take turns in blocks") != std::string::npos) return true;
    return false;
  };
  ServeRun one = run_of({drifting(2, 1)}), two = run_of({drifting(2, 1), drifting(2, 1)});
  EXPECT_FALSE(tells(two)) << "by streams";
  for (ServeRun* run : {&one, &two}) run->cells[0].test = {.concurrency = 0, .rate = 2};
  EXPECT_FALSE(tells(one));
  EXPECT_TRUE(tells(two));
}

TEST(ServeReport, ContextsSentBeforeMakeAnotherWorkload) {
  ServeRun run = run_of({drifting(2, 1)});
  EXPECT_FALSE(series_of(run).front().workload->prefix_cache);
  run.keeps_prefix_cache = true;
  EXPECT_TRUE(series_of(run).front().workload->prefix_cache);
}

TEST(ServeReport, DetailsHaveNoSamples) {
  const auto details = details_of(run_of({drifting(2, 1)}));
  EXPECT_EQ(details.dump().find("samples"), std::string::npos);
  EXPECT_EQ(details["tests"][0]["ttft_ms"]["count"], 2);
}

TEST(ServeReport, ErrorsAreListedByKind) {
  ServeRun run = run_of({drifting(1, 1)});
  run.cells[0].outcome.figures[0].errors = {{"closed", 2}};
  run.cells[0].outcome.figures[0].first_message = {{"closed", "it broke"}};
  EXPECT_EQ(errors_of(run), "pp100 tg3 c1 at http://a: 2 x closed: it broke\n");
  EXPECT_EQ(run.num_errors(), 2);
}

}  // namespace
}  // namespace moxie
