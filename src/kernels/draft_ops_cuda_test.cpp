// The CUDA rows of rms_norm, gate and rotate, and the products that overwrite, against the
// reference rows, on the cases of the CPU's tests.
#include "kernels/linear_steps_cuda_case.h"
#include "kernels/testing/op_testers.h"

namespace moxie::testing {
namespace {

class DraftOpsCuda : public LinearStepsCuda {
 protected:
  // Runs each CUDA row on the params that to_device() makes. The exponential of gate has 2^-21.
  template <typename Case, typename ToDevice>
  void expect_agree(const Case& c, ToDevice&& to_device) {
    using P = typename Case::Params;
    SCOPED_TRACE(c.name());
    Built<P> built = build(c);
    const std::string reference = std::string(Op<P>::info.name) + "_reference";
    std::vector<Output> expected = run_row(built, row_named<P>(reference), machine_);
    for (Output& output : expected) output.rounding += 0x1p-20;
    int num_rows = 0;
    for (const Row<P>& row : Op<P>::rows()) {
      if (row.device != DeviceKind::kCuda || (row.needs & ~features()) != 0) continue;
      built.reset();
      const P params = to_device(built.params);
      ASSERT_EQ(row.refuses(params), nullptr);
      run_on_device(row, params);
      expect_near(expected, built.outputs(), row.name);
      runs_->ran(row.name);
      ++num_rows;
    }
    EXPECT_GT(num_rows, 0);
    free_case();
  }

  void expect_norms_agree(const RmsNormCase& c, XForm x_form, XForm y_form) {
    expect_agree(c, [&](RmsNormParams p) {
      const int64_t x_values = p.num_tokens * p.x_stride, y_values = p.num_tokens * p.y_stride;
      if (p.weight != nullptr) p.weight = in(p.weight, p.width);
      x_is_single_ = x_form == XForm::kF32;
      p.x = x_in(p.x, x_values);
      x_is_single_ = y_form == XForm::kF32;
      float* const host_y = p.y;
      p.y = x_in(p.y, y_values);
      back_.push_back([this, host_y, device_y = p.y, y_values, is_single = x_is_single_] {
        x_is_single_ = is_single;
        x_back(host_y, device_y, y_values);
      });
      p.forms.x = x_form;
      p.y_form = y_form;
      return p;
    });
  }
};

TEST_F(DraftOpsCuda, RmsNormAgreesWithTheReference) {
  std::vector<RmsNormCase> cases = OpTester<RmsNormCase>::plain_cases();
  cases.push_back({.tokens = 10, .width = 2880, .gap = 2880});
  cases.push_back({.tokens = 3, .width = 14400});
  cases.push_back({.tokens = 9, .width = 2880, .is_copy = true});
  for (const RmsNormCase& c : cases) {
    if (c.tokens == 0) continue;
    for (const XForm x : {XForm::kF32, XForm::kF32Pair}) {
      for (const XForm y : {XForm::kF32, XForm::kF32Pair}) expect_norms_agree(c, x, y);
    }
  }
}

TEST_F(DraftOpsCuda, GateAgreesWithTheReference) {
  std::vector<GateCase> cases = OpTester<GateCase>::plain_cases();
  cases.push_back({.tokens = 10, .width = 7680});
  for (const GateCase& c : cases) {
    if (c.tokens == 0) continue;
    expect_agree(c, [&](GateParams p) {
      p.gate_up = in(p.gate_up, int64_t{2} * p.num_tokens * p.width);
      p.y = in_out(p.y, int64_t{p.num_tokens} * p.width);
      return p;
    });
  }
}

TEST_F(DraftOpsCuda, RotateAgreesWithTheReference) {
  std::vector<RotateCase> cases = OpTester<RotateCase>::plain_cases();
  for (const int32_t head_dim : {64, 128, 256})
    cases.push_back(
        {.tokens = 10, .heads = 16, .kv_heads = 2, .head_dim = head_dim, .norms = true});
  for (const RotateCase& c : cases) {
    expect_agree(c, [&](RotateParams p) {
      const int64_t tokens = p.batch.num_tokens;
      const int64_t num_pages = int64_t{p.batch.num_seqs} * p.kv.table_stride;
      p.batch.positions = in(p.batch.positions, tokens);
      p.batch.seq_idx = in(p.batch.seq_idx, tokens);
      p.qkv = in<float>(p.qkv, tokens * p.row_stride());
      if (p.q_norm != nullptr) p.q_norm = in(p.q_norm, p.head_dim);
      if (p.k_norm != nullptr) p.k_norm = in(p.k_norm, p.head_dim);
      p.rotary.table = in(p.rotary.table, int64_t{p.rotary.max_positions} * p.head_dim);
      p.kv.page_table = in(p.kv.page_table, num_pages);
      p.kv.k = in_out(p.kv.k, p.kv.page_stride_bytes * num_pages);
      p.kv.v = in_out(p.kv.v, p.kv.page_stride_bytes * num_pages);
      if (p.q != nullptr) p.q = in_out(p.q, tokens * p.num_heads * p.head_dim);
      return p;
    });
  }
}

TEST_F(DraftOpsCuda, OutOverwritesWhatWasThere) {
  std::vector<OutCase> cases;
  for (const DType weights : {DType::kBF16, DType::kMXFP4}) {
    for (const int32_t tokens : {1, 2, 4, 7, 10, 40}) {
      cases.push_back({.tokens = tokens, .rows = 100, .cols = 160, .weights = weights});
      cases.push_back({.tokens = tokens, .rows = 64, .cols = 2880, .weights = weights});
      cases.push_back({.tokens = tokens, .rows = 48, .cols = 14400, .weights = weights});
    }
  }
  for (OutCase& c : cases) {
    c.overwrites = true;
    SCOPED_TRACE(c.name());
    Built<OutParams> built = build(c);
    std::vector<Output> expected = run_row(built, row_named<OutParams>("out_reference"), machine_);
    int num_rows = 0;
    for (const Row<OutParams>& row : Op<OutParams>::rows()) {
      if (row.device != DeviceKind::kCuda || (row.needs & ~features()) != 0) continue;
      built.reset();
      x_is_single_ = true;
      OutParams params = to_device(built.params, c.weights);
      params.forms = forms_with(row, XForm::kF32);
      if (row.refuses(params) != nullptr) {  // split_cuda: other columns
        back_.clear();
        continue;
      }
      std::vector<Output> allowed = expected;
      for (Output& output : allowed) output.rounding += kSplitRounding + activation_rounding(row);
      run_on_device(row, params);
      expect_near(allowed, built.outputs(), row.name);
      runs_->ran(row.name);
      ++num_rows;
    }
    EXPECT_GE(num_rows, 1);
    free_case();
  }
}

}  // namespace
}  // namespace moxie::testing
