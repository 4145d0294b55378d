// The self-test of rows on this machine: runs the rows of a plan on a small seeded model, each in
// its place, and compares all that they hand over with the reference rows.
//
// The reference rows compute on the CPU, from what the rows before have left on the device, so that
// a row answers for itself alone. Where a value is handed over in a form that only its row's
// neighbours can read (staged, folded), the rows up to the next plain value answer together.
//
//   auto test = SelfTest::create({.device = device, .kernels = kernels, ...});
//   auto outcome = (*test)->run(plan, {.num_tokens = 5, .num_seqs = 1});
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/device.h"
#include "kernels/sample/sample.h"
#include "model/gpt_oss.h"
#include "model/self_test_model.h"

namespace moxie {

/// A row's outputs leave the tolerance, or it cannot run at all.
struct SelfTestFault {
  std::vector<std::string> rows;  ///< one of them is at fault; mostly there is one
  std::string what;
  double times = 0;            ///< the tolerance; infinity: NaN, or it did not run
  bool breaks_device = false;  ///< the device reports an error: nothing runs on it any more
};

struct SelfTestOutcome {
  std::optional<SelfTestFault> fault;  ///< the first
  /// The worst share of the tolerance that a row's outputs took, by row.
  std::map<std::string, double> shares;
  std::string refusal;  ///< a row refuses the small model: nothing ran
};

/// A launch of as many sequences, which share the tokens.
struct SelfTestLaunch {
  int32_t num_tokens = 1, num_seqs = 1;
  std::string text() const;  ///< "5 tokens of one sequence"
};

struct SelfTestSetup {
  Device& device;
  Features features = kFeatureNone;
  KernelChoice choice;
  const GptOssConfig& config;   ///< of the real model
  const ModelWeights& formats;  ///< of the real model; data is not read
  DType kv_dtype = DType::kBF16;
  bool use_sinks = true;
  TestSizes sizes = TestSizes::kNarrow;
  int32_t max_tokens = 37;  ///< of a launch
  /// A row that was found sound is not compared again in the same place, forms, tile and launch: in
  /// later plans it runs, and the rows after it are compared from what it left.
  bool compares_once = false;
};

struct SelfTestSide;

class SelfTest {
 public:
  /// `host` is a CPU device for the reference rows; all that `setup` refers to must outlive it.
  static Result<std::unique_ptr<SelfTest>> create(const SelfTestSetup& setup, Device& host);
  ~SelfTest();
  SelfTest(const SelfTest&) = delete;

  /// Runs the rows of a plan of the real model in a launch of the test model; taps are left out.
  /// At most SelfTestSetup::max_tokens tokens. Fails only for want of memory.
  Result<SelfTestOutcome> run(const PassPlan& plan, const SelfTestLaunch& launch);
  /// Draws from seeded logits of this many ids. `all_plain`: as SampleParams.
  Result<SelfTestOutcome> draw(const Row<SampleParams>& row, int32_t vocab, bool all_plain);

 private:
  explicit SelfTest(const SelfTestSetup& setup, Device& host);
  Status make();

  SelfTestSetup setup_;
  Device& host_;
  std::unique_ptr<Stream> stream_, host_stream_;
  KernelChooser kernels_;
  SelfTestModel model_;
  std::unique_ptr<SelfTestSide> device_side_, host_side_;
  std::set<std::string> sound_;  // rows and places, as text
};

}  // namespace moxie
