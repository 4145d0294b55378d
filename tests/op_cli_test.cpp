// `moxie op` as people run it: vectors of an independent computation, bad inputs, and a tree of
// workloads judged and traced. tests/data/moe_fp8/make.py wrote the vectors.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "core/child_process.h"
#include "core/formats.h"
#include "core/testing/paths.h"
#include "weights/safetensors.h"
#include "weights/safetensors_write.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kVectors = test_data() + "/moe_fp8/";

ProcessResult op(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {MOXIE_BINARY, "op"});
  return run_process(arguments, "", {}, 300);
}

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct StoredTensor {
  std::string dtype;
  Shape shape;
  std::vector<std::byte> bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

StoredTensors read(const std::string& path) {
  StoredTensors tensors;
  auto file = SafetensorsFile::open(path);
  EXPECT_TRUE(file.has_value()) << path;
  if (!file) return tensors;
  for (const FileTensor& tensor : file->tensors()) {
    const std::byte* data = file->data(tensor);
    tensors[tensor.name] = {tensor.dtype_text, tensor.shape, {data, data + tensor.bytes}};
  }
  return tensors;
}

void write(const std::string& path, const StoredTensors& tensors) {
  std::vector<TensorToWrite> list;
  for (const auto& [name, tensor] : tensors)
    list.push_back({name, tensor.dtype, tensor.shape, tensor.bytes.data()});
  ASSERT_TRUE(write_safetensors(path, list));
}

template <typename T>
std::vector<T> values_of(const StoredTensor& tensor) {
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

class OpCliTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() /
              ("moxie_op_" + std::string(info->name()) + "_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  // A tree of small shapes, without its large workloads.
  std::string small_tree() const {
    const auto made = op({"make-tree", at("tree"), "--experts", "64", "--local-experts", "8",
                          "--hidden", "256", "--intermediate", "128", "--max-tokens", "32"});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return at("tree");
  }
  fs::path folder_;
};

TEST_F(OpCliTest, RowsAgreeWithAnIndependentComputation) {
  const auto expected = values_of<double>(read(kVectors + "small_expected.safetensors")["output"]);
  ASSERT_EQ(expected.size(), 6u * 384);
  for (const std::string kernel : {"reference", "auto"}) {
    const auto ran = op({"run", "moe_fp8_block_scale", "--inputs", kVectors + "small.safetensors",
                         "--output", at("out.safetensors"), "--kernel", kernel, "--device", "cpu"});
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    auto outputs = read(at("out.safetensors"));
    ASSERT_EQ(outputs["output"].dtype, "BF16");
    ASSERT_EQ(outputs["output"].shape, (Shape{6, 384}));
    const auto output = values_of<uint16_t>(outputs["output"]);
    double greatest = 0, worst = 0;
    for (const double value : expected) greatest = std::fmax(greatest, std::fabs(value));
    for (size_t i = 0; i < output.size(); ++i) {
      // BF16 rounds to 2^-8 of the value. Rows in F32 sum with errors beside the greatest output.
      const double error = std::fabs(bf16_to_f32(output[i]) - expected[i]);
      const double sums = kernel == "reference" ? 0 : 1e-5 * greatest;
      worst = std::fmax(worst, error - 0x1p-8 * std::fabs(expected[i]) - sums);
      // These tokens have no local expert.
      const size_t token = i / 384;
      if (token == 0 || token == 3) {
        ASSERT_EQ(output[i] & 0x7FFF, 0) << i;
      }
    }
    EXPECT_LE(worst, 0) << kernel << ", greatest output " << greatest;
  }
}

TEST_F(OpCliTest, AFailedWriteRemovesNothing) {
  fs::create_symlink("/dev/full", at("full"));
  const auto ran = op({"run", "moe_fp8_block_scale", "--inputs", kVectors + "small.safetensors",
                       "--output", at("full"), "--device", "cpu"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_NE(ran.err.find("cannot write the tensors"), std::string::npos) << ran.err;
  EXPECT_TRUE(fs::is_character_file(at("full")));
}

TEST_F(OpCliTest, BadInputsFailAndSayWhy) {
  struct Case {
    std::function<void(StoredTensors&)> change;
    std::string says;
  };
  const auto turn = [](const char* name) {
    return [name](StoredTensors& t) {
      Shape& shape = t[name].shape;
      std::swap(shape.dims[shape.rank - 1], shape.dims[shape.rank - 2]);
    };
  };
  const Case cases[] = {
      {[](auto& t) { t.erase("gemm1_weights"); }, "gemm1_weights: is missing"},
      {[](auto& t) { t["hidden"] = t["hidden_states"]; }, "hidden: no such input"},
      {[](auto& t) { t["hidden_states"].dtype = "U8"; }, "is U8, expected F8_E4M3"},
      {[](auto& t) { t["routing_bias"].dtype = "F16"; }, "is F16, expected BF16"},
      {turn("hidden_states_scale"), "blocks come first"},
      {turn("gemm1_weights_scale"), "transpose it to [experts, 2 intermediate / 128"},
      {turn("gemm2_weights_scale"), "transpose it to [experts, hidden / 128"},
      {turn("gemm1_weights"), "gemm1_weights: has shape [2, 384, 512], expected [2, 512, 384]"},
      {[](auto& t) {
         t["routing_logits"].shape = {3, 128};
       },
       "[3, 128], expected [6, 128]"},
      {[](auto& t) { t["hidden_states"].shape = {6 * 384}; }, "expected 2 dimensions"},
      {[](auto& t) {
         t["hidden_states"].shape = {12, 192};
       },
       "hidden is not a positive multiple"},
      {[](auto& t) { t["local_expert_offset"].bytes[0] = std::byte{63}; },
       "offset of the local experts is out of range"},
      {[](auto& t) { t["local_expert_offset"].bytes[3] = std::byte{0xFF}; },
       "offset of the local experts is out of range"},
      {[](auto& t) { t["routed_scaling_factor"].dtype = "I32"; }, "is I32, expected F32 or F64"},
      {[](auto& t) {
         t["top_k"] = {"I32", {1}, {4, std::byte{1}}};
       },
       "choices a token"},
  };
  const StoredTensors good = read(kVectors + "small.safetensors");
  for (const Case& c : cases) {
    SCOPED_TRACE(c.says);
    StoredTensors changed = good;
    c.change(changed);
    write(at("in.safetensors"), changed);
    const auto ran = op({"run", "moe_fp8_block_scale", "--inputs", at("in.safetensors"), "--output",
                         at("out.safetensors")});
    EXPECT_EQ(ran.exit_code, 1);
    EXPECT_NE(ran.err.find(c.says), std::string::npos) << ran.err;
    EXPECT_FALSE(fs::exists(at("out.safetensors")));
  }
}

TEST_F(OpCliTest, UsageFaultsExitWithTwo) {
  EXPECT_EQ(op({}).exit_code, 2);
  EXPECT_EQ(op({"run", "no_such_op", "--inputs", "a", "--output", "b"}).exit_code, 2);
  EXPECT_EQ(op({"run", "moe_fp8_block_scale"}).exit_code, 2);
  EXPECT_EQ(op({"bench", "moe_fp8_block_scale", "--hidden", "200"}).exit_code, 2);
  EXPECT_EQ(op({"trace"}).exit_code, 2);
  const auto unknown = op({"run", "moe_fp8_block_scale", "--inputs", kVectors + "small.safetensors",
                           "--output", at("o"), "--kernel", "no_such_row"});
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_NE(unknown.err.find("no_such_row"), std::string::npos) << unknown.err;
}

TEST_F(OpCliTest, ListNamesTheRows) {
  const auto listed = op({"list"});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_NE(listed.out.find("moe_fp8_block_scale_reference"), std::string::npos);
  const Json document = Json::parse(op({"list", "--json"}).out, nullptr, false);
  ASSERT_TRUE(document.is_object());
  const Json& operation = document["operations"][0];
  EXPECT_EQ(operation["name"], "moe_fp8_block_scale");
  for (const Json& row : operation["rows"])
    EXPECT_NE(listed.out.find(row["name"].get<std::string>()), std::string::npos) << row;
}

TEST_F(OpCliTest, ResultsAreOneJsonDocument) {
  const auto ran =
      op({"run", "moe_fp8_block_scale", "--inputs", kVectors + "small.safetensors", "--output",
          at("out.safetensors"), "--kernel", "reference", "--device", "cpu", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const Json run = Json::parse(ran.out, nullptr, false);
  EXPECT_EQ(run["kernel"], "moe_fp8_block_scale_reference");
  EXPECT_EQ(run["tokens"], 6);
  EXPECT_EQ(run["output"], at("out.safetensors"));
  const auto traced = op({"trace", "--dataset", small_tree(), "--iterations", "1", "--threads", "1",
                          "--device", "cpu", "--max-tokens", "7", "--dry-run", "--json"});
  ASSERT_EQ(traced.exit_code, 0) << traced.err;
  const Json trace = Json::parse(traced.out, nullptr, false);
  EXPECT_EQ(trace["passed"], 2);
  ASSERT_EQ(trace["traces"].size(), 2u);
  EXPECT_EQ(trace["traces"][0]["evaluation"]["status"], "PASSED");
}

TEST_F(OpCliTest, BenchReportsTimesBesideTheBounds) {
  const auto ran = op({"bench", "moe_fp8_block_scale", "-T", "1,9", "--experts", "32",
                       "--local-experts", "8", "--hidden", "256", "--intermediate", "128",
                       "--repetitions", "2", "--threads", "1", "--device", "cpu", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const Json json = Json::parse(ran.out, nullptr, false);
  ASSERT_EQ(json["results"].size(), 2u) << ran.out;
  for (const Json& result : json["results"]) {
    const double touched = result["touched_experts"], pairs = result["pairs"];
    EXPECT_GE(pairs, touched);
    EXPECT_DOUBLE_EQ(result["flops"], pairs * 6 * 256 * 128);
    EXPECT_GE(result["bytes"], touched * 3 * 256 * 128);
    EXPECT_GT(result["median_us"], 0);
    EXPECT_EQ(result["samples_us"].size(), 2u);
  }
  EXPECT_GT(json["machine"]["read_gb_s"], 0);
}

TEST_F(OpCliTest, BenchRefusesAnOffsetBehindTheLastExpert) {
  const auto ran = op({"bench", "moe_fp8_block_scale", "-T", "1", "--experts", "32",
                       "--local-experts", "8", "--offset", "25"});
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_NE(ran.err.find("begin at 24 at most"), std::string::npos) << ran.err;
}

TEST_F(OpCliTest, ANumberOfTokensThatIsNamedTwiceIsTimedOnce) {
  const auto ran = op({"bench", "moe_fp8_block_scale", "-T", "1,2,1", "--experts", "16",
                       "--local-experts", "2", "--hidden", "128", "--intermediate", "128",
                       "--repetitions", "2", "--threads", "1", "--device", "cpu", "--json"});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const Json json = Json::parse(ran.out, nullptr, false);
  ASSERT_EQ(json["results"].size(), 2u) << "a record has each name once";
  EXPECT_EQ(json["results"][1]["tokens"], 2);
}

TEST_F(OpCliTest, PeersStandBesideOurTimes) {
  std::ofstream(at("peers.json")) << R"({"device": "another machine", "results": [
      {"name": "peer a", "tokens": 9, "median_us": 1e9},
      {"name": "peer b", "tokens": 10, "median_us": 1}]})";
  std::vector<std::string> arguments = {"bench",
                                        "moe_fp8_block_scale",
                                        "-T",
                                        "1,9",
                                        "--experts",
                                        "32",
                                        "--local-experts",
                                        "8",
                                        "--hidden",
                                        "256",
                                        "--intermediate",
                                        "128",
                                        "--repetitions",
                                        "1",
                                        "--device",
                                        "cpu",
                                        "--peers",
                                        at("peers.json")};
  const auto table = op(arguments);
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_NE(table.out.find("peer a"), std::string::npos) << table.out;
  EXPECT_EQ(table.out.find("peer b"), std::string::npos) << table.out;
  EXPECT_NE(table.err.find("the figures are of another machine"), std::string::npos) << table.err;
  arguments.push_back("--json");
  const auto ran = op(arguments);
  const Json json = Json::parse(ran.out, nullptr, false);
  ASSERT_EQ(json["results"].size(), 2u) << ran.out;
  EXPECT_EQ(json["peers"]["device"], "another machine");
  EXPECT_TRUE(json["results"][0]["peers"].empty());
  const Json& peer = json["results"][1]["peers"][0];
  EXPECT_EQ(peer["name"], "peer a");
  EXPECT_DOUBLE_EQ(peer["ratio"], 1e9 / json["results"][1]["median_us"].get<double>());
  std::ofstream(at("peers.json")) << R"({"device": "x", "results": [{}]})";
  const auto bad = op(arguments);
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.err.find("results[0]: name: is missing"), std::string::npos) << bad.err;
}

TEST_F(OpCliTest, UnknownDevicesAreRefused) {
  const std::string tree = small_tree();
  for (const std::string device : {"cuda:9999", "cuda:x", "gpu"}) {
    const std::vector<std::vector<std::string>> commands = {
        {"run", "moe_fp8_block_scale", "--inputs", kVectors + "small.safetensors", "--output",
         at("out.safetensors"), "--device", device},
        {"bench", "moe_fp8_block_scale", "-T", "1", "--hidden", "128", "--device", device},
        {"trace", "--dataset", tree, "--dry-run", "--device", device}};
    for (const auto& command : commands) {
      const auto ran = op(command);
      EXPECT_EQ(ran.exit_code, device == "cuda:9999" ? 1 : 2) << device;
      // A machine without a GPU says so instead of the index.
      const bool is_named = ran.err.find("--device") != std::string::npos ||
                            (device == "cuda:9999" && ran.err.find("CUDA") != std::string::npos);
      EXPECT_TRUE(is_named) << ran.err;
    }
  }
  EXPECT_FALSE(fs::exists(at("out.safetensors")));
}

TEST_F(OpCliTest, ASampleOfTokensIsSaidToBeOne) {
  const std::string tree = small_tree();
  const auto traced =
      op({"trace", "--dataset", tree, "--iterations", "1", "--threads", "1", "--device", "cpu",
          "--max-tokens", "16", "--author", "me", "--reference-tokens", "10"});
  ASSERT_EQ(traced.exit_code, 0) << traced.out << traced.err;
  const std::string name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e8_h256_i128";
  std::istringstream lines(slurp(tree + "/traces/me/moe/" + name + ".jsonl"));
  int num_samples = 0, num_lines = 0;
  for (std::string line; std::getline(lines, line); ++num_lines) {
    const Json trace = Json::parse(line, nullptr, false);
    const int tokens = trace["workload"]["axes"]["seq_len"];
    const Json& evaluation = trace["evaluation"];
    const std::string log = evaluation["log"];
    const bool says = log.find("10 of " + std::to_string(tokens)) != std::string::npos;
    EXPECT_EQ(says, tokens > 10) << log;
    EXPECT_EQ(evaluation["performance"].contains("speedup_factor"), tokens <= 10);
    num_samples += says;
  }
  EXPECT_EQ(num_lines, 5);
  EXPECT_EQ(num_samples, 3);
}

TEST_F(OpCliTest, ATreeIsJudgedAndTraced) {
  const std::string tree = small_tree();
  const std::string name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e8_h256_i128";
  for (int run = 1; run <= 2; ++run) {
    const auto traced = op({"trace", "--dataset", tree, "--iterations", "1", "--threads", "1",
                            "--device", "cpu", "--max-tokens", "16", "--author", "me"});
    ASSERT_EQ(traced.exit_code, 0) << traced.out << traced.err;
    // T of 7, 1, 16, 15 and 14; 32 is left out, and said to be.
    EXPECT_NE(traced.out.find("5 passed, 0 not, 1 left out"), std::string::npos) << traced.out;
    std::string traces = tree;
    traces.append("/traces/me/moe/").append(name).append(".jsonl");
    std::istringstream lines(slurp(traces));
    int num_lines = 0;
    for (std::string line; std::getline(lines, line); ++num_lines) {
      const Json trace = Json::parse(line, nullptr, false);
      ASSERT_TRUE(trace.is_object()) << line;
      EXPECT_EQ(trace["definition"], name);
      EXPECT_TRUE(trace["workload"]["inputs"].contains("routing_logits"));
      const Json& evaluation = trace["evaluation"];
      EXPECT_EQ(evaluation["status"], "PASSED");
      EXPECT_GE(evaluation["correctness"]["extra"]["matched_ratio"], 0.98);
      EXPECT_GT(evaluation["performance"]["latency_ms"], 0);
      EXPECT_FALSE(evaluation["environment"]["hardware"].get<std::string>().empty());
    }
    EXPECT_EQ(num_lines, 5 * run);
  }
  // The same seed makes the same tree.
  fs::rename(tree, at("first"));
  small_tree();
  const std::string workloads = "/workloads/moe/" + name + ".jsonl";
  EXPECT_EQ(slurp(at("first") + workloads), slurp(tree + workloads));
  const auto again = op({"make-tree", tree});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_NE(again.err.find("is not empty"), std::string::npos) << again.err;
}

TEST_F(OpCliTest, TracesThatCannotBeWrittenAreFoundBeforeAnythingRuns) {
  const std::string tree = small_tree();
  const auto trace = [&](const std::string& author) {
    return op({"trace", "--dataset", tree, "--author", author, "--device", "cpu"});
  };
  for (const char* author : {"../../evil", "", ".."}) {
    const auto traced = trace(author);
    EXPECT_EQ(traced.exit_code, 2) << author;
    EXPECT_NE(traced.err.find("--author"), std::string::npos) << traced.err;
  }
  std::ofstream(tree + "/traces") << "no folder";
  const auto traced = trace("me");
  EXPECT_EQ(traced.exit_code, 1);
  EXPECT_NE(traced.err.find("/traces/me/moe"), std::string::npos) << traced.err;
  EXPECT_EQ(traced.out, "");
}

TEST_F(OpCliTest, ToleranceDecides) {
  const std::string tree = small_tree();
  std::vector<std::string> strict = {"trace", "--dataset",  tree,       "--iterations",
                                     "1",     "--workload", "a7c2bcfd", "--rtol",
                                     "0",     "--atol",     "0",        "--required-matched-ratio",
                                     "1",     "--dry-run",  "--device", "cpu"};
  // To the bit only the reference row itself agrees with the reference.
  auto of_reference = strict;
  of_reference.insert(of_reference.end(), {"--kernel", "reference"});
  EXPECT_EQ(op(of_reference).exit_code, 0);
  std::ofstream(at("eval.json")) << R"({"op_type_config": {"moe": {"rtol": 1, "atol": "x"}}})";
  strict.insert(strict.end(), {"--eval-config", at("eval.json")});
  const auto bad = op(strict);
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.err.find("atol"), std::string::npos) << bad.err;
  EXPECT_FALSE(fs::exists(tree + "/traces"));
}

TEST_F(OpCliTest, AWorkloadThatCannotBeReadHoldsUpNoOther) {
  const std::string tree = small_tree();
  const std::string name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e8_h256_i128";
  const std::string workloads = tree + "/workloads/moe/" + name + ".jsonl";
  std::string text = slurp(workloads);
  const size_t place = text.find("blob/workloads");
  ASSERT_NE(place, std::string::npos);
  std::ofstream(workloads) << text.replace(place, std::strlen("blob/workloads"), "blob/none");
  const auto traced = op({"trace", "--dataset", tree, "--iterations", "1", "--threads", "1",
                          "--max-tokens", "32", "--author", "me", "--device", "cpu"});
  EXPECT_EQ(traced.exit_code, 1);
  EXPECT_NE(traced.err.find("blob/none"), std::string::npos) << traced.err;
  EXPECT_NE(traced.out.find(", 1 not readable"), std::string::npos) << traced.out;
  const std::string traces = slurp(tree + "/traces/me/moe/" + name + ".jsonl");
  EXPECT_GE(std::count(traces.begin(), traces.end(), '\n'), 2) << traced.out;
}

TEST_F(OpCliTest, MalformedTreesFailAndSayWhere) {
  const std::string tree = small_tree();
  const std::string name = "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e8_h256_i128";
  const std::string definition = tree + "/definitions/moe/" + name + ".json";
  const std::string workloads = tree + "/workloads/moe/" + name + ".jsonl";
  const std::string good_definition = slurp(definition), good_workloads = slurp(workloads);
  struct Case {
    std::string file, from, to, says;
  };
  const Case cases[] = {
      {definition, "{", "[", "is not a JSON object"},
      {definition, "\"op_type\": \"moe\"", "\"op_type\": \"../x\"", "no plain name"},
      {definition, "\"op_type\": \"moe\"", "\"op_type\": 3", "op_type"},
      {definition, "\"value\": 256", "\"value\": -256", "expected an integer from 0"},
      {definition, "\"value\": 256", "\"value\": 512", "has shape"},
      {definition, "\"var\"", "\"vary\"", "expected const or var"},
      {workloads, "{", "", ":1: is not a JSON object"},
      {workloads, "./blob", "../blob", "lies outside of the tree"},
      {workloads, "./blob", "/blob", "lies outside of the tree"},
      {workloads, "blob/workloads", "blob/none", "none"},
      {workloads, "\"tensor_key\":\"routing_logits\"", "\"tensor_key\":\"x\"", "has no tensor x"},
      {workloads, "\"seq_len\":7", "\"seq_len\":8", "expected [8, 64]"},
      {workloads, "\"seq_len\":7", "\"seq\":7", "seq_len has no value"},
      {workloads, "\"value\":48", "\"value\":60", "out of range"},
      {workloads, "\"value\":48", "\"value\":true", "has no number"},
      {workloads, "\"type\":\"random\"", "\"type\":\"ones\"", "has type 'ones'"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.from + " -> " + c.to);
    std::ofstream(definition) << good_definition;
    std::ofstream(workloads) << good_workloads;
    std::string text = slurp(c.file);
    const size_t place = text.find(c.from);
    ASSERT_NE(place, std::string::npos);
    std::ofstream(c.file) << text.replace(place, c.from.size(), c.to);
    const auto traced = op(
        {"trace", "--dataset", tree, "--iterations", "1", "--workload", "b8f4f012", "--dry-run"});
    EXPECT_EQ(traced.exit_code, 1) << traced.out;
    EXPECT_NE(traced.err.find(c.says), std::string::npos) << traced.err;
  }
  const auto none = op({"trace", "--dataset", at("no_tree")});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("flashinfer-trace tree"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace moxie
