// How the command line is given (commands, switches, variables, files of switches), and how its
// faults are told.
#include <sstream>
#include <tuple>

#include "cli.h"

namespace moxie {
namespace {

TEST_F(CliTest, UsageFaultsExitWithTwo) {
  EXPECT_EQ(moxie({}).exit_code, 2);
  EXPECT_EQ(moxie({"nosuchcommand"}).exit_code, 2);
  EXPECT_EQ(moxie({"run"}).exit_code, 2);
  EXPECT_EQ(moxie({"score", "--ids", "1", "--ids-file", "x"}).exit_code, 2);
  const auto unknown = moxie({"bench", "--kv-dtyp", "bf16"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_NE(unknown.err.find("did you mean --kv-dtype"), std::string::npos) << unknown.err;
  const auto with_value = moxie({"bench", "--kv-dtyp=fp8_e4m3"});
  EXPECT_NE(with_value.err.find("did you mean --kv-dtype"), std::string::npos) << with_value.err;
  const auto far = moxie({"bench", "--unlike-any"});
  EXPECT_EQ(far.err.find("did you mean"), std::string::npos) << far.err;
}

TEST_F(CliTest, UnknownCommandsAreNamedWithTheNearest) {
  for (const auto& [words, said] :
       {std::pair<std::vector<std::string>, std::string>{
            {"runn", "hi"}, "moxie: no command 'runn'; did you mean run?"},
        {{"detokenise", "--ids", "1"}, "moxie: no command 'detokenise'; did you mean detokenize?"},
        {{"completions", "bsh"}, "moxie completions: no command 'bsh'; did you mean bash?"},
        {{"completions", "foo"}, "moxie completions: no command 'foo'\n"},
        {{"bench", "replai", "x"}, "moxie bench: no command 'replai'; did you mean replay?"}}) {
    const auto result = moxie(words);
    EXPECT_EQ(result.exit_code, 2) << words.front();
    EXPECT_NE(result.err.find(said), std::string::npos) << result.err;
  }
}

TEST_F(CliTest, EveryCommandHasHelpWithAnExample) {
  for (const std::string command :
       {"run",  "chat",   "score",  "tokenize", "detokenize", "inspect",     "kernels",
        "plan", "doctor", "bench",  "profile",  "pull",       "eval",        "validate",
        "tune", "serve",  "matrix", "harmony",  "op",         "completions", "man"}) {
    const auto help = moxie({command, "--help"});
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_NE(help.out.find("Example:"), std::string::npos) << command;
  }
}

TEST_F(CliTest, FlagBeatsVariableBeatsConfigFile) {
  write("c.json", R"({"ids": [1, 2, 3], "kv-dtype": "bf16"})");
  const std::vector<std::string> base = {"score", "--model", kNano, "--config", at("c.json")};
  EXPECT_EQ(json_of(moxie(base))["num_scored"], 2);
  EXPECT_EQ(json_of(moxie(base, "", {"MOXIE_IDS=1,2"}))["num_scored"], 1);
  auto with_flag = base;
  with_flag.insert(with_flag.end(), {"--ids", "1,2,3,4"});
  EXPECT_EQ(json_of(moxie(with_flag, "", {"MOXIE_IDS=1,2"}))["num_scored"], 3);
  write("bad.json", R"({"kv-dtyp": "bf16"})");
  const auto bad = moxie({"score", "--model", kNano, "--config", at("bad.json"), "--ids", "1,2"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.err.find("did you mean --kv-dtype"), std::string::npos) << bad.err;
}

TEST_F(CliTest, VariablesOfOthersAreWarningsAndDoNotStopIt) {
  const std::vector<std::string> score = {"score", "--model", kNano, "--ids", "1,2"};
  const auto typed = moxie(score, "", {"MOXIE_KV_DTYPEE=bf16"});
  EXPECT_EQ(typed.exit_code, 0) << typed.err;
  EXPECT_NE(typed.err.find("did you mean MOXIE_KV_DTYPE?"), std::string::npos) << typed.err;
  // What Kubernetes sets in a pod beside a Service called moxie.
  const std::vector<std::string> variables = {
      "MOXIE_PORT=tcp://10.0.0.1:8000",   "MOXIE_SERVICE_HOST=10.0.0.1",
      "MOXIE_SERVICE_PORT=8000",          "MOXIE_PORT_8000_TCP=tcp://10.0.0.1:8000",
      "MOXIE_PORT_8000_TCP_PROTO=tcp",    "MOXIE_PORT_8000_TCP_PORT=8000",
      "MOXIE_PORT_8000_TCP_ADDR=10.0.0.1"};
  // A certificate that is not there ends it once all flags are read.
  const std::vector<std::string> serve = {"serve",        "--ssl-cert", at("none.pem"), "--ssl-key",
                                          at("none.pem"), "--host",     "127.0.0.1"};
  const auto pod = moxie(serve, "", variables);
  EXPECT_EQ(pod.exit_code, 1) << pod.err;
  EXPECT_NE(pod.err.find("MOXIE_PORT=tcp://10.0.0.1:8000 is passed over"), std::string::npos);
  EXPECT_NE(pod.err.find("MOXIE_SERVICE_HOST: unknown environment variable"), std::string::npos);
  EXPECT_NE(pod.err.find("none.pem"), std::string::npos) << pod.err;
  const auto wrong = moxie(serve, "", {"MOXIE_PORT=http"});
  EXPECT_EQ(wrong.exit_code, 2) << wrong.err;
}

TEST_F(CliTest, VariablesAreOfTheCommandThatRuns) {
  // Each is illegal for another command's switch of this name.
  const std::vector<std::string> variables = {
      "MOXIE_SELF_TEST=strict", "MOXIE_N_PROMPT=0", "MOXIE_MAX_TOKENS=0",       "MOXIE_CHUNK=0",
      "MOXIE_REPETITIONS=1",    "MOXIE_LEVEL=6",    "MOXIE_COMPARE_SWITCHES=no"};
  const auto ids = moxie({"tokenize", "--text", "a"}, "", variables);
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  // doctor's --self-test is a toggle.
  const auto doctor = moxie({"doctor", "--model", kNano}, "", variables);
  EXPECT_EQ(doctor.exit_code, 0) << doctor.err;
  const auto wrong = moxie({"run", "--model", kNano, "a"}, "", {"MOXIE_MAX_TOKENS=x"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.err.find("MOXIE_MAX_TOKENS=x: --max-tokens: must be a number from 0 to "),
            std::string::npos)
      << wrong.err;
  EXPECT_EQ(moxie({"doctor", "--model", kNano}, "", {"MOXIE_JSON=strict"}).exit_code, 2);
  EXPECT_NE(moxie({"run", "--help"}).out.find("(Env:MOXIE_MAX_TOKENS)"), std::string::npos);
}

TEST_F(CliTest, ValuesWithoutASwitchsFormAreUsage) {
  using Words = std::vector<std::string>;
  for (const auto& [flag, value, said] :
       {std::tuple{"--device", "foo", "unknown device 'foo'"},
        {"--device", "cuda:x", "unknown device"},
        {"--kernel", "foo", "expected STEP=NAME"},
        {"--kernel", "foo=bar", "no step 'foo' (did you mean"},
        {"--kernel", "all=bar", "all= takes 'reference' or 'auto'"},
        {"--tile", "foo", "unknown tile 'foo' (auto, "},
        {"--mxfp4-layers", "foo", "found \"foo\" (a list of moe, qkv, o, lm_head, or all)"},
        {"--mxfp8-layers", "moe", "found \"moe\""},
        {"--kv-dtype", "foo", "unknown type 'foo' (auto, bf16, fp8_e4m3 or f32)"},
        {"--activation", "foo", "unknown value 'foo'"}}) {
    for (const char* command : {"plan", "bench"}) {
      const auto result = moxie(Words{command, "--model", kNano, flag, value});
      EXPECT_EQ(result.exit_code, 2) << flag << ' ' << value;
      EXPECT_NE(result.err.find(std::string("moxie: ") + flag + ": " + said), std::string::npos)
          << result.err;
    }
  }
  EXPECT_EQ(moxie({"bench", "--model", kNano}, "", {"MOXIE_KV_DTYPE=foo"}).exit_code, 2);
  EXPECT_EQ(moxie({"validate", "--model", kNano, "--expect", "foo"}).exit_code, 2);
  EXPECT_EQ(moxie({"validate", "--model", kNano, "--forbid", "foo=bar"}).exit_code, 2);
  EXPECT_EQ(moxie({"op", "bench", "moe_fp8_block_scale", "--device", "foo"}).exit_code, 2);
  EXPECT_EQ(moxie({"pull", "a/b/c"}).exit_code, 2);
  EXPECT_EQ(moxie({"pull", "a/b/c@main"}).exit_code, 2);
}

// Every option whose help says that it takes a number refuses what lies outside its bounds.
TEST_F(CliTest, NumbersHaveBoundsThatAreNamed) {
  int num_flags = 0;
  for (const std::string command :
       {"run", "chat", "score", "detokenize", "kernels", "plan", "bench", "profile", "serve"}) {
    std::istringstream help(moxie({command, "--help"}).out);
    for (std::string line; std::getline(help, line);) {
      std::istringstream words(line);
      std::string names, type;
      words >> names >> type;
      const std::string number = type.substr(0, type.find('='));
      if (!names.starts_with("-") || (number != "INT" && number != "UINT" && number != "FLOAT"))
        continue;
      ++num_flags;
      const std::string flag = names.substr(names.rfind(',') + 1);
      for (const std::string value :
           {"-99999999999999999999", "99999999999999999999999", "nan", "x"}) {
        const auto refused = moxie({command, std::string(flag).append("=").append(value)});
        EXPECT_EQ(refused.exit_code, 2) << command << ' ' << flag << ' ' << value;
        EXPECT_NE(refused.err.find(flag + ": must be a number from "), std::string::npos)
            << command << ' ' << flag << ' ' << value << '\n'
            << refused.err;
      }
    }
  }
  EXPECT_GE(num_flags, 60);
  const auto length = moxie({"serve", "--max-model-len", "-5"});
  EXPECT_EQ(length.exit_code, 2);
  EXPECT_NE(length.err.find("--max-model-len: must be a number from 0 to "), std::string::npos)
      << length.err;
  const auto beyond = moxie({"score", "--ids", "1,2", "--max-model-len", "99999999"});
  EXPECT_EQ(beyond.exit_code, 0);
  EXPECT_NE(beyond.err.find("no more are planned"), std::string::npos) << beyond.err;
}

}  // namespace
}  // namespace moxie
