// Rows that round activations to 8 bits or less, against a computation in double precision with
// operands rounded alike: what remains is what the rows' sums lose.
#pragma once

#include <fmt/format.h>

#include "kernels/experts/experts_mx.h"
#include "kernels/gemm/mma_tiles.h"
#include "kernels/linear_steps_device_case.h"

namespace moxie::testing {

class LinearStepsRounding : public LinearStepsDevice {
 protected:
  // x behind experts whose inputs of both products are rounded as `round` does it, in place: those
  // of a token, and those of a pair. With the same matrices in the device's packing.
  using Rounding = std::function<void(std::vector<float>&)>;
  std::vector<double> rounded_experts(const Built<ExpertsParams>& built, const Rounding& round_t,
                                      const Rounding& round_act) {
    const ExpertsParams& p = built.params;
    std::vector<double> expected(built.initial_x.begin(), built.initial_x.end());
    const ExpertsParams there = to_device(p, DType::kMXFP4);
    std::vector<float> bias(static_cast<size_t>(p.gate_up.num_experts) * p.gate_up.rows);
    in_back(bias, there.gate_up_bias);
    PackedMatrix gate_up = there.gate_up, down = there.down;
    std::vector<std::byte> gate_up_bytes(static_cast<size_t>(gate_up.bytes())),
        down_bytes(static_cast<size_t>(down.bytes()));
    in_back(gate_up_bytes, gate_up.data);
    in_back(down_bytes, down.data);
    gate_up.data = gate_up_bytes.data(), down.data = down_bytes.data();
    const auto dense = [](const PackedMatrix& m, int32_t expert) {
      std::vector<double> values;
      for (int32_t row = 0; row < m.rows; ++row)
        for (int32_t col = 0; col < m.cols; ++col)
          values.push_back(fragment_value(m.expert(expert), row, col));
      return values;
    };
    for (int32_t e = 0; e < p.gate_up.num_experts; ++e) {
      const std::vector<double> w1 = dense(gate_up, e), w2 = dense(down, e);
      for (int64_t pair = 0; pair < int64_t{p.num_tokens} * p.top_k; ++pair) {
        if (p.expert_ids[pair] != e) continue;
        const int64_t token = pair / p.top_k;
        std::vector<float> t(p.t + token * p.hidden, p.t + (token + 1) * p.hidden), made;
        round_t(t);
        const auto row_of = [&](int32_t row) {
          double sum = bias[static_cast<size_t>(e) * gate_up.rows + row];
          for (int32_t col = 0; col < p.hidden; ++col)
            sum += w1[static_cast<size_t>(row) * p.hidden + col] * t[static_cast<size_t>(col)];
          return static_cast<float>(sum);
        };
        for (int32_t i = 0; i < p.intermediate; ++i) {
          made.push_back(clamped_swiglu(row_of(fragment_gate_up_row(i, 0)),
                                        row_of(fragment_gate_up_row(i, 1)), p.swiglu_alpha,
                                        p.swiglu_limit));
        }
        round_act(made);
        for (int32_t row = 0; row < p.hidden; ++row) {
          double sum = p.down_bias[int64_t{e} * p.hidden + row];
          for (int32_t i = 0; i < p.intermediate; ++i)
            sum += w2[static_cast<size_t>(row) * p.intermediate + i] * made[static_cast<size_t>(i)];
          expected[token * p.hidden + row] += p.expert_weights[pair] * sum;
        }
      }
    }
    back_.clear();
    return expected;
  }
  // Runs a row on the case, and compares what it adds to x. `most`: a share of what is added.
  void expect_adds(const Row<ExpertsParams>& row, Built<ExpertsParams>& built,
                   const std::vector<double>& expected, ExpertsParams params, double most) {
    params.forms = forms_with(row, XForm::kF32Pair);
    ASSERT_EQ(why_not(row, params), nullptr) << why_not(row, params);
    run_on_device(row, params);
    double added = 0, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      added += (expected[i] - built.initial_x[i]) * (expected[i] - built.initial_x[i]);
      error += (expected[i] - built.params.x[i]) * (expected[i] - built.params.x[i]);
    }
    const double relative = std::sqrt(error / added);
    std::printf("  %s: error %.2g of what is added\n", row.name, relative);
    EXPECT_LE(relative, most);
    free_case();
  }

  // Activations that E4M3 can hold, and a reference whose SwiGLU outputs are rounded as the row
  // rounds them: the remaining error is that of sums of 8-bit operands.
  void expect_e4m3_is_exact(const ExpertsCase& c) {
    SCOPED_TRACE(c.name());
    Built<ExpertsParams> built = build(c);
    const ExpertsParams& p = built.params;
    auto* t = const_cast<float*>(p.t);
    for (int64_t i = 0; i < int64_t{p.num_tokens} * p.hidden; ++i)
      t[i] = i % p.hidden == 0 ? 2.0f : e4m3_to_f32(f32_to_e4m3(t[i] * 128)) / 128;
    const std::vector<double> expected = rounded_experts(
        built, [](std::vector<float>&) {},
        [](std::vector<float>& made) {
          for (float& value : made) value = e4m3_to_f32(f32_to_e4m3(value * 8)) / 8;
        });
    for (const gemm::E4m3Tile& tile : gemm::kE4m3Tiles) {
      SCOPED_TRACE(gemm::tile_name({tile.rows, tile.columns}));
      built.reset();
      ExpertsParams params = to_device(p, DType::kMXFP4);
      take_mxfp8(params);
      params.tile = {tile.rows, tile.columns};
      // Values near the middle between two E4M3 values are sometimes rounded the other way: some
      // hundredths of 2^-4. Rounding all values would be 2.6% of what is added.
      expect_adds(row_named<ExpertsParams>("experts_mxfp4_e4m3_gemm_sm90"), built, expected, params,
                  0.01);
    }
  }

  // Values rounded to integers of up to 127 of the row; `is_power`: times a power of two.
  static void round_row_to_i8(std::vector<float>& row, bool is_power) {
    float greatest = 0;
    for (const float value : row) greatest = std::max(greatest, std::fabs(value));
    if (greatest == 0) return;
    int exponent = 0;
    std::frexp(greatest, &exponent);  // 0.5 .. 1 times 2^exponent
    const float scale = is_power ? std::ldexp(1.0f, 7 - exponent) : 127.0f / greatest;
    for (float& value : row) value = std::nearbyint(value * scale) / scale;
  }
  // W a of each token, of operands rounded as the rows in integers round them. `there`: on the
  // device.
  std::vector<double> rounded_product(const PackedMatrix& there,
                                      std::vector<std::vector<float>> a) {
    std::vector<std::byte> bytes(static_cast<size_t>(there.bytes()));
    in_back(bytes, there.data);
    PackedMatrix weight = there;
    weight.data = bytes.data();
    for (std::vector<float>& token : a) round_row_to_i8(token, false);
    std::vector<double> product(a.size() * static_cast<size_t>(weight.rows));
    for (int32_t row = 0; row < weight.rows; ++row) {
      std::vector<float> w;
      for (int32_t col = 0; col < weight.cols; ++col)
        w.push_back(static_cast<float>(fragment_value(weight, row, col)));
      round_row_to_i8(w, weight.format == DType::kMXFP4);
      for (size_t token = 0; token < a.size(); ++token) {
        double& sum = product[token * static_cast<size_t>(weight.rows) + static_cast<size_t>(row)];
        for (size_t col = 0; col < w.size(); ++col) sum += double{w[col]} * double{a[token][col]};
      }
    }
    return product;
  }
  // What is left: BF16's rounding of sums, and values near the middle between two integers.
  static void expect_close(const char* row, const std::vector<double>& expected,
                           const std::vector<double>& found) {
    double all = 0, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      all += expected[i] * expected[i];
      error += (expected[i] - found[i]) * (expected[i] - found[i]);
    }
    const double relative = std::sqrt(error / all);
    std::printf("  %s: error %.2g of the product\n", row, relative);
    EXPECT_LE(relative, 0.003) << row;
  }
  // out without its bias, of values and of staged values.
  void expect_i8_is_exact(const OutCase& c) {
    SCOPED_TRACE(c.name());
    const Row<OutParams>& row = row_named<OutParams>("out_any_i8_gemm_sm90");
    Built<OutParams> built = build(c);
    auto* a = const_cast<float*>(built.params.a);
    std::vector<std::vector<float>> tokens;
    for (int32_t token = 0; token < c.tokens; ++token, a += c.cols) {
      // One token in three is much smaller, so that tokens have scales of their own.
      for (int32_t i = 0; i < c.cols; ++i)
        a[i] = bf16_to_f32(f32_to_bf16(a[i] * (token % 3 == 2 ? 0x1p-9f : 1.0f)));
      tokens.emplace_back(a, a + c.cols);
    }
    for (const AForm form : {AForm::kF32, AForm::kBf16Staged}) {
      built.reset();
      OutParams params = to_device(built.params, c.weights);
      if (form == AForm::kBf16Staged) params.a = staged(built.params);
      take_mxfp8(params);
      params.forms = forms_with(row, XForm::kF32Pair);
      params.forms.a = form;
      const std::vector<double> expected = rounded_product(params.weight, tokens);
      ASSERT_EQ(why_not(row, params), nullptr) << why_not(row, params);
      const std::vector<float> before(built.params.x, built.params.x + expected.size());
      run_on_device(row, params);
      std::vector<double> found;
      for (size_t i = 0; i < expected.size(); ++i) {
        found.push_back(double{built.params.x[i]} - double{before[i]} -
                        double{built.params.bias[i % static_cast<size_t>(c.rows)]});
      }
      expect_close(row.name, expected, found);
    }
    free_case();
  }
  // Queries that are not turned, without their bias.
  void expect_i8_is_exact(const QkvCase& c) {
    SCOPED_TRACE(c.name());
    const Row<QkvParams>& row = row_named<QkvParams>("qkv_any_i8_gemm_sm90");
    Built<QkvParams> built = build(c);
    const QkvParams& p = built.params;
    std::vector<std::vector<float>> tokens;
    for (int32_t token = 0; token < c.tokens; ++token) {
      const float* x = p.x + int64_t{token} * p.hidden;
      double squares = 0;
      for (int32_t i = 0; i < p.hidden; ++i) squares += double{x[i]} * double{x[i]};
      const double factor = 1 / std::sqrt(squares / p.hidden + double{p.rms_eps});
      std::vector<float> normed;
      for (int32_t i = 0; i < p.hidden; ++i)
        normed.push_back(static_cast<float>(x[i] * factor * double{p.norm_weight[i]}));
      tokens.push_back(std::move(normed));
    }
    built.reset();
    QkvParams params = to_device(p, c.weights);
    std::vector<float> angles(static_cast<size_t>(p.rotary.max_positions) * p.head_dim);
    for (size_t i = 0; i < angles.size(); ++i)
      angles[i] = i % static_cast<size_t>(p.head_dim) < static_cast<size_t>(p.head_dim / 2) ? 1 : 0;
    params.rotary.table = upload(angles);
    take_mxfp8(params);
    params.forms = forms_with(row, XForm::kF32Pair);
    const std::vector<double> product = rounded_product(params.weight, tokens);
    ASSERT_EQ(why_not(row, params), nullptr) << why_not(row, params);
    run_on_device(row, params);
    std::vector<double> expected, found;
    const int32_t rows = p.num_heads * p.head_dim;
    for (int32_t token = 0; token < c.tokens; ++token) {
      for (int32_t packed = 0; packed < rows; ++packed) {
        const int32_t own = fragment_qkv_row(packed, p.head_dim);
        expected.push_back(product[static_cast<size_t>(token) * params.weight.rows + packed]);
        found.push_back(double{p.q[int64_t{token} * rows + own]} - double{p.bias[own]});
      }
    }
    expect_close(row.name, expected, found);
    free_case();
  }

  // A format of activations, in every tile: what remains is BF16's rounding of each pair's outputs,
  // and values of the second product's inputs near the middle between two of the format's.
  void expect_mx_is_exact(const ExpertsCase& c, DType format) {
    SCOPED_TRACE(c.name() + ", " + std::string(dtype_name(format)));
    const Row<ExpertsParams>& row =
        row_named<ExpertsParams>((features() & kSm120f) != 0 ? "experts_mxfp4_mx_gemm_sm120"
                                                             : "experts_mxfp4_mx_emulated_cuda");
    const Rounding round = [format](std::vector<float>& values) {
      round_row_to_mx(format, values.data(), static_cast<int32_t>(values.size()));
    };
    Built<ExpertsParams> built = build(c);
    const std::vector<double> expected = rounded_experts(built, round, round);
    for (const int32_t columns : gemm::kMmaTileColumns) {
      built.reset();
      ExpertsParams params = to_device(built.params, DType::kMXFP4);
      params.activation = format;
      params.tile.columns = columns;
      expect_adds(row, built, expected, params, format == DType::kMXFP4 ? 0.02 : 0.006);
    }
  }
};

}  // namespace moxie::testing
