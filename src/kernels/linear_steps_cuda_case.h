// The fixture that runs CUDA rows of qkv, out, route, experts and unembed on the cases of the CPU's
// tests: it repacks weights value for value, uploads inputs and copies outputs back, so that the
// case compares them with the reference row.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <map>
#include <set>

#include "core/formats.h"
#include "kernels/experts/experts_mx.h"
#include "kernels/gemm/greatest_scales_cuda.h"
#include "kernels/gemm/mma_tiles.h"
#include "kernels/gemm/staged.cuh"
#include "kernels/testing/cuda_test.h"
#include "kernels/testing/fragment_pack.h"
#include "kernels/testing/row_tester.h"

namespace moxie::testing {

inline int32_t same_row(int32_t row) { return row; }

class LinearStepsCuda : public CudaTest {
 protected:
  // A step's rows run in several tests of the suite.
  inline static SuiteRowRuns runs_;
  static void SetUpTestSuite() { runs_.begin(); }
  static void TearDownTestSuite() { runs_.end(); }

  // Device memory of one run: inputs are uploaded, and outputs copied back to the host's array,
  // where the case compares them.
  template <typename T>
  T* in(const T* values, int64_t count) {
    return upload(std::vector<T>(values, values + count));
  }
  template <typename T>
  T* in_out(T* values, int64_t count) {
    T* device_side = in(values, count);
    back_.push_back([=, this] {
      done(device().copy_to_host(values, device_side, static_cast<uint64_t>(count) * sizeof(T),
                                 stream()));
    });
    return device_side;
  }
  // The residual stream, which has two floats a value on CUDA: here a coarse part and a fine part.
  float* x_in(const float* values, int64_t count) {
    if (x_is_single_) return in(values, count);
    std::vector<float> pairs;
    for (int64_t i = 0; i < count; ++i) {
      const float high = std::round(values[i] * 128) / 128;
      pairs.insert(pairs.end(), {high, values[i] - high});
    }
    return upload(pairs);
  }
  float* x_in_out(float* values, int64_t count) {
    float* device_side = x_in(values, count);
    back_.push_back([=, this] { x_back(values, device_side, count); });
    return device_side;
  }
  PackedMatrix in(const PackedMatrix& cpu, DType format,
                  const std::function<int32_t(int32_t)>& source_row = same_row) {
    const auto [at, is_new] = packed_.try_emplace({cpu.data, format});
    if (is_new) {
      const PackedTensor packed = to_fragment(cpu, format, source_row);
      at->second = packed.matrix;
      at->second.data = upload(packed.memory);
    }
    return at->second;
  }

  QkvParams to_device(QkvParams p, DType format) {
    const int64_t tokens = p.batch.num_tokens;
    const auto num_pages = p.batch.num_seqs * p.kv.table_stride;
    p.batch.positions = in(p.batch.positions, tokens);
    p.batch.seq_idx = in(p.batch.seq_idx, tokens);
    p.x = x_in(p.x, tokens * p.hidden);
    p.norm_weight = in(p.norm_weight, p.hidden);
    p.bias = in(p.bias, p.weight.rows);
    const int32_t head_dim = p.head_dim;
    p.weight =
        in(p.weight, format, [head_dim](int32_t row) { return fragment_qkv_row(row, head_dim); });
    p.rotary.table = in(p.rotary.table, int64_t{p.rotary.max_positions} * p.head_dim);
    p.kv.page_table = in(p.kv.page_table, num_pages);
    p.kv.k = in_out(p.kv.k, p.kv.page_stride_bytes * num_pages);
    p.kv.v = in_out(p.kv.v, p.kv.page_stride_bytes * num_pages);
    p.q = in_out(p.q, tokens * p.num_heads * p.head_dim);
    return p;
  }
  OutParams to_device(OutParams p, DType format) {
    p.a = in(p.a, int64_t{p.num_tokens} * p.weight.cols);
    p.bias = in(p.bias, p.weight.rows);
    p.x = x_in_out(p.x, int64_t{p.num_tokens} * p.weight.rows);
    p.weight = in(p.weight, format);
    return p;
  }
  RouteParams to_device(RouteParams p, DType format) {
    const int64_t tokens = p.num_tokens;
    p.x = x_in(p.x, tokens * p.hidden);
    p.norm_weight = in(p.norm_weight, p.hidden);
    p.bias = in(p.bias, p.weight.rows);
    p.weight = in(p.weight, format);
    p.t = in_out(p.t, tokens * p.hidden);
    p.expert_ids = in_out(p.expert_ids, tokens * p.top_k);
    p.expert_weights = in_out(p.expert_weights, tokens * p.top_k);
    return p;
  }
  ExpertsParams to_device(ExpertsParams p, DType format) {
    const int64_t tokens = p.num_tokens, rows = p.gate_up.rows;
    // From the CPU's order of gate and up rows to CUDA's.
    const auto cpu_row = [](int32_t row) {
      return gate_up_packed_row(row / 16 * 8 + row % 8, row % 16 / 8);
    };
    std::vector<float> bias(static_cast<size_t>(p.gate_up.num_experts * rows));
    for (int32_t e = 0; e < p.gate_up.num_experts; ++e) {
      for (int32_t row = 0; row < rows; ++row)
        bias[e * rows + row] = p.gate_up_bias[e * rows + cpu_row(row)];
    }
    p.gate_up_bias = upload(bias);
    p.t = in(p.t, tokens * p.hidden);
    p.expert_ids = in<int32_t>(p.expert_ids, tokens * p.top_k);
    p.expert_weights = in<float>(p.expert_weights, tokens * p.top_k);
    p.down_bias = in(p.down_bias, int64_t{p.down.num_experts} * p.hidden);
    p.gate_up = in(p.gate_up, format, cpu_row);
    p.down = in(p.down, format);
    p.x = x_in_out(p.x, tokens * p.hidden);
    return p;
  }
  UnembedParams to_device(UnembedParams p, DType format) {
    p.x = x_in(p.x, int64_t{p.num_rows + 5} * p.hidden);
    p.row_idx = in(p.row_idx, p.num_rows);
    p.norm_weight = in(p.norm_weight, p.hidden);
    p.logits = in_out(p.logits, int64_t{p.num_rows} * p.weight.rows);
    p.weight = in(p.weight, format);
    return p;
  }

  // Runs a row with exactly the workspace that it asks for, and copies its outputs back.
  template <typename P>
  void run_on_device(const Row<P>& row, P params) {
    const uint64_t bytes = row.workspace(params);
    const DeviceArray workspace = poisoned<std::byte>(bytes);
    params.launch = launch();
    params.launch.workspace = workspace.buffer.data();
    params.launch.workspace_bytes = bytes;
    row.run(params);
    download<std::byte>(workspace);  // checks the guard behind the workspace
    for (const auto& copy : back_) copy();
    back_.clear();
    done(stream().synchronize());
  }

  // The attention's output as gemm/staged.cuh lays it out; rows of padding are NaN.
  const float* staged(const OutParams& p) {
    const int32_t cols = p.weight.cols, capacity = round_up(p.num_tokens, gemm::kStagedRows);
    std::vector<std::byte> bytes(gemm::staged_bytes(capacity, cols), std::byte{0xFF});
    for (int32_t token = 0; token < p.num_tokens; ++token) {
      for (int32_t col = 0; col < round_up(cols, gemm::kStagedColumns); ++col) {
        const float value = col < cols ? p.a[int64_t{token} * cols + col] : 0.0f;
        const uint16_t bits = f32_to_bf16(value);
        const int64_t at = gemm::staged_offset(capacity, token, col / 2 * 2) + col % 2 * 2;
        std::memcpy(&bytes[static_cast<size_t>(at)], &bits, sizeof(bits));
      }
    }
    return reinterpret_cast<const float*>(upload(bytes));
  }

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
            if constexpr (requires { params.activation; }) {
              if (row.activation == DType::kMXFP8) take_mxfp8(params);
            }
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
        params.activation = row.activation;
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
    unstaged.activation = row.activation;
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
    params.activation = row.activation;
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
        if (row.activation == DType::kMXFP8) take_mxfp8(params);
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

  // A row's forms with the given form of x: of every other value the first form that the row takes.
  template <typename P>
  static Forms forms_with(const Row<P>& row, XForm x) {
    Forms forms = first_forms(row);
    forms.x = x;
    return forms;
  }
  // Lets the rows with activations in MXFP8 run.
  static void take_mxfp8(QkvParams& p) { p.activation = DType::kMXFP8; }
  static void take_mxfp8(OutParams& p) { p.activation = DType::kMXFP8; }
  void take_mxfp8(ExpertsParams& p) {
    p.activation = DType::kMXFP8;
    for (PackedMatrix* matrix : {&p.gate_up, &p.down}) {
      if (matrix->format != DType::kMXFP4) continue;
      const auto num_experts = static_cast<size_t>(matrix->num_experts);
      std::vector<gemm::FoldedBlocks> blocks(num_experts);
      std::vector<uint8_t> greatest(16 * num_experts * static_cast<size_t>(matrix->num_tiles()));
      const gemm::GreatestScales step{*matrix, upload(greatest), upload(blocks)};
      gemm::find_greatest_scales(step, &stream());
      in_back(blocks, step.blocks);
      for (const gemm::FoldedBlocks& of_expert : blocks)
        EXPECT_EQ(of_expert.num_cut, 0u) << "of " << of_expert.num_blocks;
      matrix->greatest_scales = step.greatest;
    }
  }

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

  // Values rounded to E4M3 with a power of two of the row.
  static void round_row_to_e4m3(std::vector<float>& row) {
    float greatest = 0;
    for (const float value : row) greatest = std::max(greatest, std::fabs(value));
    if (greatest == 0) return;
    int exponent = 0;
    const float significand = std::frexp(greatest, &exponent);  // 0.5 .. 1
    const float scale = std::ldexp(1.0f, (significand > 0.875f ? 8 : 9) - exponent);
    for (float& value : row) value = e4m3_to_f32(f32_to_e4m3(value * scale)) / scale;
  }
  // W a of each token, of operands rounded as the rows in E4M3 round them. `there`: on the device.
  std::vector<double> rounded_product(const PackedMatrix& there,
                                      std::vector<std::vector<float>> a) {
    std::vector<std::byte> bytes(static_cast<size_t>(there.bytes()));
    in_back(bytes, there.data);
    PackedMatrix weight = there;
    weight.data = bytes.data();
    for (std::vector<float>& token : a) round_row_to_e4m3(token);
    std::vector<double> product(a.size() * static_cast<size_t>(weight.rows));
    for (int32_t row = 0; row < weight.rows; ++row) {
      std::vector<float> w;
      for (int32_t col = 0; col < weight.cols; ++col)
        w.push_back(static_cast<float>(fragment_value(weight, row, col)));
      round_row_to_e4m3(w);
      for (size_t token = 0; token < a.size(); ++token) {
        double& sum = product[token * static_cast<size_t>(weight.rows) + static_cast<size_t>(row)];
        for (size_t col = 0; col < w.size(); ++col) sum += double{w[col]} * double{a[token][col]};
      }
    }
    return product;
  }
  // What is left: sums of 8-bit operands, BF16's rounding of sums, and activations near the middle
  // between two of E4M3's.
  static void expect_close(const char* row, const std::vector<double>& expected,
                           const std::vector<double>& found) {
    double all = 0, error = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      all += expected[i] * expected[i];
      error += (expected[i] - found[i]) * (expected[i] - found[i]);
    }
    const double relative = std::sqrt(error / all);
    std::printf("  %s: error %.2g of the product\n", row, relative);
    EXPECT_LE(relative, 0.01) << row;
  }
  // out without its bias, of values and of staged values.
  void expect_e4m3_is_exact(const OutCase& c) {
    SCOPED_TRACE(c.name());
    const Row<OutParams>& row = row_named<OutParams>("out_any_e4m3_gemm_sm90");
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
  void expect_e4m3_is_exact(const QkvCase& c) {
    SCOPED_TRACE(c.name());
    const Row<QkvParams>& row = row_named<QkvParams>("qkv_any_e4m3_gemm_sm90");
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
  template <typename T>
  void in_back(std::vector<T>& values, const T* device_side) {
    done(device().copy_to_host(values.data(), device_side, values.size() * sizeof(T), stream()));
    done(stream().synchronize());
  }
  void x_back(float* values, const float* device_side, int64_t count) {
    if (x_is_single_) {
      done(device().copy_to_host(values, device_side, static_cast<uint64_t>(count) * sizeof(float),
                                 stream()));
      return;
    }
    std::vector<float> pairs(static_cast<size_t>(2 * count));
    in_back(pairs, device_side);
    for (int64_t i = 0; i < count; ++i) values[i] = pairs[2 * i] + pairs[2 * i + 1];
  }

  void free_case() {
    free_uploads();
    packed_.clear();
  }

  TestMachine machine_;
  std::vector<std::function<void()>> back_;
  // A case's weights on the device, by the CPU's matrix and the format.
  std::map<std::pair<const std::byte*, DType>, PackedMatrix> packed_;
  bool x_is_single_ = false;
};

}  // namespace moxie::testing
