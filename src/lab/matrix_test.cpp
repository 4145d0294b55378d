// The matrix against a made-up `moxie`: the product, verdicts, orthogonality, resuming, and the
// documents that a matrix becomes.
#include "lab/matrix.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "lab/matrix_output.h"
#include "lab/matrix_probes.h"
#include "lab/testing/xml_check.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(MatrixSwitch, ReadsNamesAndValues) {
  const auto one = parse_matrix_switch("kv-dtype=bf16,f32");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->name, "--kv-dtype");
  EXPECT_EQ(one->values, (std::vector<std::string>{"bf16", "f32"}));
  const auto lists = parse_matrix_switch("--mxfp4-layers=moe;qkv,o;all");
  ASSERT_TRUE(lists.has_value());
  EXPECT_EQ(lists->values, (std::vector<std::string>{"moe", "qkv,o", "all"}));
  EXPECT_EQ(parse_matrix_switch("a=qkv,o;")->values, (std::vector<std::string>{"qkv,o"}));
  EXPECT_EQ(parse_matrix_switch("--kernel=qkv=reference")->values[0], "qkv=reference");
  for (const char* text : {"", "kv-dtype", "=a", "a=", "a=b,,c", "a=b,b", "--=a"}) {
    const auto wrong = parse_matrix_switch(text);
    ASSERT_FALSE(wrong.has_value()) << text;
    EXPECT_TRUE(has(wrong.error().message(), "--switch")) << wrong.error().message();
  }
}

TEST(MatrixCells, AreTheProductWithTheLastSwitchFastest) {
  const std::vector<MatrixSwitch> switches = {{"--a", {"1", "2"}, "1"},
                                              {"--b", {"x", "y", "z"}, "x"}};
  const auto cells = matrix_cells(switches);
  ASSERT_EQ(cells.size(), 6u);
  EXPECT_EQ(cells[0].key(), "--a=1 --b=x");
  EXPECT_EQ(cells[1].key(), "--a=1 --b=y");
  EXPECT_EQ(cells[5].key(), "--a=2 --b=z");
  EXPECT_EQ(cells[5].file_name(), "a_2.b_z.json");
  EXPECT_EQ((MatrixCell{{{"--a", "../x y"}}}).file_name(), "a_..+x+y.json");
}

std::string setting(const std::vector<std::string>& arguments, const std::string& name,
                    const std::string& preset) {
  for (const std::string& one : arguments) {
    if (one.starts_with(name + "=")) return one.substr(name.size() + 1);
  }
  return preset;
}

// A `moxie` with switches --kv-dtype (f32 is refused) and --spec. Its faults are asked for by the
// members.
struct FakeMoxie {
  std::vector<std::vector<std::string>> calls;
  bool default_changes_logits = false, spec_changes_rows = false, default_changes_plan = false;
  std::string crashes_with, invalid_with, fails_with;  // a setting "--spec=ngram"

  ProcessResult operator()(const std::vector<std::string>& arguments) {
    calls.push_back(arguments);
    const std::string kv = setting(arguments, "--kv-dtype", "auto");
    const std::string spec = setting(arguments, "--spec", "off");
    const auto given = [&](const std::string& one) {
      return std::find(arguments.begin(), arguments.end(), one) != arguments.end();
    };
    if (kv == "f32") {
      return {.exit_code = 1, .err = "info\nmoxie: error: no row takes f32 here\n"};
    }
    if (arguments[0] == "kernels") {
      const bool is_other = spec_changes_rows && spec == "ngram";
      const bool is_moved = default_changes_plan && given("--kv-dtype=auto");
      return {.exit_code = 0, .out = plan(kv, is_other || is_moved ? "out_b" : "out_a")};
    }
    if (arguments[0] == "score") {
      std::ofstream(setting(arguments, "--logits", ""))
          << kv << (default_changes_logits && given("--kv-dtype=auto") ? "!" : "");
      return {.exit_code = 0, .out = "{}"};
    }
    if (arguments[0] == "run") {
      return {.exit_code = 0, .out = R"({"content":"42","reasoning":"","kernels":{}})"};
    }
    return validated(arguments, given);
  }

  static std::string plan(const std::string& kv, const std::string& out) {
    Json rows = {{{"name", "qkv_" + kv}, {"covers", {"qkv"}}, {"predicted_us", 1}},
                 {{"name", out}, {"covers", {"out", "route"}}, {"attention", "window"}}};
    return Json{{"plans", {{{"tokens", 1}, {"rows", rows}}}}}.dump();
  }
  template <typename Given>
  ProcessResult validated(const std::vector<std::string>& arguments, const Given& given) {
    EXPECT_EQ(arguments[0], "validate");
    if (given(crashes_with)) return {.exit_code = 139, .err = "level 1\n"};
    Json levels = {{{"level", 1}, {"passed", true}, {"checks", Json::array()}}};
    const bool fails = given(fails_with), is_invalid = given(invalid_with);
    levels.push_back(
        {{"level", 1.5},
         {"passed", !fails && !is_invalid},
         {"checks",
          {{{"name", "row of qkv"},
            {"passed", !fails && !is_invalid},
            {"value", "other"},
            {"bar", "as planned"}}}},
         {"figures",
          {{{"name", "tg32"}, {"unit", "tok/s"}, {"better", "higher"}, {"samples", {1.5, 2.5}}},
           {{"name", "ttft"}, {"unit", "ms"}, {"better", "lower"}, {"samples", {9, 8}}}}}});
    Json document = {
        {"valid", !fails && !is_invalid}, {"levels", levels}, {"invalid_because", Json::array()}};
    if (is_invalid) document["invalid_because"].push_back("another row ran");
    return {.exit_code = fails || is_invalid ? 1 : 0, .out = document.dump()};
  }
};

class MatrixTest : public testing::Test {
 protected:
  MatrixOptions options() {
    return {.switches = {{"--kv-dtype", {"auto", "bf16", "f32"}, "auto"},
                         {"--spec", {"off", "ngram"}, "off"}},
            .common = {"--model=m"},
            .level = "1.5",
            .scratch_path = testing::TempDir() + "matrix_test.safetensors",
            .moxie = [this](const auto& arguments) { return fake_(arguments); },
            .has_switch =
                [](const std::string& command, const std::string& name) {
                  return name != "--spec" || command != "kernels";
                }};
  }
  std::vector<CellResult> run() {
    auto results = run_matrix(options());
    EXPECT_TRUE(results.has_value());
    return results ? *results : std::vector<CellResult>{};
  }
  FakeMoxie fake_;
};

TEST_F(MatrixTest, EveryCellIsValidatedAndOneThatIsRefusedIsNeitherPassedNorFailed) {
  const auto results = run();
  ASSERT_EQ(results.size(), 6u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(results[i].verdict, CellVerdict::kPassed) << results[i].why;
    EXPECT_EQ(results[i].why, "");
    ASSERT_EQ(results[i].levels.size(), 2u);
    EXPECT_EQ(results[i].levels[1].level, "1.5");
    ASSERT_EQ(results[i].figures.size(), 2u);
    EXPECT_EQ(results[i].figures[0].samples, (std::vector<double>{1.5, 2.5}));
    EXPECT_EQ(results[i].figures[0].better, Better::kHigher);
    EXPECT_EQ(results[i].figures[1].better, Better::kLower);
    ASSERT_EQ(results[i].orthogonality.size(), 4u);
    for (const CellCheck& check : results[i].orthogonality)
      EXPECT_NE(check.passed, std::optional(false)) << check.name << check.value;
  }
  for (size_t i = 4; i < 6; ++i) {
    EXPECT_EQ(results[i].verdict, CellVerdict::kCannotRun);
    EXPECT_EQ(results[i].why, "no row takes f32 here");
    EXPECT_TRUE(results[i].levels.empty());
  }
  // The cell whose switches all differ from their defaults has nothing to leave out.
  EXPECT_EQ(results[0].orthogonality[1].passed, std::optional(true));
  EXPECT_EQ(results[3].cell.key(), "--kv-dtype=bf16 --spec=ngram");
  EXPECT_FALSE(results[3].orthogonality[1].passed.has_value());
  const auto is_validation = [](const auto& call) { return call[0] == "validate"; };
  EXPECT_EQ(std::count_if(fake_.calls.begin(), fake_.calls.end(), is_validation), 4);
  for (const auto& call : fake_.calls)
    EXPECT_TRUE(std::find(call.begin(), call.end(), "--model=m") != call.end());
}

TEST_F(MatrixTest, ADefaultThatChangesBitsOrThePlanIsAFailure) {
  fake_.default_changes_logits = true;
  auto results = run();
  EXPECT_EQ(results[0].verdict, CellVerdict::kFailed);
  EXPECT_TRUE(has(results[0].why, "bits of logits: different")) << results[0].why;
  EXPECT_TRUE(has(results[0].why, "--kv-dtype"));
  EXPECT_EQ(results[2].verdict, CellVerdict::kPassed) << "bf16 is not the default";
  fake_.default_changes_logits = false;
  fake_.default_changes_plan = true;
  results = run();
  EXPECT_EQ(results[0].verdict, CellVerdict::kFailed);
  EXPECT_TRUE(has(results[0].why, "plan: different")) << results[0].why;
}

TEST_F(MatrixTest, ASwitchThatChangesRowsOfOtherStepsIsAFailure) {
  fake_.spec_changes_rows = true;
  auto with_spec = options();
  with_spec.has_switch = [](const std::string&, const std::string&) { return true; };
  const auto results = run_matrix(with_spec);
  ASSERT_TRUE(results.has_value());
  EXPECT_EQ((*results)[0].verdict, CellVerdict::kPassed);
  EXPECT_EQ((*results)[1].verdict, CellVerdict::kFailed);
  EXPECT_TRUE(has((*results)[1].why, "out_b instead of out_a")) << (*results)[1].why;
}

TEST_F(MatrixTest, CrashesFailuresAndInvalidKernelsEndOnlyTheirCells) {
  fake_.crashes_with = "--spec=ngram";
  fake_.invalid_with = "--kv-dtype=bf16";
  auto results = run();
  ASSERT_EQ(results.size(), 6u);
  EXPECT_EQ(results[0].verdict, CellVerdict::kPassed);
  EXPECT_EQ(results[1].verdict, CellVerdict::kCrashed);
  EXPECT_EQ(results[1].why, "ended by signal 11: level 1");
  EXPECT_EQ(results[2].verdict, CellVerdict::kInvalid);
  EXPECT_EQ(results[2].why, "another row ran");
  fake_.fails_with = "--kv-dtype=auto";
  results = run();
  EXPECT_EQ(results[0].verdict, CellVerdict::kFailed);
  EXPECT_EQ(results[0].why, "level 1.5: row of qkv: other (bar: as planned)");
}

TEST_F(MatrixTest, CellsThatAreDoneAreNotRunAgain) {
  auto again = options();
  again.done = run();
  again.done.erase(again.done.begin() + 2);
  again.done[0].why = "as it was read";
  fake_.calls.clear();
  size_t num_told = 0;
  again.on_result = [&](const std::vector<CellResult>& results) {
    ++num_told;
    EXPECT_EQ(results.size(), 3u);
    return Status{};
  };
  const auto results = run_matrix(again);
  ASSERT_TRUE(results.has_value());
  EXPECT_EQ((*results)[0].why, "as it was read");
  EXPECT_EQ(num_told, 1u);
  for (const auto& call : fake_.calls) {
    EXPECT_TRUE(std::find(call.begin(), call.end(), "--spec=ngram") == call.end());
  }
}

TEST_F(MatrixTest, WithoutABaselineThereIsNoMatrix) {
  auto broken = options();
  broken.moxie = [](const auto&) {
    return ProcessResult{.exit_code = 1, .err = "moxie: error: m: no such model\n"};
  };
  const auto results = run_matrix(broken);
  ASSERT_FALSE(results.has_value());
  EXPECT_TRUE(has(results.error().message(), "no such model")) << results.error().message();
}

TEST(ReadValidation, OfBrokenDocumentsIsAFailureWithAReason) {
  for (const char* out : {"", "{", "[]", "{\"levels\":3}", "{\"levels\":[3,{}],\"valid\":1}",
                          "{\"levels\":[],\"valid\":true,\"invalid_because\":[3]}"}) {
    CellResult result;
    read_validation({.exit_code = 1, .out = out, .err = "moxie: error: bad\n"}, &result);
    EXPECT_TRUE(result.verdict == CellVerdict::kFailed || result.verdict == CellVerdict::kInvalid)
        << out;
    EXPECT_NE(result.why, "") << out;
  }
  CellResult usage;
  read_validation({.exit_code = 2, .err = "moxie: --spec eagle3 needs --spec-model\n"}, &usage);
  EXPECT_EQ(usage.verdict, CellVerdict::kCannotRun);
  EXPECT_EQ(usage.why, "--spec eagle3 needs --spec-model");
}

TEST(StepsOfSwitch, DenseLayersNameTheirSteps) {
  using Steps = std::set<std::string>;
  EXPECT_EQ(steps_of_switch("--mxfp4-layers", "moe"), Steps{});
  EXPECT_EQ(steps_of_switch("--mxfp4-layers", "qkv,o"), (Steps{"qkv", "out"}));
  EXPECT_EQ(steps_of_switch("--mxfp4-layers", "lm_head"), Steps{"unembed"});
  EXPECT_EQ(steps_of_switch("--kernel", "experts=gemv"), Steps{"experts"});
  EXPECT_FALSE(steps_of_switch("--something", "on").has_value());
}

TEST(ProbedPlan, RowsThatCoverATouchedStepMayChange) {
  const auto plan = [](const char* route, const char* covers) {
    return *parse_probed_plan(fmt::format(
        R"({{"plans":[{{"tokens":8,"rows":[{{"name":"{}","covers":{}}}]}}]}})", route, covers));
  };
  const ProbedPlan before = plan("route_a", R"(["route"])");
  EXPECT_TRUE(rows_changed_elsewhere(before, before, {}).empty());
  EXPECT_EQ(rows_changed_elsewhere(before, plan("route_b", R"(["route"])"), {"experts"}).size(),
            1u);
  EXPECT_TRUE(
      rows_changed_elsewhere(before, plan("both", R"(["route","experts"])"), {"experts"}).empty());
  EXPECT_EQ(rows_changed_elsewhere(before, plan("out_a", R"(["out"])"), {"experts"}).size(), 1u);
  for (const char* broken : {"", "{}", R"({"plans":[]})", R"({"plans":[{"tokens":1}]})",
                             R"({"plans":[{"tokens":1,"rows":[{"name":"a"}]}]})"}) {
    EXPECT_FALSE(parse_probed_plan(broken).has_value()) << broken;
  }
}

Matrix sample_matrix() {
  Matrix matrix{.key = {.commit = "0123456789abcdef",
                        .device = "a | CPU",
                        .model = "<model>",
                        .level = "4",
                        .common = {"--threads=2"}},
                .switches = {{"--a", {"1", "2"}, "1"}, {"--b", {"x", "y"}, "x"}}};
  for (const MatrixCell& cell : matrix_cells(matrix.switches)) {
    matrix.cells.push_back(
        {.cell = cell,
         .verdict = CellVerdict::kPassed,
         .levels = {{"1", true, ""}, {"1.5", true, ""}},
         .orthogonality = {{"plan", true, "the same"}, {"logits", {}, "why not"}},
         .figures = {{"tg32", "tok/s", {12.25, 12.5}}, {"ttft", "ms", {9, 8}, Better::kLower}},
         .seconds = 3.25});
  }
  matrix.cells[1].verdict = CellVerdict::kCannotRun;
  matrix.cells[1].why = "no <row> | here";
  matrix.num_cells = 4;
  return matrix;
}

TEST(MatrixJson, ReadsWhatItWrites) {
  const Matrix matrix = sample_matrix();
  const Json json = to_json(matrix);
  EXPECT_EQ(json["complete"], true);
  EXPECT_EQ(json["passed"], true);
  EXPECT_EQ(json["counts"]["cannot run"], 1);
  const auto read = parse_matrix(nlohmann::json::parse(json.dump()), "here");
  ASSERT_TRUE(read.has_value()) << read.error().message();
  EXPECT_EQ(read->key, matrix.key);
  EXPECT_EQ(to_json(*read).dump(), json.dump());
}

TEST(MatrixJson, AChangedFieldIsAFaultThatNamesTheFile) {
  const Json json = to_json(sample_matrix());
  const auto expect_fault = [](const Json& broken, const std::string& what) {
    const auto read = parse_matrix(nlohmann::json::parse(broken.dump()), "some.json");
    ASSERT_FALSE(read.has_value()) << what;
    EXPECT_TRUE(has(read.error().message(), "some.json")) << read.error().message();
  };
  expect_fault(Json(), "null");
  for (const char* key : {"key", "switches", "cells", "num_cells"}) {
    Json broken = json;
    broken.erase(key);
    expect_fault(broken, std::string("without ") + key);
    broken[key] = "text";
    expect_fault(broken, std::string("text as ") + key);
  }
  for (const auto& [key, value] : json["cells"][0].items()) {
    Json broken = json;
    broken["cells"][0][key] = Json::array({Json(true)});
    expect_fault(broken, "true in a list as " + key);
  }
  Json fewer = json;
  fewer["num_cells"] = 3;
  expect_fault(fewer, "fewer cells than there are");
}

TEST(Matrix, PassesOnlyIfEveryCellRanAndNoneFailed) {
  Matrix matrix = sample_matrix();
  EXPECT_TRUE(matrix.passed());
  matrix.num_cells = 5;
  EXPECT_FALSE(matrix.passed()) << "one is missing";
  matrix = sample_matrix();
  for (const CellVerdict bad :
       {CellVerdict::kFailed, CellVerdict::kInvalid, CellVerdict::kCrashed}) {
    matrix.cells[0].verdict = bad;
    EXPECT_FALSE(matrix.passed()) << verdict_name(bad);
  }
  for (CellResult& cell : matrix.cells) cell.verdict = CellVerdict::kCannotRun;
  EXPECT_FALSE(matrix.passed()) << "nothing ran";
}

TEST(MatrixMarkdown, IsStaleOnceSwitchesOrCellsAreOthers) {
  const Matrix matrix = sample_matrix();
  std::vector<MatrixSwitch> known = {
      {"--a", {"1", "2", "3"}, "1"}, {"--b", {"x", "y"}, "x"}, {"--c", {"on", "off"}, ""}};
  const std::string text = matrix_markdown(matrix, known);
  EXPECT_TRUE(stale_lines(text, known).empty());
  EXPECT_TRUE(has(text, "| 1 | x | yes | yes | yes | - | - | - | passed |")) << text;
  EXPECT_TRUE(has(text, "cannot run (1) |"));
  EXPECT_TRUE(has(text, "1. no \\<row> \\| here"));

  auto more = known;
  more.push_back({"--d", {"on"}, "on"});
  EXPECT_EQ(stale_lines(text, more).size(), 1u) << "another switch";
  more = known;
  more[2].values.push_back("auto");
  EXPECT_EQ(stale_lines(text, more).size(), 1u) << "another value";
  more = known;
  more[2].preset = "off";
  EXPECT_EQ(stale_lines(text, more).size(), 1u) << "another default";
  more = known;
  more.erase(more.begin());
  EXPECT_EQ(stale_lines(text, more).size(), 1u) << "a switch less";
  more = known;
  more[1].values = {"x", "z"};
  EXPECT_EQ(stale_lines(text, more).size(), 2u) << "a value less, and the line of the switch";

  std::string fewer = text;
  fewer.erase(fewer.find("| 2 | y |"), std::string("| 2 | y |").size());
  EXPECT_FALSE(stale_lines(fewer, known).empty());
  EXPECT_FALSE(stale_lines("", known).empty());
}

TEST(MatrixPage, ShowsCellsAndReasonsEscaped) {
  Matrix matrix = sample_matrix();
  matrix.cells[2].verdict = CellVerdict::kFailed;
  matrix.cells[2].why = "level 2: <script>";
  const std::string html = matrix_page(matrix, Json{{"record", Json::object()}}).html();
  EXPECT_EQ(fault_of_xml(html), "");
  const std::string shown = html.substr(0, html.find("<details>"));
  for (const char* text : {"level 2: &lt;script&gt;", "no &lt;row&gt; | here", "12.25", "12.5",
                           "3.25", "cannot run", "2 passed, 1 failed"}) {
    EXPECT_TRUE(has(shown, text)) << text;
  }
  EXPECT_EQ(fault_of_xml(matrix_page({}, Json::object()).html()), "");
}

}  // namespace
}  // namespace moxie
