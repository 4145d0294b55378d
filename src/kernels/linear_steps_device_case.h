// What tests of CUDA rows of qkv, out, route, experts and unembed need of the device: they repack
// weights value for value, upload inputs and copy outputs back into the case of the CPU's tests.
#pragma once

#include <functional>
#include <map>

#include "core/formats.h"
#include "kernels/gemm/greatest_scales_cuda.h"
#include "kernels/gemm/i8_weights_cuda.h"
#include "kernels/gemm/staged.cuh"
#include "kernels/testing/cuda_test.h"
#include "kernels/testing/fragment_pack.h"
#include "kernels/testing/row_tester.h"

namespace moxie::testing {

inline int32_t same_row(int32_t row) { return row; }

class LinearStepsDevice : public CudaTest {
 protected:
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

  // A row's forms with the given form of x: of every other value the first form that the row takes.
  template <typename P>
  static Forms forms_with(const Row<P>& row, XForm x) {
    Forms forms = first_forms(row);
    forms.x = x;
    return forms;
  }
  // What a row needs whose activations are not those of the params.
  template <typename P>
  void take_activation_of(const Row<P>& row, P& params) {
    if constexpr (requires { params.activation; }) {
      if (row.activation == DType::kMXFP8) take_mxfp8(params);
    }
  }
  // Lets the rows with activations in MXFP8 run.
  void take_mxfp8(QkvParams& p) { take_integers(p); }
  void take_mxfp8(OutParams& p) { take_integers(p); }
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

  template <typename P>
  void take_integers(P& p) {
    p.activation = DType::kMXFP8;
    PackedMatrix& matrix = p.weight;
    const uint64_t bytes = gemm::i8_weights_bytes(matrix);
    if ((features() & kSm90a) == 0 || bytes == 0) return;
    gemm::lay_weights_i8(matrix, upload(std::vector<std::byte>(bytes)), &stream());
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
