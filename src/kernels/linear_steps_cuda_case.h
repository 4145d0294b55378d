// The fixture that runs CUDA rows of qkv, out, route, experts and unembed on the cases of the CPU's
// tests, so that the case compares their outputs with the reference row.
#pragma once

#include <fmt/format.h>

#include <set>

#include "kernels/linear_steps_rounding_case.h"

namespace moxie::testing {

class LinearStepsCuda : public LinearStepsRounding {
 protected:
  // A step's rows run in several tests of the suite.
  inline static SuiteRowRuns runs_;
  static void SetUpTestSuite() { runs_.begin(); }
  static void TearDownTestSuite() { runs_.end(); }

  template <typename Case>
  void expect_rows_agree(Case c) {
    using P = typename Case::Params;
    const DType format = c.weights;
    if (format == DType::kMXFP8) c.weights = DType::kF32;
    Built<P> built = build(c);
    if (format == DType::kMXFP8)
      for (PackedTensor& tensor : built.weights) round_to_mxfp8(tensor);
    const std::string reference = std::string(Op<P>::info.name) + "_reference";
    std::vector<Output> expected = run_row(built, row_named<P>(reference), machine_);
    for (Output& output : expected) {
      if (std::string(output.name) != "expert_ids" && std::string(output.name) != "t")
        output.rounding += kSplitRounding;
    }
    int num_rows = 0;
    for (const Row<P>& row : Op<P>::rows()) {
      if (row.device != DeviceKind::kCuda) continue;
      if (const Features missing = row.needs & ~features(); missing != 0) {
        runs_->cannot_run(row.name, missing);
        continue;
      }
      if (!row.covers.empty()) continue;  // expect_folded_route_agrees()
      built.reset();
      P params = to_device(built.params, format);
      params.forms = forms_with(row, XForm::kF32Pair);
      if constexpr (requires { params.activation; }) {
        // The case's tolerance is for the requested activations; E4M3 has a greater one.
        if (row.activation == DType::kMXFP8) {
          EXPECT_NE(row.refuses(params), nullptr) << row.name << " without MXFP8 asked for";
          take_mxfp8(params);
        }
      }
      if (const char* why = why_not(row, params)) {
        runs_->refused(row.name, why);
        back_.clear();
        continue;
      }
      runs_->ran(row.name);
      ++num_rows;
      std::vector<Output> allowed = expected;
      for (Output& output : allowed) output.rounding += activation_rounding(row);
      run_on_device(row, params);
      expect_near(allowed, built.outputs(), std::string(row.name) + " on " + c.name());
      if constexpr (requires { params.forms; }) {
        if (row.forms.x.has(XForm::kF32)) {
          params.forms.x = XForm::kF32;
          // Some rows take two floats a value only: each step has one that takes single floats, on
          // sm_90a.
          const std::string single = std::string(Op<P>::info.name) + ", x single";
          if (const char* why = row.refuses(params)) {
            if ((features() & kSm90a) != 0) runs_->refused(single, why);
            back_.clear();
          } else {
            runs_->ran(single);
            x_is_single_ = true;
            built.reset();
            params = to_device(built.params, format);
            params.forms = forms_with(row, XForm::kF32);
            take_activation_of(row, params);
            run_on_device(row, params);
            expect_near(allowed, built.outputs(),
                        std::string(row.name) + ", x single, on " + c.name());
            if constexpr (std::is_same_v<P, ExpertsParams>)
              expect_x_overwritten(row, built, params, allowed, c);
            x_is_single_ = false;
          }
        }
      }
      if constexpr (std::is_same_v<P, QkvParams>) {
        if (row.forms.q.has(QForm::kBf16Staged)) expect_staged_queries(row, built, format);
      }
      if constexpr (std::is_same_v<P, RouteParams>) {
        if (row.forms.t.has(TForm::kAbsent)) expect_t_is_left(row, built, expected);
      }
      if constexpr (std::is_same_v<P, OutParams>) {
        if (!row.forms.a.has(AForm::kBf16Staged)) continue;
        built.reset();
        params = to_device(built.params, format);
        params.a = staged(built.params);
        params.forms = forms_with(row, XForm::kF32Pair);
        params.forms.a = AForm::kBf16Staged;
        take_activation_of(row, params);
        run_on_device(row, params);
        expect_near(allowed, built.outputs(), std::string(row.name) + ", staged, on " + c.name());
      }
    }
    EXPECT_GT(num_rows, 0) << c.name();
    free_case();
  }

  // The same in x that holds nothing: tokens whose experts are not held get 0.
  void expect_x_overwritten(const Row<ExpertsParams>& row, Built<ExpertsParams>& built,
                            ExpertsParams params, const std::vector<Output>& allowed,
                            const ExpertsCase& c) {
    const int64_t count = int64_t{params.num_tokens} * params.hidden;
    std::fill_n(built.params.x, count, NAN);
    params.x = x_in_out(built.params.x, count);
    params.overwrites = true;
    run_on_device(row, params);
    for (int64_t i = 0; i < count; ++i)
      built.params.x[i] += built.initial_x[static_cast<size_t>(i)];
    expect_near(allowed, built.outputs(),
                std::string(row.name) + ", x overwritten, on " + c.name());
  }

  // Compares the queries that the row wrote in BF16 with q times a factor.
  void expect_staged_queries(const Row<QkvParams>& row, Built<QkvParams>& built, DType format) {
    built.reset();
    QkvParams unstaged = to_device(built.params, format);
    unstaged.forms.x = XForm::kF32Pair;
    take_activation_of(row, unstaged);
    run_on_device(row, unstaged);
    const QkvParams& p = built.params;
    const auto count = static_cast<size_t>(p.num_heads) * p.head_dim * p.batch.num_tokens;
    const std::vector<float> found(p.q, p.q + count);
    built.reset();
    QkvParams params = to_device(p, format);
    std::vector<uint16_t> staged(2 * count, 0xFFFF);  // the second half stays unwritten
    params.q = reinterpret_cast<float*>(upload(staged));
    params.forms = {.x = XForm::kF32Pair, .q = QForm::kBf16Staged};
    params.q_factor = 0.18f;
    take_activation_of(row, params);
    run_on_device(row, params);
    in_back(staged, reinterpret_cast<const uint16_t*>(params.q));
    size_t num_wrong = 0;
    for (size_t i = 0; i < count; ++i)
      num_wrong += staged[i] != f32_to_bf16(found[i] * params.q_factor) ? 1 : 0;
    for (size_t i = count; i < staged.size(); ++i) num_wrong += staged[i] != 0xFFFF ? 1 : 0;
    EXPECT_EQ(num_wrong, 0u) << "of " << count << " staged queries";
  }
  // Expects the same choice, and t unchanged.
  void expect_t_is_left(const Row<RouteParams>& row, Built<RouteParams>& built,
                        std::vector<Output> expected) {
    built.reset();
    const RouteParams& p = built.params;
    const std::vector<float> before(static_cast<size_t>(p.num_tokens) * p.hidden, 0.25f);
    std::copy(before.begin(), before.end(), p.t);
    RouteParams params = to_device(p, DType::kBF16);
    params.forms = {.x = XForm::kF32Pair, .t = TForm::kAbsent};
    run_on_device(row, params);
    for (Output& output : expected) {
      if (std::string(output.name) == "t") output.values.assign(before.begin(), before.end());
      output.rounding += activation_rounding(row);
    }
    expect_near(expected, built.outputs(), std::string(row.name) + " without t");
  }

  // Rows of experts that compute their input from x. Adds the names of those that take the case.
  void expect_normed_experts_agree(const ExpertsCase& c, std::set<std::string>* ran) {
    SCOPED_TRACE(c.name());
    Built<ExpertsParams> built = build(c);
    ExpertsParams& p = built.params;
    p.rms_eps = 1e-5f;
    std::vector<float> weight, t;
    for (int32_t i = 0; i < c.hidden; ++i)
      weight.push_back(0.5f + static_cast<float>(i % 17) / 16.0f);
    for (int32_t token = 0; token < c.tokens; ++token) {
      const float* x = &built.initial_x[static_cast<size_t>(token) * c.hidden];
      double squares = 0;
      for (int32_t i = 0; i < c.hidden; ++i) squares += static_cast<double>(x[i]) * x[i];
      const double factor = 1 / std::sqrt(squares / c.hidden + static_cast<double>(p.rms_eps));
      for (int32_t i = 0; i < c.hidden; ++i)
        t.push_back(static_cast<float>(x[i] * factor * weight[i]));
    }
    const float* const drawn = std::exchange(p.t, t.data());
    const std::vector<Output> expected =
        run_row(built, row_named<ExpertsParams>("experts_reference"), machine_);
    for (const Row<ExpertsParams>& row : Op<ExpertsParams>::rows()) {
      const char* const name = row.name;
      if (row.device != DeviceKind::kCuda || !row.forms.t.has(TForm::kAbsent)) continue;
      if ((row.needs & ~features()) != 0) continue;
      std::vector<Output> allowed = expected;
      for (Output& output : allowed) output.rounding += kSplitRounding + activation_rounding(row);
      for (const bool is_single : {false, true}) {
        x_is_single_ = is_single;
        built.reset();
        p.t = drawn;  // which no row reads
        ExpertsParams params = to_device(p, DType::kMXFP4);
        params.forms = {.x = is_single ? XForm::kF32 : XForm::kF32Pair, .t = TForm::kAbsent};
        if (!row.forms.x.has(params.forms.x)) {
          back_.clear();
          continue;
        }
        params.norm_weight = upload(weight);
        take_activation_of(row, params);
        const std::string run = std::string(name) + " of x" + (is_single ? ", single" : "");
        if (const char* why = row.refuses(params)) {
          runs_->refused(run, why);
          back_.clear();
          continue;
        }
        runs_->ran(run);
        ran->insert(name);
        run_on_device(row, params);
        expect_near(allowed, built.outputs(), std::string(name) + " of x, " + c.name());
      }
      x_is_single_ = false;
    }
    free_case();
  }

  struct FoldCase {
    int32_t tokens, hidden, experts, top_k;
    bool splits_columns = false;  // out by gemv/split_gemv.cuh
  };
  void expect_folded_route_agrees(const FoldCase& c) {
    SCOPED_TRACE(fmt::format("{} tokens, hidden {}, {} experts, top {}", c.tokens, c.hidden,
                             c.experts, c.top_k));
    const DType out_format = c.splits_columns ? DType::kMXFP4 : DType::kBF16;
    Built<OutParams> out = build(OutCase{.tokens = c.tokens,
                                         .rows = c.hidden,
                                         .cols = c.splits_columns ? 4096 : 256,
                                         .weights = out_format});
    Built<RouteParams> route = build(RouteCase{.tokens = c.tokens,
                                               .hidden = c.hidden,
                                               .experts = c.experts,
                                               .top_k = c.top_k,
                                               .weights = DType::kBF16});
    Built<ExpertsParams> experts = build(ExpertsCase{.tokens = c.tokens,
                                                     .hidden = c.hidden,
                                                     .intermediate = 320,
                                                     .experts = c.experts,
                                                     .top_k = c.top_k,
                                                     .weights = DType::kMXFP4});
    // The device runs first: the reference writes over the case's x.
    const OutParams out_there = to_device(out.params, out_format);
    const RouteParams route_there = to_device(route.params, DType::kBF16);
    ExpertsParams experts_there = to_device(experts.params, DType::kMXFP4);
    back_.clear();
    std::vector<float> x(static_cast<size_t>(c.tokens) * c.hidden);
    std::vector<int32_t> ids(static_cast<size_t>(c.tokens) * c.top_k);
    std::vector<float> weights(ids.size());
    const std::vector<float> none(static_cast<size_t>(2 * c.tokens) *
                                  words_of_token(c.experts, c.top_k));
    float* sums[2] = {upload(none), upload(std::vector<float>(none.size(), 1.0f))};
    const RouteFold fold{
        .top_k = c.top_k,
        .rms_eps = route.params.rms_eps,
        .norm_weight = route_there.norm_weight,
        .weight = route_there.weight,
        .bias = route_there.bias,
        .sums = sums[0],
        .next_sums = sums[1],
        .squares = upload(std::vector<float>(x.size() / 16)),
        .parts = reinterpret_cast<std::byte*>(upload(std::vector<float>(x.size()))),
        .experts_format = experts_there.gate_up.format};
    OutParams out_folded = out_there;
    out_folded.launch = launch();
    out_folded.fold = fold;
    out_folded.forms = {.x = XForm::kF32Pair, .router = RouterForm::kSums, .l1 = L1Form::kL1};
    experts_there.launch = launch();
    experts_there.fold = fold;
    experts_there.forms = out_folded.forms;
    experts_there.t = nullptr;
    experts_there.x = out_there.x;
    const KernelChooser chooser(DeviceKind::kCuda, features(), {});
    const auto out_row = chooser.select(out_folded);
    const auto experts_row = chooser.select(experts_there);
    ASSERT_TRUE(out_row.has_value() && experts_row.has_value());
    EXPECT_EQ((*experts_row)->covers.front(), &Op<RouteParams>::info);
    (*out_row)->run(out_folded);
    run_on_device(**experts_row, experts_there);
    x_back(x.data(), out_there.x, static_cast<int64_t>(x.size()));
    in_back(ids, experts_there.expert_ids);
    in_back(weights, experts_there.expert_weights);
    std::vector<float> cleared(none.size());
    in_back(cleared, sums[1]);
    EXPECT_EQ(cleared, none) << "the next layer's sums";

    run_row(out, row_named<OutParams>("out_reference"), machine_);
    route.params.x = out.params.x;
    run_row(route, row_named<RouteParams>("route_reference"), machine_);
    experts.initial_x.assign(out.params.x, out.params.x + x.size());
    experts.params.t = route.params.t;
    experts.params.expert_ids = route.params.expert_ids;
    experts.params.expert_weights = route.params.expert_weights;
    run_row(experts, row_named<ExpertsParams>("experts_reference"), machine_);
    for (size_t i = 0; i < ids.size(); ++i) {
      ASSERT_EQ(ids[i], route.params.expert_ids[i]) << "choice " << i;
      ASSERT_NEAR(weights[i], route.params.expert_weights[i], 1e-4) << "choice " << i;
    }
    double greatest = 0;
    for (size_t i = 0; i < x.size(); ++i)
      greatest = std::max(greatest, std::abs(static_cast<double>(experts.params.x[i])));
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_NEAR(x[i], experts.params.x[i], greatest * 0x1p-12) << "output " << i;
    free_case();
  }
};

}  // namespace moxie::testing
