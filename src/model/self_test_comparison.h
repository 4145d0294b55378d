// What a launch of a self-test left, held against the reference rows.
#pragma once

#include <string>
#include <vector>

#include "model/self_test_side.h"

namespace moxie {

/// The row of the reference.
template <typename P>
const Row<P>& reference_row() {
  const std::string name = std::string(Op<P>::info.name) + "_reference";
  for (const Row<P>& row : Op<P>::rows())
    if (name == row.name) return row;
  CHECK(false, name);
  return Op<P>::rows()[0];
}

/// A value of a launch as its row left it and as the reference has it.
struct ComparedValues {
  const char* name;
  int64_t width;  // values a token
  const float *expected, *found;
  int64_t count;
  double rounding = 0;  // share of the greatest expected value
  double relative = 0, absolute = 0;
  /// The residual before the step: `rounding` is then of what was added to it, since the residual
  /// itself would hide much. Additions to it round by `of_residual` of its greatest value.
  const float* residual = nullptr;
  double of_residual = 0;
};

/// Goes behind the rows of a launch: runs the reference row of each step that a row did, compares,
/// and goes on from what was found.
class SelfTestComparison {
 public:
  SelfTestComparison(SelfTestSide& device, SelfTestSide& host, SelfTestOutcome* outcome);

  /// False if there was a fault.
  Result<bool> behind(const PlannedRow& row, size_t l);

  /// Whether the row leaves a value in a plain form, so that it and the rows before answer.
  static bool hands_over(const PlannedRow& row);
  /// From the next row on: what is found is taken for sound unless it is NaN, and no reference row
  /// runs.
  void set_only_follows(bool only_follows) { only_follows_ = only_follows; }

 private:
  bool broken(const Error& error);
  const GptOssConfig& config() const { return host_.config; }
  ThreadPool& pool() const { return *host_.stream.pool; }
  size_t of_width(int32_t width) const { return tokens_ * static_cast<size_t>(width); }

  template <typename P>
  void refer(const P& params);
  template <typename P>
  void run_reference(P params);

  std::vector<std::string> names() const;
  // What the rows round that answer together.
  double roundings() const;
  void compare(const ComparedValues& compared);
  // Values that are not compared again are not NaN, or the rows after could not be compared.
  void expect_written(const ComparedValues& compared);
  ComparedValues compared(const char* name, int32_t width, const float* expected,
                          const std::vector<float>& found, double rounding) const;
  // The rows up to here have answered.
  void settle() { rows_.clear(); }

  Status embed(const PlannedRow& row);
  Status qkv(const PlannedRow& row, size_t l);
  Status attend(const PlannedRow& row, size_t l);
  // A step that adds to x what came through `num_products` products, one behind the other, whose
  // sums in F32 are as `num_sums` of `k` terms.
  template <typename P>
  Status add_to_x(const PlannedRow& row, size_t l, int64_t k, int num_sums, int num_products);
  Status route(const PlannedRow& row, size_t l);
  void compare_choice(RouteParams params, const std::vector<int32_t>& ids, double rounding);
  // Two products in a row; the activation multiplies an error of a gate by u + 1, about 2 in the
  // mean, and the second sum averages it.
  Status experts(const PlannedRow& row, size_t l);
  Status unembed(const PlannedRow&);

  SelfTestSide& device_;
  SelfTestSide& host_;
  SelfTestOutcome* outcome_;
  size_t tokens_;
  std::vector<const PlannedRow*> rows_;  // that have not answered yet
  bool only_follows_ = false;
  std::vector<std::byte> workspace_;
};

}  // namespace moxie
