// The switches of speculation as people use them: values and contradictions, vLLM's JSON, and what
// run and bench print of drafts.
#include "cli.h"

namespace moxie {
namespace {

using Arguments = std::vector<std::string>;

// `speculation` adds up, and has `num_positions` places.
void check_counts(const Json& speculation, size_t num_positions) {
  const auto& places = speculation["accepted_per_position"];
  ASSERT_EQ(places.size(), num_positions) << speculation;
  int64_t total = 0, before = speculation["drafts"];
  for (const int64_t count : places) {
    EXPECT_LE(count, before) << speculation;
    total += before = count;
  }
  EXPECT_EQ(speculation["accepted_tokens"], total);
  EXPECT_LE(total, speculation["draft_tokens"].get<int64_t>());
}

const Arguments kRepeats = {
    "run", "--json", "--max-tokens", "80",
    "Repeat this list: red, green, blue, red, green, blue, red, green, blue, red, green, blue"};

TEST(SpeculationCliTest, DraftsAreCountedAndTheTextIsTheSame) {
  const Json plain = json_of(moxie(kRepeats));
  EXPECT_FALSE(plain.contains("speculation"));
  Arguments drafted = kRepeats;
  drafted.insert(drafted.end(), {"--spec", "ngram", "--spec-tokens", "4", "--prompt-lookup-min",
                                 "2", "--prompt-lookup-max", "3"});
  const Json with = json_of(moxie(drafted));
  EXPECT_EQ(with["content"], plain["content"]);
  EXPECT_EQ(with["reasoning"], plain["reasoning"]);
  EXPECT_EQ(with["usage"], plain["usage"]);
  check_counts(with["speculation"], 4);
  EXPECT_GT(with["speculation"]["accepted_tokens"], 0);
}

TEST(SpeculationCliTest, VariablesAndVllmsFieldsSetTheSameSwitches) {
  const Json by_variable =
      json_of(moxie(kRepeats, "", {"MOXIE_SPEC=ngram", "MOXIE_SPEC_TOKENS=3"}));
  check_counts(by_variable["speculation"], 3);
  for (const char* config :
       {R"({"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_max": 4})",
        R"({"model": "ngram", "num_speculative_tokens": 6, "draft_tensor_parallel_size": 1})"}) {
    Arguments arguments = kRepeats;
    arguments.insert(arguments.end(), {"--speculative-config", config});
    const auto result = moxie(arguments);
    check_counts(json_of(result)["speculation"], 6);
    EXPECT_EQ(result.err.find("warn"), std::string::npos) << result.err;
  }
  Arguments arguments = kRepeats;
  arguments.insert(arguments.end(),
                   {"--speculative-config", R"({"method": "ngram", "quantization": "fp8"})"});
  const auto warned = moxie(arguments);
  EXPECT_EQ(warned.exit_code, 0);
  EXPECT_NE(warned.err.find("quantization is not used"), std::string::npos) << warned.err;
}

TEST(SpeculationCliTest, ContradictionsAndUnknownValuesAreUsageFaults) {
  const std::pair<Arguments, const char*> faults[] = {
      {{"--spec", "ngramm"}, "--spec"},
      {{"--spec-tokens", "4"}, "nothing is drafted without a method"},
      {{"--spec", "ngram", "--spec-tokens", "33"}, "0 to 32"},
      {{"--spec", "ngram", "--spec-model", "x"}, "takes no draft head"},
      {{"--spec", "ngram", "--prompt-lookup-min", "4", "--prompt-lookup-max", "2"}, "exceed"},
      {{"--spec", "eagle3", "--spec-model", "x", "--prompt-lookup-min", "4"}, "only by ngram"},
      {{"--speculative-config", "ngram"}, "JSON object"},
      {{"--speculative-config", R"({"num_speculative_tokens": 3})"}, "no method"},
      {{"--speculative-config", R"({"method": "suffix"})"}, "does not draft by 'suffix'"},
      {{"--speculative-config", R"({"method": "ngrams"})"}, "unknown method"},
      {{"--speculative-config", R"({"method": "ngram", "num_speculative_tokens": 2.5})"},
       "integer"},
      {{"--speculative-config", R"({"method": "ngram", "num_speculative_tokens": 0})"}, "from 1"},
      {{"--speculative-config", R"({"method": "ngram", "promt_lookup_max": 3})"},
       "did you mean prompt_lookup_max?"},
      {{"--speculative-config", R"({"method": "ngram", "layer_id_offset": 2})"}, "layer_id_offset"},
      {{"--spec", "ngram", "--speculative-config", R"({"method": "ngram"})"}, "two values"}};
  for (const char* command : {"run", "bench", "plan"}) {
    for (const auto& [added, why] : faults) {
      Arguments arguments = {command};
      if (arguments.front() == "run") arguments.push_back("hello");
      arguments.insert(arguments.end(), added.begin(), added.end());
      const auto result = moxie(arguments);
      EXPECT_EQ(result.exit_code, 2) << command << ": " << why;
      EXPECT_NE(result.err.find(why), std::string::npos) << why << ": " << result.err;
    }
  }
  // A switch that is off explicitly makes its companions idle: commands are compared so.
  EXPECT_EQ(
      moxie({"run", "--max-tokens", "2", "hi", "--spec", "off", "--spec-tokens", "4"}).exit_code,
      0);
}

// A head that reads other layers than it was trained on. Acceptance that is simulated says nothing
// about a head.
TEST(SpeculationCliTest, AHeadWhoseDraftsAreHardlyAcceptedIsWarnedOfOnce) {
  Arguments bench = {"bench",
                     "-p",
                     "0",
                     "-n",
                     "130",
                     "-r",
                     "1",
                     "--json",
                     "--spec-adaptive",
                     "off",
                     "--speculative-config",
                     R"({"method": "dflash", "layer_id_offset": 0, "model": ")" + source_dir() +
                         R"(/models/tiny/dflash"})"};
  const auto result = moxie(bench);
  const Json counts = json_of(result)["tests"][0]["speculation"];
  ASSERT_GE(counts["drafts"], 200);
  const std::string says = "warn: dflash: the first draft was accepted in only ";
  const size_t at = result.err.find(says);
  ASSERT_NE(at, std::string::npos) << result.err << counts;
  EXPECT_NE(result.err.find("boundaries 1, 4, 6 of the target, mask token 4066"), std::string::npos)
      << result.err;
  EXPECT_EQ(result.err.find(says, at + 1), std::string::npos) << result.err;
  bench.insert(bench.end(), {"--spec-acceptance", "0.05"});
  const auto simulated = moxie(bench);
  EXPECT_GE(json_of(simulated)["tests"][0]["speculation"]["drafts"], 200);
  EXPECT_EQ(simulated.err.find("accepted in only"), std::string::npos) << simulated.err;
  const auto embedded =
      moxie({"plan", "--speculative-config", R"({"method": "dflash", "layer_id_offset": 0})"});
  EXPECT_EQ(embedded.exit_code, 1);
  EXPECT_NE(embedded.err.find("layer_id_offset"), std::string::npos) << embedded.err;
}

// That a plan counts what a server counts is tested in tests/server/test_speculation.py.
TEST(SpeculationCliTest, PlansCountTheHead) {
  const auto plan = [](Arguments more) {
    Arguments arguments = {"plan", "--json", "--device", "cpu", "--max-model-len", "4096"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return json_of(moxie(arguments));
  };
  const auto head_bytes = [](const Json& document) {
    double bytes = 0;
    for (const Json& part : document["parts"]) {
      if (part["name"] == "draft head") bytes = part["bytes"];
    }
    return bytes;
  };
  const Json plain = plan({});
  EXPECT_FALSE(plain.contains("speculation"));
  EXPECT_EQ(head_bytes(plain), 0);
  const Json ngram = plan({"--spec", "ngram", "--spec-tokens", "4"});
  EXPECT_EQ(ngram["speculation"],
            Json::parse(R"({"method": "ngram", "num_speculative_tokens": 4})"));
  EXPECT_EQ(head_bytes(ngram), 0);
  for (const std::string method : {"eagle3", "dflash"}) {
    const Json drafted = plan({"--spec", method});
    const Json& head = drafted["speculation"]["head"];
    EXPECT_EQ(head["boundaries"], Json::parse("[2, 5, 7]"));
    EXPECT_EQ(head.contains("mask_token_id"), method == "dflash");
    EXPECT_EQ(head["bytes"], head_bytes(drafted));
    EXPECT_EQ(drafted["serve"]["speculation"]["head"]["bytes"], head_bytes(drafted["serve"]));
    EXPECT_GE(drafted["total_bytes"], plain["total_bytes"].get<double>() + head_bytes(drafted));
    // About a million parameters, of which most are matrices.
    const Json exact = plan({"--spec", method, "--spec-dtype", "bf16"});
    EXPECT_GT(head_bytes(exact), head_bytes(drafted) + 1e6);
  }
  const auto table = moxie({"plan", "--spec", "dflash"});
  EXPECT_NE(table.out.find("draft head"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("drafts by dflash, boundaries 2, 5, 7"), std::string::npos);
  const auto wrong = moxie({"plan", "--spec", "dflash", "--spec-model", "/no/such/head"});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.err.find("/no/such/head"), std::string::npos) << wrong.err;
}

TEST(SpeculationCliTest, InspectShowsWhatIsTakenOfAHeadAndWhyOneIsRefused) {
  const std::string head = source_dir() + "/models/tiny/dflash";
  const Json shown = json_of(moxie({"inspect", head, "--target", "embedded", "--json"}));
  EXPECT_EQ(shown["kind"], "DFlash");
  EXPECT_EQ(shown["format"], "z-lab");
  EXPECT_EQ(shown["boundaries"], Json({2, 5, 7}));
  EXPECT_EQ(shown["mask_id"], 4066);
  EXPECT_EQ(shown["mask_embedding"], false);
  EXPECT_EQ(shown["num_tensors"], shown["tensors"].size());
  EXPECT_GT(shown["tensors"].size(), 20u);
  const auto text = moxie({"inspect", head, "--target", "embedded"});
  EXPECT_EQ(text.exit_code, 0);
  EXPECT_NE(text.out.find("boundaries 2, 5, 7 of the target"), std::string::npos) << text.out;
  const auto refused = moxie({"inspect", head, "--target", "synthetic:gpt-oss-20b", "--json"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("the head is 256 wide, the target 2880"), std::string::npos)
      << refused.err;
  EXPECT_EQ(Json::parse(refused.out)["faults"].size(), 1u);
}

TEST(SpeculationCliTest, BenchSimulatesAcceptanceAndSaysSo) {
  const Arguments base = {
      "bench",           "-p", "0", "-n", "150", "-r", "1", "--json", "--spec", "ngram",
      "--spec-adaptive", "off"};
  Arguments simulated = base;
  simulated.insert(simulated.end(), {"--spec-acceptance", "0.9,0.5,0.25", "--seed", "3"});
  const Json test = json_of(moxie(simulated))["tests"][0];
  EXPECT_EQ(test["acceptance"], "simulated");
  check_counts(test["speculation"], 3);
  // Two runs of 150 tokens: at 2.65 tokens a launch some 113 launches; 5 standard errors.
  const double launches = test["speculation"]["drafts"];
  const double rates[] = {0.9, 0.5, 0.25};
  for (size_t i = 0; i < 3; ++i) {
    const double found = test["speculation"]["accepted_per_position"][i].get<double>() / launches;
    EXPECT_NEAR(found, rates[i], 0.24) << i;
  }
  const Json compared = json_of(moxie(base))["tests"][0];
  EXPECT_EQ(compared["acceptance"], "compared");
  check_counts(compared["speculation"], 7);
  const Json plain = json_of(moxie({"bench", "-p", "0", "-n", "4", "-r", "1", "--json"}));
  EXPECT_FALSE(plain["tests"][0].contains("speculation"));
  EXPECT_FALSE(plain["tests"][0].contains("acceptance"));

  for (const auto& [rates_text, why] : {std::pair{"0.5,0.6", "must not increase"},
                                        {"1.5", "from 0 to 1"},
                                        {"0.5,", "no list of rates"},
                                        {"many", "no list of rates"}}) {
    Arguments arguments = base;
    arguments.insert(arguments.end(), {"--spec-acceptance", rates_text});
    const auto result = moxie(arguments);
    EXPECT_EQ(result.exit_code, 2) << rates_text;
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
  }
  EXPECT_EQ(moxie({"bench", "--spec-acceptance", "0.5"}).exit_code, 2);
  const Json phase = json_of(moxie({"profile", "-p", "0", "-n", "20", "-r", "1", "--json", "--spec",
                                    "ngram", "--spec-acceptance", "0.9"}))["phases"][0];
  EXPECT_EQ(phase["acceptance"], "simulated");
  // Nobody but bench and profile may simulate.
  EXPECT_EQ(moxie({"run", "hi", "--spec", "ngram", "--spec-acceptance", "0.5"}).exit_code, 2);
}

}  // namespace
}  // namespace moxie
