// A small model whose sizes every row accepts, the list of pairs, and what their logits may be off.
#include "model/testing/row_pairs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "kernels/testing/row_tester.h"
#include "model/checkpoint.h"
#include "model/eight_bits_cuda.h"
#include "model/testing/files.h"
#include "model/testing/planned_passes.h"

namespace moxie::testing {
namespace {

// Heads of 64, 8 to a KV head, a hidden size of whole slices of 192. Every token takes all experts:
// what a row rounds turns no choice, so that logits are smooth in it.
GptOssConfig pairs_config() {
  GptOssConfig config{.num_layers = 2,
                      .hidden = 192,
                      .intermediate = 64,
                      .num_heads = 8,
                      .num_kv_heads = 1,
                      .num_experts = 4,
                      .top_k = 4,
                      .vocab = 160,
                      .sliding_window = 20};
  config.is_window = {1, 0};
  return config;
}
// The sizes of gpt-oss outside of the experts, for rows that take no others.
GptOssConfig wide_config() {
  GptOssConfig config = pairs_config();
  config.hidden = 2880, config.num_heads = 64, config.num_kv_heads = 8;
  return config;
}

// In the order in which pairs are looked for. Eight tokens first: most rows take any number, and
// those for few tokens a launch are the ones whose kernels overlap. Some rows take one token alone;
// with x in one float those of experts want more tokens an expert than a narrow tile has. A cache
// in E4M3, which hides the most, is for the rows that take no other.
std::vector<PassSetting> settings() {
  constexpr std::pair<int32_t, int32_t> kLaunches[] = {{8, 2}, {1, 1}, {40, 2}, {150, 2}};
  std::vector<PassSetting> all;
  for (const char* activation : {"int8", "mxfp8"})
    for (const DType kv_dtype : {DType::kF32, DType::kBF16})
      for (const auto& [num_tokens, num_seqs] : kLaunches)
        all.push_back({kv_dtype, num_tokens, num_seqs, activation});
  for (const auto& [num_tokens, num_seqs] : kLaunches)
    all.push_back({DType::kF8E4M3, num_tokens, num_seqs, "int8"});
  return all;
}

// A row's rounding: the share of its outputs' greatest by which they may be off (row_rounding.h).
// For rows that are not listed there: a chain of n sums in F32 is off by 2 sqrt(n) 2^-24, of the 32
// products of a block and of 16 blocks by less than 2^-20. On CUDA activations are two parts of
// BF16, which leaves 2^-17 of each; the greatest of thousands of outputs is some deviations out.
double rounding_of(const PlannedRow& row) {
  const double unlisted = row.row.device == DeviceKind::kCpu ? 0x1p-20 : 0x1p-15;
  return std::max(activation_rounding(row.row.name), unlisted);
}

// "a -> b, x f32, l1 shared, q bf16_staged": all that tells a pair from others.
std::string name_of(const PlannedRow& a, const PlannedRow& b) {
  std::string name = fmt::format("{} -> {}, x {}, l1 {}", a.row.name, b.row.name,
                                 kXFormNames[static_cast<size_t>(a.forms.x)],
                                 kL1FormNames[static_cast<size_t>(a.forms.l1)]);
  for (const auto& [value, form] : forms_at(b, true))
    if (value != std::string_view("x")) name += fmt::format(", {} {}", value, form);
  return name;
}

// The plan in which `a` stands before `b` wherever both can. In all other places it has the rows
// that round the least, and of those that round as much the first of the table: on the CPU the
// reference.
Result<PassPlan> plan_of_pair(const Pass& pass, const KernelChooser& kernels, const PlannedRow& a,
                              const PlannedRow& b) {
  constexpr double kNever = std::numeric_limits<double>::infinity(), kInTheirPlace = 1e6;
  const auto shares_step = [](const PlannedRow& one, const PlannedRow& other) {
    return std::ranges::find_first_of(one.row.ops, other.row.ops) != one.row.ops.end();
  };
  const auto cost = [&](const PlannedRow& row) {
    if (row.forms.x != a.forms.x || row.forms.l1 != a.forms.l1) return kNever;
    const bool is_one =
        (row.entry == a.entry && can_meet(row, b)) || (row.entry == b.entry && can_meet(a, row));
    const bool is_other = !is_one && (shares_step(row, a) || shares_step(row, b));
    return rounding_of(row) + (is_other ? kInTheirPlace : 0);
  };
  return make_plan(pass, kernels, {}, {.cost = cost});
}

// Rows in the order in which a pass runs them.
std::vector<const PlannedRow*> rows_in_order(const PassPlan& plan) {
  std::vector<const PlannedRow*> rows{&plan.embed};
  for (size_t l = 0; l < plan.chain_of_layer.size(); ++l)
    for (const PlannedRow& row : plan.layer(l)) rows.push_back(&row);
  rows.push_back(&plan.unembed);
  return rows;
}

// How far logits may be from the reference's, as a share of the greatest. Each row's outputs are
// off by its rounding, as a share of their greatest, and are summed up in x; every step divides by
// the norm of what it reads, so that what is off goes on as the same share of its outputs. To first
// order the shares add up. A cache in BF16 rounds K and V, which were off by less, by 2^-9 to
// another side, one in E4M3 by 2^-4.
double tolerance_of(const std::vector<const PlannedRow*>& rows, DType kv_dtype) {
  double sum = kv_dtype == DType::kF32 ? 0 : kv_dtype == DType::kBF16 ? 0x1p-9 : 0x1p-4;
  for (const PlannedRow* row : rows) sum += rounding_of(*row);
  return sum;
}

// The greatest difference as a share of the greatest expected value; NaN is infinite.
double greatest_share(const std::vector<float>& found, const std::vector<float>& expected) {
  CHECK(found.size() == expected.size());
  double greatest = 0, worst = 0;
  for (const float value : expected) greatest = std::fmax(greatest, std::fabs(value));
  for (size_t i = 0; i < found.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(found[i]) - expected[i]);
    if (!(difference <= worst)) worst = std::isnan(difference) ? INFINITY : difference;
  }
  return worst / greatest;
}

// The pairs of a device over all settings.
class RowPairs {
 public:
  RowPairs(Device& device, Features features) : device_(device), features_(features) {}

  void load(const GptOssConfig& config, bool is_mxfp4) {
    const std::string path = (fresh_folder() / "config.json").string();
    write(path, config_json(config));
    checkpoint_ = take(open_checkpoint("synthetic:" + path));
    const LoadOptions options{.mxfp4_layers = {is_mxfp4, is_mxfp4, is_mxfp4},
                              .show_progress = false};
    cpu_weights_ = take(checkpoint_->load(*machine_.device, options));
    weights_ = take(checkpoint_->load(device_, options));
    if (device_.kind() != DeviceKind::kCpu)
      done(add_eight_bits_cuda(device_, *take(device_.make_stream()), weights_));
  }

  // Tests the pairs that can meet in this setting and have not met in one before.
  void test(const PassSetting& setting) {
    PlannedPasses passes(device_, features_, checkpoint_->config(), weights_, setting,
                         choice_of(setting), rounding_of);
    // As if the device had all features.
    const KernelChooser able(device_.kind(), ~Features{0}, choice_of(setting));
    std::vector<float> expected;
    for (size_t l = 0; l < weights_.layers.size(); ++l) {
      const auto rows = rows_for_plan(passes.pass(), able, l);
      for (const PlannedRow& a : rows) {
        for (const PlannedRow& b : rows) {
          if (!can_meet(a, b)) continue;
          ops_.insert({&a.row.op(), &b.row.op()});
          const std::string name = name_of(a, b);
          if (const Features missing = (a.row.needs | b.row.needs) & ~features_; missing != 0) {
            left_out_.insert(name);
            missing_ |= missing;
          } else if (!met_.contains(name)) {
            if (expected.empty()) expected = reference_logits(setting);
            meet(passes, setting, a, b, name, expected);
          }
        }
      }
    }
  }

  void finish() const {
    std::printf("  %zu pairs of rows met, %zu of rows that this machine cannot run left out (%s)\n",
                met_.size(), left_out_.size(), feature_names(missing_).c_str());
    std::printf("  worst: %.2f of its tolerance, %s\n", worst_, worst_name_.c_str());
    EXPECT_FALSE(met_.empty()) << "no pair was found";
    for (const auto& [name, why] : not_met_) ADD_FAILURE() << name << " never met: " << why;
    for (const RowInfo& row : all_rows()) {
      if (!ops_.contains(&row.op()) || row.device != device_.kind()) continue;
      if ((row.needs & ~features_) != 0) continue;
      // Of several ranks: they exchange parts of x.
      if (std::ranges::find(row.ops, &Op<ReduceParams>::info) != row.ops.end()) continue;
      EXPECT_TRUE(rows_met_.contains(row.name)) << row.name << " stands in no pair: it refuses "
                                                << "every setting of this test";
    }
  }

 private:
  static KernelChoice choice_of(const PassSetting& setting) {
    KernelChoice choice;
    done(choice.set_activation(setting.activation));
    return choice;
  }

  std::vector<float> reference_logits(const PassSetting& setting) {
    KernelChoice choice;
    done(choice.add("all=reference"));
    PlannedPasses reference(*machine_.device, cpu_features(), checkpoint_->config(), cpu_weights_,
                            setting, choice, {});
    return reference.logits(take(make_plan(reference.pass(), reference.kernels())));
  }

  void meet(PlannedPasses& passes, const PassSetting& setting, const PlannedRow& a,
            const PlannedRow& b, const std::string& name, const std::vector<float>& expected) {
    const auto plan = plan_of_pair(passes.pass(), passes.kernels(), a, b);
    if (!plan) {
      not_met_.emplace(name, plan.error().message());
      return;
    }
    const auto order = rows_in_order(*plan);
    const auto at = std::ranges::adjacent_find(order, [&](const auto* one, const auto* next) {
      return one->entry == a.entry && next->entry == b.entry && name_of(*one, *next) == name;
    });
    if (at == order.end()) {
      not_met_.emplace(name, "no chain holds both");
      return;
    }
    const double share =
        greatest_share(passes.logits(*plan), expected) / tolerance_of(order, setting.kv_dtype);
    EXPECT_LE(share, 1) << name << ": logits are off by so much of the tolerance, "
                        << setting.num_tokens << " tokens, cache " << dtype_name(setting.kv_dtype);
    if (share > worst_) worst_ = share, worst_name_ = name;
    met_.insert(name);
    not_met_.erase(name);
    rows_met_.insert({a.row.name, b.row.name});
  }

  TestMachine machine_;  // runs the reference
  Device& device_;
  Features features_, missing_ = kFeatureNone;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelWeights cpu_weights_, weights_;
  std::set<std::string> met_, left_out_, rows_met_;
  std::map<std::string, std::string> not_met_;
  std::set<const OpInfo*> ops_;
  double worst_ = 0;
  std::string worst_name_;
};

}  // namespace

void test_row_pairs(Device& device, Features features) {
  RowPairs pairs(device, features);
  for (const GptOssConfig& config : {pairs_config(), wide_config()}) {
    for (const bool is_mxfp4 : {true, false}) {
      pairs.load(config, is_mxfp4);
      for (const PassSetting& setting : settings()) pairs.test(setting);
    }
  }
  pairs.finish();
}

}  // namespace moxie::testing
