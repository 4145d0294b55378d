// The command line as its contract says: names, exit codes, JSON fields, and files gone bad.
#include "cli.h"

#include <cmath>
#include <cstring>
#include <set>
#include <sstream>

#include "lab/testing/xml_check.h"
#include "weights/safetensors.h"

namespace moxie {
namespace {

TEST_F(CliTest, OutputFilesAreTriedBeforeAnythingIsMeasured) {
  write("file", "");
  const std::string nowhere = at("no/such/folder/file");
  using Words = std::vector<std::string>;
  for (const Words& command : {Words{"matrix", "--switch", "kv-dtype=auto", "--markdown", nowhere},
                               {"matrix", "--switch", "kv-dtype=auto", "--report", nowhere},
                               {"profile", "--report", nowhere},
                               {"profile", "--trace", nowhere},
                               {"bench", "--report", nowhere},
                               {"bench", "--report", folder_.string()},
                               {"tune", "--tuning", at("file/tuning.json")},
                               {"score", "--ids", "1,2", "--logits", nowhere}}) {
    Words words = command;
    // A model that cannot be loaded: the file was tried before.
    words.insert(words.end(), {"--model", at("no model")});
    const auto result = moxie(words);
    EXPECT_EQ(result.exit_code, 1) << command[0] << ' ' << command[1];
    const std::string& path = command.back();
    EXPECT_NE(
        result.err.find(path + (path == folder_ ? ": is a folder" : ": cannot write the output")),
        std::string::npos)
        << result.err;
  }
  EXPECT_FALSE(fs::exists(at("no")));
}

TEST_F(CliTest, OutputThatCannotBeWrittenIsAFault) {
  const std::string model = " --model '" + kNano + "'";
  const auto shell = [](const std::string& line) {
    return run_process({"/bin/sh", "-c", MOXIE_BINARY " " + line}, "", {}, 300);
  };
  for (const std::string& command : std::vector<std::string>{
           "tokenize --text a", "score --ids 1,2" + model, "run a --max-tokens 2",
           "run a --max-tokens 2 --json", "kernels" + model, "kernels --json" + model,
           "inspect '" + kNano + "'", "plan --markdown", "--version", "run --help",
           "completions bash", "man"}) {
    const auto full = shell(command + " >/dev/full");
    EXPECT_EQ(full.exit_code, 1) << command << '\n' << full.err;
    EXPECT_NE(full.err.find("the output could not be written (No space left on device)"),
              std::string::npos)
        << command << '\n'
        << full.err;
    const auto closed = shell(command + " >&-");
    EXPECT_EQ(closed.exit_code, 1) << command << '\n' << closed.err;
    EXPECT_NE(closed.err.find("the output could not be written (Bad file descriptor)"),
              std::string::npos)
        << command << '\n'
        << closed.err;
  }
  const auto unread = shell("inspect '" + kNano + "' | head -1");
  EXPECT_EQ(unread.err, "");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(CliTest, StacksOfHalfAMebibyteAreEnough) {
  const auto answer = run_process(
      {"/bin/sh", "-c", "ulimit -s 512; " MOXIE_BINARY " run a --max-tokens 2"}, "", {}, 300);
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
}

TEST_F(CliTest, LittleMemoryLeavesOutTheBandwidthAtMost) {
  const auto limited = [](int mib, const std::string& command) {
    return run_process({"/bin/sh", "-c",
                        "ulimit -v " + std::to_string(mib * 1024) + "; " MOXIE_BINARY " " +
                            command + " --json --device cpu --threads 1"},
                       "", {}, 300);
  };
  const std::string plan = "plan --model synthetic:gpt-oss-20b";
  for (const std::string command : {"doctor", plan.c_str()}) {
    for (const int mib : {2000, 300}) {
      const auto result = limited(mib, command);
      ASSERT_EQ(result.exit_code, 0) << command << ' ' << mib << result.err;
      const Json document = Json::parse(result.out, nullptr, false);
      const Json& owner = command == "doctor" ? document["machine"] : document;
      if (owner["read_gb_s"].is_null())
        EXPECT_NE(result.out.find("not measured"), std::string::npos) << result.out;
      else
        EXPECT_GT(owner["read_gb_s"].get<double>(), 0);
    }
  }
}
#endif

TEST_F(CliTest, PathsThatAreNotUtf8AreNoCrash) {
  const fs::path model = folder_ / "nano_\xff\xfe";
  fs::create_directory_symlink(kNano, model);
  for (std::vector<std::string> command :
       {std::vector<std::string>{"plan", "--json"},
        {"kernels", "--json"},
        {"kernels", "--plan", "--json"},
        {"doctor", "--json"},
        {"tune", "--dry-run", "--json", "-b", "1", "-p", "0", "-r", "3"},
        {"bench", "--json", "-p", "2", "-n", "0", "-r", "2"},
        {"profile", "--json", "-p", "0", "-n", "2", "-r", "2"}}) {
    command.insert(command.end(), {"--model", model.string()});
    const Json document = json_of(moxie(command));
    EXPECT_NE(document.dump().find("nano_\xEF\xBF\xBD\xEF\xBF\xBD"), std::string::npos)
        << command.front();
  }
}

TEST_F(CliTest, ValidateRunsItsLevelsInOrder) {
  const std::vector<std::string> base = {"validate", "--model",         kNano, "--device", "cpu",
                                         "--json",   "--max-model-len", "128", "--level",  "1.5"};
  const Json report = json_of(moxie(base));
  EXPECT_EQ(report["valid"], true);
  ASSERT_EQ(report["levels"].size(), 2u);
  EXPECT_EQ(report["levels"][0]["level"], 1);
  EXPECT_EQ(report["levels"][1]["level"], 1.5);
  EXPECT_FALSE(report["kernels"].empty());

  auto with = base;
  with.insert(with.end(), {"--kernel", "out=reference", "--expect", "out=reference"});
  EXPECT_EQ(json_of(moxie(with))["valid"], true);
  with.insert(with.end(), {"--forbid", "out=out_reference"});
  const auto forbidden = moxie(with);
  EXPECT_EQ(forbidden.exit_code, 1);
  const Json refused = Json::parse(forbidden.out);
  EXPECT_EQ(refused["valid"], false);
  EXPECT_EQ(refused["levels"][0]["passed"], true);
  EXPECT_EQ(refused["levels"][1]["passed"], false);
  EXPECT_FALSE(refused["invalid_because"].empty());

  auto unknown = base;
  unknown.insert(unknown.end(), {"--expect", "out=out_referenze"});
  const auto error = moxie(unknown);
  EXPECT_EQ(error.exit_code, 1);
  EXPECT_NE(error.err.find("did you mean 'out_reference'"), std::string::npos) << error.err;
  EXPECT_EQ(moxie({"validate", "--level", "6"}).exit_code, 2);
  EXPECT_EQ(moxie({"validate", "--level", "2.5"}).exit_code, 2);
  EXPECT_EQ(moxie({"validate", "--level", "1", "--against", "x.json"}).exit_code, 2);
  EXPECT_EQ(moxie({"validate", "--level", "1", "--record", at("no/such/folder.json")}).exit_code,
            1);
}

TEST_F(CliTest, ScoreWritesLogitsAsSafetensors) {
  write("ids.json", "[[1, 2, 3, 4], [7, 8]]");
  const Json scores = json_of(moxie({"score", "--model", kNano, "--ids-file", at("ids.json"),
                                     "--logits", at("out.safetensors")}));
  EXPECT_EQ(scores["nll"].size(), 2u);
  EXPECT_EQ(scores["nll"][0].size(), 3u);
  EXPECT_NEAR(scores["perplexity"].get<double>(), std::exp(scores["mean_nll"].get<double>()), 1e-6);
  const auto file = SafetensorsFile::open(at("out.safetensors"));
  ASSERT_TRUE(file.has_value());
  const auto* logits = file->find("logits.0");
  ASSERT_NE(logits, nullptr);
  ASSERT_NE(file->find("logits.1"), nullptr);
  // The first prediction's likelihood follows from the first row.
  std::vector<float> row(512);
  std::memcpy(row.data(), file->data(*logits), row.size() * 4);
  double sum = 0;
  for (const float value : row) sum += std::exp(static_cast<double>(value));
  EXPECT_NEAR(scores["nll"][0][0].get<double>(), std::log(sum) - row[2], 1e-4);
}

TEST_F(CliTest, BadIdsAreErrorsNotCrashes) {
  for (const std::string ids : {"512", "1,100000"}) {
    const auto result = moxie({"score", "--model", kNano, "--ids", ids + ",1"});
    EXPECT_EQ(result.exit_code, 1) << ids;
    EXPECT_NE(result.err.find("vocabulary of 512"), std::string::npos) << result.err;
  }
  write("ids.json", "{\"not\": \"a list\"}");
  EXPECT_EQ(moxie({"score", "--model", kNano, "--ids-file", at("ids.json")}).exit_code, 1);
  write("deep.json", std::string(100000, '['));
  EXPECT_EQ(moxie({"score", "--model", kNano, "--ids-file", at("deep.json")}).exit_code, 1);
}

TEST_F(CliTest, ForcedRowsRunAndAreReported) {
  const Json scores =
      json_of(moxie({"score", "--model", kNano, "--ids", "1,2,3", "--kernel", "experts=reference",
                     "--kernel", "qkv=qkv_any_f32_gemv_portable"}));
  EXPECT_EQ(scores["kernels"]["experts"], "experts_reference");
  EXPECT_EQ(scores["kernels"]["qkv"], "qkv_any_f32_gemv_portable");
  const auto unknown = moxie({"score", "--model", kNano, "--ids", "1", "--kernel", "experts=nope"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_NE(unknown.err.find("did you mean"), std::string::npos) << unknown.err;
}

TEST_F(CliTest, RowsOfAnotherDeviceFailWithTheReason) {
  const Json table = json_of(moxie({"kernels", "--model", kNano, "--json"}));
  for (const Json& row : table["kernels"]) {
    EXPECT_FALSE(row["reason"].get<std::string>().empty()) << row["name"];
    if (row["device"] != "cuda") continue;
    const auto forced =
        moxie({"score", "--model", kNano, "--ids", "1,2", "--kernel",
               row["step"].get<std::string>() + "=" + row["name"].get<std::string>()});
    EXPECT_EQ(forced.exit_code, 1);
    EXPECT_NE(forced.err.find("another device"), std::string::npos) << forced.err;
  }
}

#if defined(__aarch64__)
TEST_F(CliTest, TheRowsOfDotProductsAreChosenWhereTheCpuHasThem) {
  const Json table =
      json_of(moxie({"kernels", "--model", kNano, "--mxfp4-layers", "all", "--json"}));
  const bool has_dot = table["features"].get<std::string>().find("neon_dot") != std::string::npos;
  int num_rows = 0;
  for (const Json& row : table["kernels"]) {
    if (row["needs"] == "neon_dot") {
      ++num_rows;
      const bool rounds = row["name"].get<std::string>().find("_i8_") != std::string::npos;
      EXPECT_EQ(row["chosen"], has_dot && !rounds) << row;
    } else if (row["chosen"] == true) {
      EXPECT_TRUE(row["needs"] == "none" || row["needs"] == "neon") << row;
    }
  }
  EXPECT_EQ(num_rows, 8);  // qkv, out, experts, unembed, with activations in 16 and in 8 bits
}
#endif

TEST_F(CliTest, KernelsDocumentIsTheTable) {
  const auto printed = moxie({"kernels", "--markdown"});
  EXPECT_EQ(printed.exit_code, 0);
  const std::string committed = slurp(source_dir() + "/docs/kernels.md");
  // A build without CUDA prints no CUDA rows; every row that it prints must be in the document.
  std::istringstream lines(printed.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_NE(committed.find(line), std::string::npos)
        << "docs/kernels.md lacks: " << line << "\nwrite it anew: moxie kernels --markdown";
  }
}

TEST_F(CliTest, DevicesThatAreNotThereAreClearErrors) {
  const auto result = moxie({"run", "hi", "--device", "cuda:9999"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("error"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find('('), std::string::npos) << "no hint: " << result.err;
  EXPECT_TRUE(result.out.empty()) << result.out;
  EXPECT_EQ(moxie({"run", "hi", "--graphs", "maybe"}).exit_code, 2);
  const auto mxfp8 = moxie({"run", "hi", "--device", "cpu", "--mxfp8-layers", "all"});
  EXPECT_EQ(mxfp8.exit_code, 1);
  EXPECT_NE(mxfp8.err.find("--mxfp8-layers"), std::string::npos) << mxfp8.err;
}

#ifdef MOXIE_FAKE_DRIVER
TEST_F(CliTest, ADriverThatDoesNotServeIsNamedWithWhatToDo) {
  const std::string library = "LD_LIBRARY_PATH=" MOXIE_FAKE_DRIVER;
  const auto run = [&](const char* device, const std::string& driver) {
    return moxie({"run", "hi", "--device", device, "--max-tokens", "1"}, "", {library, driver});
  };
  const std::string old = "FAKE_DRIVER_VERSION=12080";
  const auto forced = run("cuda", old);
  EXPECT_EQ(forced.exit_code, 1);
  EXPECT_NE(forced.err.find("supports CUDA 12.8"), std::string::npos) << forced.err;
  EXPECT_NE(forced.err.find("install an NVIDIA driver"), std::string::npos) << forced.err;
  const auto chosen = run("auto", old);
  EXPECT_EQ(chosen.exit_code, 0) << chosen.err;
  EXPECT_NE(chosen.err.find("running on the CPU"), std::string::npos) << chosen.err;
  EXPECT_NE(chosen.err.find("supports CUDA 12.8"), std::string::npos) << chosen.err;
  const auto broken = moxie({"run", "hi", "--device", "cuda"}, "",
                            {library, "FAKE_DRIVER_VERSION=19000", "FAKE_DRIVER_INIT=803"});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_NE(broken.err.find("restart the machine"), std::string::npos) << broken.err;
}
#endif

TEST_F(CliTest, AnInterruptedAnswerEndsWithOneAndSaysSo) {
  // The signal comes with the first words, however long loading takes.
  const auto result = run_process(
      {"/bin/bash", "-c",
       "\"$0\" run 'What is 47 * 86?' --reasoning-effort high --show-reasoning --device cpu "
       "--kernel all=reference > \"$1\" & pid=$!; "
       "for i in $(seq 600); do [[ -s $1 ]] && break; sleep 0.1; done; "
       "kill -INT $pid; wait $pid",
       MOXIE_BINARY, at("answer.txt")});
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(result.err.find("interrupted"), std::string::npos) << result.err;
}

TEST_F(CliTest, SwitchesAreComparedWithTheModelAsItIs) {
  write("ids.json", "[[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]]");
  const Json compared =
      json_of(moxie({"score", "--model", kNano, "--device", "cpu", "--compare-switches",
                     "--ids-file", at("ids.json"), "--json"}));
  EXPECT_EQ(compared["num_scored"], 9);
  std::set<std::string> names;
  for (const Json& entry : compared["switches"]) {
    names.insert(entry["switch"]);
    EXPECT_GT(entry["mean_kl"].get<double>(), 0) << entry;
    EXPECT_NEAR(entry["perplexity"].get<double>() - entry["perplexity_change"].get<double>(),
                compared["perplexity"].get<double>(), 1e-9);
  }
  for (const char* name : {"--mxfp4-layers qkv", "--mxfp4-layers o", "--mxfp4-layers lm_head",
                           "--mxfp4-layers all", "--kv-dtype fp8_e4m3"}) {
    EXPECT_TRUE(names.contains(name)) << name;
  }
}

TEST_F(CliTest, TokenizersAgreeThroughTheCommands) {
  const std::string tiktoken = at("o200k.tiktoken");
  ASSERT_EQ(std::system(("gunzip -c '" + test_data() + "/tokenizer/o200k_base.tiktoken.gz' > '" +
                         tiktoken + "'")
                            .c_str()),
            0);
  const Json ids =
      json_of(moxie({"tokenize", "--tokenizer", tiktoken, "--json", "--text", "hello world"}));
  EXPECT_EQ(ids["ids"], Json({24912, 2375}));
  EXPECT_EQ(moxie({"detokenize", "--tokenizer", tiktoken, "--ids", "24912,2375"}).out,
            "hello world");
  const auto lines =
      moxie({"tokenize", "--tokenizer", tiktoken, "--lines"}, "\"hello world\"\n\"<|start|>\"\n");
  EXPECT_EQ(lines.out.substr(0, lines.out.find('\n')), "[24912,2375]");
  const auto special = moxie({"tokenize", "--tokenizer", tiktoken, "--lines", "--special", "all"},
                             "\"<|start|>\"\n");
  EXPECT_EQ(special.out, "[200006]\n");
  // Harmony through the same tokenizer: parse what a model wrote.
  const auto parsed = moxie({"harmony", "parse", "--tokenizer", tiktoken},
                            R"({"ids": [200005, 17196, 200008, 13225, 0, 200002]})");
  const Json messages = json_of(parsed)["messages"];
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0]["channel"], "final");
  EXPECT_EQ(messages[0]["content"][0]["text"], "Hello!");
  EXPECT_EQ(moxie({"harmony", "render", "--tokenizer", tiktoken}, "not json").exit_code, 1);
}

TEST_F(CliTest, InspectNamesEveryFaultAndExitsWithOne) {
  fs::copy(kNano + "/config.json", folder_ / "config.json");
  std::string bytes = slurp(kNano + "/model.safetensors");
  const auto inspect = [&](const std::string& weights) {
    write("model.safetensors", weights);
    const auto result = moxie({"inspect", folder_.string(), "--json"});
    EXPECT_EQ(result.exit_code, 1) << result.out.substr(0, 300) << result.err;
    EXPECT_FALSE(result.err.empty());
    // What cannot be inspected cannot be loaded either, and says so alike.
    EXPECT_EQ(moxie({"score", "--model", folder_.string(), "--ids", "1,2"}).exit_code, 1);
    return Json::parse(result.out, nullptr, false);
  };
  EXPECT_FALSE(inspect(bytes.substr(0, bytes.size() / 2))["faults"].empty());
  EXPECT_FALSE(inspect(bytes.substr(0, 5))["faults"].empty());
  EXPECT_FALSE(inspect("")["faults"].empty());
  std::string absurd = bytes;
  absurd.replace(0, 8, "\xff\xff\xff\xff\xff\xff\xff\x0f", 8);
  EXPECT_FALSE(inspect(absurd)["faults"].empty());
  std::string renamed = bytes;
  const auto name = renamed.find("model.norm.weight");
  ASSERT_NE(name, std::string::npos);
  renamed[name] = 'M';
  const Json faults = inspect(renamed)["faults"];
  ASSERT_FALSE(faults.is_discarded());
  bool missing = false, extra = false;
  for (const Json& fault : faults) {
    missing |= fault["tensor"] == "model.norm.weight";
    extra |= fault["tensor"] == "Model.norm.weight";
    EXPECT_FALSE(fault["file"].get<std::string>().empty());
    EXPECT_FALSE(fault["expected"].get<std::string>().empty());
  }
  EXPECT_TRUE(missing && extra) << faults;
}

TEST_F(CliTest, InspectLooksAtTheTokenizer) {
  for (const char* file : {"/config.json", "/model.safetensors"})
    fs::copy(kNano + file, folder_.string() + file);
  const std::vector<std::string> inspect = {"inspect", folder_.string(), "--json"};
  EXPECT_EQ(json_of(moxie(inspect))["has_tokenizer"], false);
  for (const auto& [text, found] : {std::pair<std::string, std::string>{"", "the file is empty"},
                                    {"{\"model\": {\"vocab\": {\"a\"", "not well-formed JSON"},
                                    {"garbage", "not well-formed JSON"},
                                    {R"({"model": {"vocab": {"a": 0}}})", "no model.merges"}}) {
    write("tokenizer.json", text);
    const auto result = moxie(inspect);
    EXPECT_EQ(result.exit_code, 1) << text;
    const Json faults = Json::parse(result.out)["faults"];
    ASSERT_EQ(faults.size(), 1u) << text;
    EXPECT_EQ(faults[0]["file"], at("tokenizer.json"));
    EXPECT_NE(faults[0]["found"].get<std::string>().find(found), std::string::npos) << faults;
  }
}

TEST_F(CliTest, MissingModelsSayWhereTheyWereLookedFor) {
  const auto path = moxie({"run", "hi", "--model", at("nothing")});
  EXPECT_EQ(path.exit_code, 1);
  EXPECT_NE(path.err.find("nothing"), std::string::npos);
  const auto repo = moxie({"run", "hi", "--model", "openai/gpt-oss-20b"}, "",
                          {"HF_HUB_CACHE=" + folder_.string()});
  EXPECT_EQ(repo.exit_code, 1);
  EXPECT_NE(repo.err.find(folder_.string()), std::string::npos) << repo.err;
  EXPECT_NE(repo.err.find("moxie pull openai/gpt-oss-20b"), std::string::npos) << repo.err;
}

TEST_F(CliTest, BenchPrintsTheContractsFields) {
  const Json bench =
      json_of(moxie({"bench", "--model", kNano, "-p", "8,16", "-n", "4", "-d", "0,20", "-b", "1,2",
                     "-r", "2", "--json", "--report", at("bench.html")}));
  EXPECT_GT(bench["machine"]["read_gb_s"].get<double>(), 0);
  EXPECT_TRUE(bench["machine"]["peak"].is_object());
  ASSERT_EQ(bench["tests"].size(), 12u);
  std::set<std::string> names;
  for (const Json& test : bench["tests"]) {
    names.insert(test["name"]);
    EXPECT_EQ(test["tok_s"]["samples"].size(), 2u);
    for (const char* key : {"median", "mean", "stdev"}) EXPECT_TRUE(test["tok_s"].contains(key));
    EXPECT_GT(test["bytes_per_token"].get<double>(), 0);
    EXPECT_GT(test["flops_per_token"].get<double>(), 0);
    EXPECT_GT(test["share_of_limit"].get<double>(), 0);
    EXPECT_EQ(test["read_gb_s"].size(), test["tok_s"]["samples"].size());
    EXPECT_EQ(test["launches_s"], Json::array()) << "decode by graphs, or on a CPU";
    ASSERT_TRUE(test.contains("joules_per_token")) << test;
    const Json& joules = test["joules_per_token"];
    EXPECT_TRUE(joules.is_null() || joules.get<double>() > 0) << joules;
    EXPECT_EQ(test["kernels"].size(), test["n_gen"] > 0 ? 8u : 7u);
  }
  EXPECT_TRUE(names.contains("pp16@d20@b2") && names.contains("tg4")) << bench["tests"];
  EXPECT_TRUE(bench["record"].is_object());
  EXPECT_EQ(fault_of_xml(slurp(at("bench.html"))), "");
}

TEST_F(CliTest, ATestThatIsNamedTwiceIsMeasuredOnceAndItsRecordCanBeRead) {
  const std::string record = at("record.json");
  const Json bench =
      json_of(moxie({"bench", "--model", kNano, "--device", "cpu", "-p", "8,8", "-n", "2", "-n",
                     "2", "-b", "1,1", "-r", "1", "--record", record, "--json"}));
  EXPECT_EQ(bench["tests"].size(), 2u) << bench["tests"];
  const auto same = moxie({"bench", "compare", record, record});
  EXPECT_EQ(same.exit_code, 0) << same.err;
}

TEST_F(CliTest, BenchInTurnRefusesWhatItDoesNotDo) {
  for (const std::string vs : {"", " "}) {
    const auto none = moxie({"bench", "-p", "8", "-n", "0", "--vs", vs});
    EXPECT_EQ(none.exit_code, 2);
    EXPECT_NE(none.err.find("--vs names no switch"), std::string::npos) << none.err;
  }
  const auto page = moxie({"bench", "--vs", "--threads 1", "--report", at("page.html")});
  EXPECT_EQ(page.exit_code, 2);
  EXPECT_NE(page.err.find("--report"), std::string::npos) << page.err;
}

TEST_F(CliTest, ScoreOfOneIdHasNoPerplexity) {
  const std::string record = at("record.json");
  const Json one = json_of(moxie({"score", "--model", kNano, "--ids", "5", "--record", record}));
  EXPECT_EQ(one["num_scored"], 0);
  EXPECT_TRUE(one["mean_nll"].is_null() && one["perplexity"].is_null()) << one;
  EXPECT_TRUE(Json::parse(slurp(record))["results"].empty());
}

TEST_F(CliTest, BenchSaysWhatBatchInvarianceCosts) {
  const Json bench = json_of(moxie({"bench", "--model", kNano, "--device", "cpu", "-p", "8", "-n",
                                    "2", "-r", "1", "--batch-invariant", "on", "--json"}));
  ASSERT_EQ(bench["tests"].size(), 2u);
  for (const Json& test : bench["tests"]) {
    const Json& off = test["batch_invariant_off"];
    EXPECT_EQ(off["tok_s"]["samples"].size(), 1u);
    EXPECT_DOUBLE_EQ(off["ratio"].get<double>(),
                     test["tok_s"]["median"].get<double>() / off["tok_s"]["median"].get<double>());
    EXPECT_EQ(off["kernels"].size(), test["kernels"].size());
  }
  EXPECT_EQ(moxie({"bench", "--batch-invariant", "maybe"}).exit_code, 2);
}

TEST_F(CliTest, KernelsPrintsThePlansOfLaunches) {
  const Json plans = json_of(moxie({"kernels", "--plan", "-n", "1,8,2048", "--device", "cpu",
                                    "--model", "synthetic:gpt-oss-120b", "--json"}));
  ASSERT_EQ(plans["plans"].size(), 3u);
  for (const Json& plan : plans["plans"]) {
    EXPECT_GT(plan["predicted_us"].get<double>(), 0);
    EXPECT_GT(plan["plan_ms"].get<double>(), 0);
    std::set<std::string> covered;
    for (const Json& row : plan["rows"]) {
      for (const Json& op : row["covers"]) covered.insert(op);
      EXPECT_GT(row["predicted_us"].get<double>(), 0) << row;
      EXPECT_GT(row["limit_us"].get<double>(), 0) << row;
      EXPECT_TRUE(row["reads"].is_object() && row["writes"].is_object()) << row;
    }
    EXPECT_EQ(covered, (std::set<std::string>{"embed", "qkv", "attend", "out", "route", "experts",
                                              "unembed"}));
    EXPECT_EQ(plan["rows"].front()["writes"]["x"], "f32");
  }
}

TEST_F(CliTest, ProfilePrintsWhereTheTimeGoes) {
  const std::vector<std::string> base = {"profile", "--model", kNano, "--device", "cpu", "-p", "24",
                                         "-n",      "5",       "-d",  "8",        "-r",  "2"};
  auto with_json = base;
  with_json.insert(with_json.end(),
                   {"--json", "--trace", at("trace.json"), "--report", at("profile.html")});
  const Json profile = json_of(moxie(with_json));
  const std::string page = slurp(at("profile.html"));
  EXPECT_EQ(fault_of_xml(page), "");
  for (const char* text :
       {"pp24@d8 (prefill)", "tg5@d8 (decode)", "One token: from one embed to"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  EXPECT_GT(profile["machine"]["read_gb_s"].get<double>(), 0);
  EXPECT_TRUE(profile["record"]["environment"].is_object());
  EXPECT_GT(profile["startup"]["ready_s"].get<double>(), 0) << "load stands apart";
  ASSERT_EQ(profile["phases"].size(), 2u);
  for (const Json& phase : profile["phases"]) {
    const bool is_decode = phase["phase"] == "decode";
    EXPECT_EQ(phase["unit"], is_decode ? "token" : "prompt");
    double us = 0;
    std::set<std::string> names;
    for (const Json& part : phase["categories"]) {
      us += part["us"].get<double>();
      names.insert(part["name"]);
      for (const char* key : {"share_of_time", "share_of_limit", "bytes", "flops", "launches"}) {
        EXPECT_TRUE(part.contains(key)) << key;
      }
      EXPECT_TRUE(part["name"] != "other" || part["us"] == 0) << part;
    }
    EXPECT_NEAR(us, phase["window_us"].get<double>(), 1e-3 * us);
    EXPECT_EQ(names,
              (std::set<std::string>{"experts", "dense", "attention", "routing",
                                     "norm and activation", "kv cache", "sampling",
                                     "memory movement", "between ranks", "load", "other", "gap"}));
    EXPECT_EQ(phase["rows"].size(), is_decode ? 8u : 7u);
    EXPECT_EQ(phase["kernels"].size(), is_decode ? 8u : 7u) << "on the CPU a kernel is a row";
    EXPECT_EQ(phase["tok_s"]["without_profiling"]["samples"].size(), 2u);
    EXPECT_GT(phase["tok_s"]["slow_down"].get<double>(), 0);
    ASSERT_EQ(phase["gates"].size(), 4u);
    for (const Json& gate : phase["gates"]) {
      if (gate["name"] == "quantisation") {
        EXPECT_TRUE(gate["passed"].is_null() && gate["answer"].is_null()) << gate;
        continue;
      }
      EXPECT_EQ(gate["passed"], gate["share_of_time"] <= gate["threshold"]) << gate;
      EXPECT_EQ(gate["answer"], gate["passed"] ? "no" : "yes");
      EXPECT_EQ(gate["next"].get<std::string>().empty(), gate["passed"].get<bool>()) << gate;
    }
  }
  const Json trace = Json::parse(slurp(at("trace.json")));
  EXPECT_GT(trace["traceEvents"].size(), 100u);
  EXPECT_TRUE(profile["shared_experts"].is_null()) << "5 tokens are too few";
  write("texts.json", R"({"count": [[1,2,3,4,5,6,7,8,9]], "same": [[5,5,5,5,5,5,5,5,5,5]]})");
  with_json.insert(with_json.end(), {"--texts", at("texts.json")});
  const Json shared = json_of(moxie(with_json))["shared_experts"];
  EXPECT_EQ(shared["neighbours"].size(), 7u);
  EXPECT_EQ(shared["all"]["tokens"], 19);
  ASSERT_EQ(shared["texts"].size(), 2u);
  EXPECT_LT(shared["texts"][1]["mean"][6], shared["texts"][0]["mean"][6]);

  const auto table = moxie(base);
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* text : {"pp24@d8 (prefill)", "tg5@d8 (decode)", "| experts ", "| gap ",
                           "top kernels:", "experts over 50% of the time? "}) {
    EXPECT_NE(table.out.find(text), std::string::npos) << text << '\n' << table.out;
  }
  EXPECT_EQ(moxie({"profile", "--model", kNano, "-p", "0", "-n", "0"}).exit_code, 2);
  auto no_folder = base;
  no_folder.insert(no_folder.end(), {"--trace", at("no/such/folder.json")});
  const auto failed = moxie(no_folder);
  EXPECT_EQ(failed.exit_code, 1);
  EXPECT_NE(failed.err.find("cannot write the output"), std::string::npos) << failed.err;
}

TEST_F(CliTest, TheEmbeddedModelAnswers) {
  const std::vector<std::string> ask = {"run", "What is 4127 + 985?", "--json"};
  const Json reply = json_of(moxie(ask));
  EXPECT_NE(reply["content"].get<std::string>().find("5112"), std::string::npos) << reply;
  EXPECT_FALSE(reply["reasoning"].get<std::string>().empty());
  EXPECT_EQ(reply["finish_reason"], "stop");
  for (const char* key : {"usage", "timing", "kernels"}) EXPECT_TRUE(reply[key].is_object()) << key;
  EXPECT_EQ(reply["kernels"].size(), 8u);
  EXPECT_EQ(json_of(moxie({"run", "-", "--json"}, ask[1]))["content"], reply["content"]);
}

TEST_F(CliTest, TheSameSeedGivesTheSameText) {
  const auto ask = [](const std::string& seed, const std::string& threads) {
    return json_of(moxie({"run", "Say something nice", "--json", "--temperature", "1.5", "--seed",
                          seed, "--max-tokens", "60", "--threads", threads}));
  };
  const Json first = ask("7", "1"), again = ask("7", "2");
  EXPECT_EQ(first["content"], again["content"]);
  EXPECT_EQ(first["reasoning"], again["reasoning"]);
  std::set<std::string> texts;
  for (const std::string seed : {"1", "2", "3", "4"}) {
    const Json reply = ask(seed, "2");
    texts.insert(reply["reasoning"].get<std::string>() + reply["content"].get<std::string>());
  }
  EXPECT_GT(texts.size(), 1u);
}

TEST_F(CliTest, SeveralRanksGiveTheSameText) {
  const auto ask = [](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"run",
                                        "Say something nice",
                                        "--json",
                                        "--temperature",
                                        "1.2",
                                        "--seed",
                                        "7",
                                        "--max-tokens",
                                        "60",
                                        "--device",
                                        "cpu",
                                        "--kv-dtype",
                                        "f32",
                                        "--kernel",
                                        "experts=experts_any_f32_gemv_portable"};
    command.insert(command.end(), more.begin(), more.end());
    return json_of(moxie(command));
  };
  const Json alone = ask({});
  for (const std::vector<std::string>& ranks :
       {std::vector<std::string>{"--tensor-parallel-size", "2"},
        {"--tensor-parallel-size", "4", "--enable-expert-parallel"}}) {
    const Json reply = ask(ranks);
    EXPECT_EQ(reply["content"], alone["content"]) << ranks[1];
    EXPECT_EQ(reply["reasoning"], alone["reasoning"]) << ranks[1];
    EXPECT_TRUE(reply["kernels"].contains("reduce")) << reply["kernels"];
  }
  const auto three = moxie({"run", "Hello", "--device", "cpu", "--tensor-parallel-size", "3"});
  EXPECT_EQ(three.exit_code, 1);
  EXPECT_NE(three.err.find("8 heads do not divide among 3 ranks"), std::string::npos) << three.err;
  const Json plan = json_of(moxie({"kernels", "--plan", "--json", "-n", "1", "--device", "cpu",
                                   "--tensor-parallel-size", "2"}));
  int reduces = 0, gathers = 0;
  for (const Json& row : plan["plans"][0]["rows"]) {
    reduces += row["covers"] == Json::array({"reduce"});
    gathers += row["covers"] == Json::array({"gather"});
  }
  EXPECT_EQ(reduces, 4) << "two in each of two kinds of layers";
  EXPECT_EQ(gathers, 1);
}

TEST_F(CliTest, ToolsAreCalled) {
  const Json reply = json_of(moxie({"run", "What is the weather in Oslo?", "--json", "--tools",
                                    source_dir() + "/tools/demo_tools.json"}));
  EXPECT_EQ(reply["finish_reason"], "tool_calls");
  ASSERT_EQ(reply["tool_calls"].size(), 1u);
  EXPECT_EQ(reply["tool_calls"][0]["function"]["name"], "get_weather");
  const Json arguments =
      Json::parse(reply["tool_calls"][0]["function"]["arguments"].get<std::string>());
  EXPECT_EQ(arguments["city"], "Oslo");
}

TEST_F(CliTest, APromptLongerThanTheContextIsAClearError) {
  std::string prompt;
  for (int i = 0; i < 4000; ++i) prompt += "word ";
  const auto result = moxie({"run", "-", "--max-model-len", "256"}, prompt);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("--max-model-len"), std::string::npos) << result.err;
}

TEST_F(CliTest, ChatTakesCommandsAndRemembersTheConversation) {
  const auto result =
      moxie({"chat", "--quiet"}, "/help\nMy name is Anna.\nWhat is my name?\n/nonsense\n/quit\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("/clear"), std::string::npos);
  EXPECT_NE(result.err.find("unknown command"), std::string::npos);
  EXPECT_NE(result.out.find("Anna"), std::string::npos) << result.out;
}

TEST_F(CliTest, ChatNamesKernelsOnlyWhenAsked) {
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  const std::string ask = "What is 3 + 4?\n";
  const auto plain = moxie({"chat"}, ask + ask);
  EXPECT_EQ(count(plain.err, "loaded in"), 2) << plain.err;
  EXPECT_EQ(count(plain.err, "kernels:"), 0) << plain.err;
  EXPECT_EQ(count(moxie({"chat", "--verbose"}, ask + ask).err, "kernels:"), 2);
  const auto asked = moxie({"chat"}, ask + "/stats\n/stats on\n" + ask + "/stats off\n" + ask);
  EXPECT_EQ(count(asked.err, "kernels:"), 2) << asked.err;
  EXPECT_EQ(count(asked.err, "loaded in"), 2) << asked.err;
}

}  // namespace
}  // namespace moxie
