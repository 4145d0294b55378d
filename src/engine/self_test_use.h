// `--self-test`: proves the chains of rows that an engine's plans have, before a token is answered.
//
// A chain that this machine has not proven with this binary is run on a small seeded model against
// the reference rows (model/self_test.h), while the weights are loaded. A row that fails is put out
// of the plan, and the next best chain is proven in turn. Results are kept (self_test_file.h), so
// that a second start runs nothing.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/self_test_file.h"
#include "kernels/registry.h"
#include "model/gpt_oss.h"
#include "model/self_test.h"

namespace moxie {

struct SelfTestOptions {
  std::string mode = "off";  ///< auto; off; strict: no engine without proven chains
  std::string file;          ///< empty: default_self_test_path()
  std::string commit;        ///< of this program's sources, for this_binary()
};

/// What became of `--self-test`.
struct SelfTestUse {
  struct Fault : KeptFault {
    bool stays = false;    ///< no other chain of rows can do its step: it is in the plan
    bool is_kept = false;  ///< of an earlier start
  };
  bool is_on = false;
  std::string file;
  double seconds = 0;  ///< that tests took; 0: all was known
  size_t num_chains = 0, num_tested = 0;
  std::vector<Fault> faults;
  std::vector<std::string> untested;  ///< "1 token of one sequence: ROW: why"
  std::set<std::string> planned;      ///< rows of the plans
  std::set<std::string> unproven;     ///< of these, those in a chain that is not proven

  /// Whether the row stands in a chain, and all its chains were proven on this machine. Nothing
  /// without self-test.
  std::optional<bool> proven(const std::string& row) const;
  bool all_proven() const { return unproven.empty(); }
  /// One line for people: "7 chains proven on this machine (in 0.21 s)", "off".
  std::string text() const;
};

struct SelfTestRequest {
  SelfTestOptions options;
  /// Null: nothing is run, and the result is what earlier starts found, for commands that show it.
  Device* device = nullptr;
  const DeviceProperties& properties;  ///< of the device
  const KernelChooser& kernels;
  const GptOssConfig& config;
  const ModelWeights& formats;
  DType kv_dtype = DType::kBF16;
  bool use_sinks = true;
  std::vector<int32_t> taps;
  int32_t max_tokens = 1;  ///< of a launch
  GptOss::RowCosts costs;  ///< of a tuning; null: none
  uint64_t workspace_bytes = UINT64_MAX;
};

struct SelfTestResult {
  SelfTestUse use;
  KernelChoice choice;  ///< without the rows that are out
};

/// Says every fault in a loud line. Fails if a row has broken the device, and with strict if a
/// chain is not proven.
Result<SelfTestResult> run_self_test(const SelfTestRequest& request);

/// Tokens of the launches in which chains for many tokens are proven: on the CPU, on CUDA, and
/// where a row wants many tokens an expert.
inline constexpr int32_t kSelfTestTokens = 17, kSelfTestCudaTokens = 37, kSelfTestGroupTokens = 150;

}  // namespace moxie
