// Times the CUDA rows at gpt-oss shapes on random weights in the memory of one GPU: each step alone
// with a cold L2 (a graph that goes through the weights of all layers), and the chain of all steps,
// as shares of the read bandwidth measured in the same run. `experts` has the choice given,
// `routed` makes it too, from what `out` leaves, as in the chain.
//
//   moxie_gpu_step_bench [--model 120b|20b] [--dense mxfp4|bf16|mxfp8] [--tokens N] [--depth N]
//                        [--prompt N] [--layers N] [--repeat N] [--x single|pairs]
//                        [--activation NAME] [--tile NAME] [--kernel STEP=NAME]...
//
// --tokens: so many sequences of one token each; --prompt: one sequence of so many tokens; --x: the
// residual stream in one float a value, which rows for many tokens take, or in two.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "core/cuda_launch.cuh"
#include "core/formats.h"
#include "kernels/attend/attend.h"
#include "kernels/experts/experts.h"
#include "kernels/gemm/i8_weights_cuda.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/route/route.h"
#include "kernels/unembed/unembed.h"

namespace moxie {
namespace {

__host__ __device__ inline uint32_t hash(uint64_t i) {
  i = (i ^ (i >> 31)) * 0x9E3779B97F4A7C15ull;
  i = (i ^ (i >> 29)) * 0xBF58476D1CE4E5B9ull;
  return static_cast<uint32_t>(i >> 32);
}

struct FillParams {
  uint32_t* data;
  int64_t num_words;
  uint32_t keep, add;  // word = hash & keep, plus add
  uint32_t seed;
  // Of each unit_words the first code_words; the others are scales, E8M0 codes near 2^-11.
  uint32_t unit_words, code_words;
};
__global__ void fill_words(const __grid_constant__ FillParams p) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.num_words; i += stride) {
    const uint32_t word = hash(i + (static_cast<uint64_t>(p.seed) << 40));
    p.data[i] = i % p.unit_words < p.code_words ? (word & p.keep) + p.add
                                                : (word & 0x03030303u) + 0x73737373u;
  }
}
struct FloatParams {
  float* data;
  int64_t count;
  float scale, offset;
  uint32_t seed;
};
__global__ void fill_floats(const __grid_constant__ FloatParams p) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < p.count; i += stride) {
    const float u = static_cast<float>(hash(i + (static_cast<uint64_t>(p.seed) << 40))) * 0x1p-31f;
    p.data[i] = (u - 1.0f) * p.scale + p.offset;
  }
}
struct ReadParams {
  const uint4* data;
  int64_t count;
  uint32_t* sink;
};
__global__ void __launch_bounds__(512) read_all(const __grid_constant__ ReadParams p) {
  uint32_t sum = 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  for (; i + 3 * stride < p.count; i += 4 * stride) {
    const uint4 a = p.data[i], b = p.data[i + stride], c = p.data[i + 2 * stride],
                d = p.data[i + 3 * stride];
    sum += a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^
           d.w;
  }
  if (sum == 0x12345678u) *p.sink = sum;
}

template <typename T>
T must(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().message().c_str());
    std::exit(1);
  }
  return std::move(*result);
}
void must(Status status) {
  if (!status) {
    std::fprintf(stderr, "%s\n", status.error().message().c_str());
    std::exit(1);
  }
}
void must(cudaError_t error) { must(cuda_check(error, "bench")); }

struct Options {
  int layers = 36, experts = 128, tokens = 1, depth = 2048, repeat = 20;
  bool is_prompt = false, x_is_single = false;
  DType dense = DType::kMXFP4;
  KernelChoice choice;
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : o_(options),
        device_(must(make_cuda_device(0))),
        stream_(must(device_->make_stream())),
        native_(launch_stream(stream_.get())),
        chooser_(DeviceKind::kCuda, cuda_features(device_->properties().compute_capability),
                 options.choice) {
    for (int i = 0; i < o_.layers; ++i) layers_.push_back(make_layer());
    head_ = matrix(o_.dense, 1, 201088, kHidden);
    final_norm_ = floats(kHidden, 0.3f, 1.0f);
    const int64_t t = o_.tokens;
    x_ = floats(t * kHidden * kFloatsOfCudaX, 1, 0), q_ = floats(t * 4096, 1, 0),
    a_ = floats(t * 4096, 1, 0);
    t_ = floats(t * kHidden, 1, 0), logits_ = floats(num_rows() * 201088, 1, 0);
    expert_weights_ = floats(t * 4, 0, 0.25f);
    first_x_bytes_ = static_cast<uint64_t>(t * kHidden * kFloatsOfCudaX) * 4;
    first_x_ = floats(t * kHidden * kFloatsOfCudaX, 1, 0);
    for (float*& of_turn : route_sums_)
      of_turn = floats(t * words_of_token(o_.experts, 4) * 2, 0, 0);
    route_squares_ = floats(t * kHidden / 16, 0, 16);  // as of an x of ones
    rotary_ = floats(max_positions() * 64, 1, 0);
    ids_ = reinterpret_cast<int32_t*>(allocate(16 * t));
    std::vector<int32_t> positions, seqs, rows, offsets{0}, table;
    const int num_seqs = o_.is_prompt ? 1 : o_.tokens;
    const int pages = static_cast<int>(max_positions()) / 16 + 1;
    for (int i = 0; i < o_.tokens; ++i) {
      positions.push_back(o_.is_prompt ? o_.depth + i : o_.depth);
      seqs.push_back(o_.is_prompt ? 0 : i);
      batch_.num_visible_keys += positions.back() + 1;
    }
    for (int i = 0; i < num_seqs; ++i) {
      offsets.push_back(o_.is_prompt ? o_.tokens : i + 1);
      rows.push_back(offsets.back() - 1);
      for (int page = 0; page < pages; ++page) table.push_back(i * pages + page);
    }
    batch_.num_tokens = o_.tokens, batch_.num_seqs = num_seqs;
    batch_.positions = upload(positions), batch_.seq_idx = upload(seqs);
    batch_.row_offsets = upload(offsets);
    logit_rows_ = upload(rows);
    table_ = upload(table);
    table_stride_ = pages;
    std::vector<float> sums;
    for (Layer& layer : layers_) {
      layer.kv = {.page_stride_bytes = 8 * 16 * 64 * 2,
                  .page_table = table_,
                  .table_stride = pages,
                  .page_tokens = 16,
                  .dtype = DType::kBF16};
      const int64_t bytes = layer.kv.page_stride_bytes * pages * num_seqs;
      layer.kv.k = words(bytes, 0x807F807Fu, 0x3F803F80u - 0x00800080u * 4);
      layer.kv.v = words(bytes, 0x807F807Fu, 0x3F803F80u - 0x00800080u * 4);
      std::vector<int32_t> ids;
      for (int i = 0; i < o_.tokens; ++i) {
        while (static_cast<int>(ids.size()) < 4 * (i + 1)) {
          const auto id = static_cast<int32_t>(hash(++ids_seed_) % o_.experts);
          if (std::find(ids.begin() + 4 * i, ids.end(), id) == ids.end()) ids.push_back(id);
        }
      }
      std::vector<int32_t> all = ids;
      std::sort(all.begin(), all.end());
      distinct_ +=
          static_cast<double>(std::unique(all.begin(), all.end()) - all.begin()) / o_.layers;
      layer.ids = upload(ids);
      if (o_.is_prompt) continue;
      // Sums of the router's products that choose them.
      const size_t of_token = 2 * static_cast<size_t>(words_of_token(o_.experts, 4));
      std::vector<float> of_layer(of_token * static_cast<size_t>(o_.tokens));
      for (size_t i = 0; i < ids.size(); ++i)
        of_layer[i / 4 * of_token + 2 * static_cast<size_t>(ids[i])] =
            10.0f - 0.1f * static_cast<float>(i % 4);
      sums.insert(sums.end(), of_layer.begin(), of_layer.end());
    }
    if (!o_.is_prompt) first_sums_ = upload(sums), sums_ = upload(sums);
    floats_of_sums_ = sums.size();
    Layer& l = layers_[0];
    const auto ask = [&](const auto& params) {
      if (const auto row = chooser_.select(params))
        workspace_bytes_ = std::max(workspace_bytes_, (*row)->workspace(params));
    };
    ask(qkv(l)), ask(attend(l, false)), ask(attend(l, true)), ask(out(l)), ask(route(l));
    ask(experts(l, l.ids)), ask(unembed());
    workspace_ = allocate(static_cast<int64_t>(workspace_bytes_) + 256);
    must(stream_->synchronize());
  }

  void run() {
    measure_bandwidth();
    std::printf("%-10s %10s %10s %10s %8s %8s\n", "step", "MB", "us", "limit us", "share",
                "TFLOPS");
    const auto each = [&](const char* name, const std::function<Work(Layer&)>& launch) {
      Work work;
      const double us = time([&] {
        work = {};
        for (Layer& layer : layers_) add(work, launch(layer));
      });
      work.bytes /= o_.layers, work.flops /= o_.layers;
      report(name, work, us / o_.layers);
    };
    each("qkv", [&](Layer& l) { return run_step(qkv(l)); });
    each("attend", [&](Layer& l) { return has_attend() ? run_step(attend(l, false)) : Work{}; });
    each("window", [&](Layer& l) { return has_attend() ? run_step(attend(l, true)) : Work{}; });
    each("out", [&](Layer& l) { return run_step(out(l)); });
    each("route", [&](Layer& l) { return run_step(route(l)); });
    each("experts", [&](Layer& l) { return run_step(experts(l, l.ids)); });
    if (can_fold()) {
      fill(reinterpret_cast<std::byte*>(t_), int64_t{o_.tokens} * kHidden * 4, 0x807F807Fu,
           0x3C003C00u);  // parts of BF16
      each("routed", [&](Layer& l) {
        // Each replay begins with sums as `out` leaves them, in one copy for all layers.
        if (&l == layers_.data())
          must(device_->copy_on_device(sums_, first_sums_, floats_of_sums_ * 4, *stream_));
        ExpertsParams of_experts = experts(l, l.ids);
        of_experts.fold = fold(l, 0);
        of_experts.forms.router = RouterForm::kSums;
        const auto layer = static_cast<size_t>(&l - layers_.data());
        of_experts.fold.sums = sums_ + layer * (floats_of_sums_ / layers_.size());
        return run_step(of_experts);
      });
    }
    // Of several launches, like the others: the start of a graph is no part of a step. The head is
    // many times the L2, so that each finds it cold.
    constexpr int kHeadLaunches = 8;
    Work work;
    double us = time([&] {
      for (int i = 0; i < kHeadLaunches; ++i) work = run_step(unembed());
    });
    report("unembed", work, us / kHeadLaunches);
    us = time([&] {
      work = {};
      bool window = true;
      int nth = 0;
      // The same start every time: what a token chooses depends on its x.
      must(device_->copy_on_device(x_, first_x_, first_x_bytes_, *stream_));
      for (Layer& l : layers_) {
        add(work, run_step(qkv(l)));
        if (has_attend()) add(work, run_step(attend(l, window)));
        OutParams of_out = out(l);
        RouteParams of_route = route(l);
        ExpertsParams of_experts = experts(l, l.ids);  // the share of distinct experts is known
        const bool folds = can_fold();
        if (folds) {
          of_out.fold = of_experts.fold = fold(l, nth++ % 2);
          of_out.forms.router = of_experts.forms.router = RouterForm::kSums;
        }
        add(work, run_step(of_out));
        add(work, folds ? work_of(of_route) : run_step(of_route));
        add(work, run_step(of_experts));
        window = !window;
      }
      add(work, run_step(unembed()));
    });
    report("chain", work, us);
    std::printf("chain: %.1f steps/s, %.1f tok/s, limit %.1f\n", 1e6 / us, o_.tokens * 1e6 / us,
                o_.tokens * read_gb_s_ * 1e9 / work.bytes);
  }

 private:
  static constexpr int kHidden = 2880;
  int64_t num_rows() const { return o_.is_prompt ? 1 : o_.tokens; }
  int64_t max_positions() const { return o_.depth + 64 + (o_.is_prompt ? o_.tokens : 0); }
  struct Layer {
    PackedMatrix qkv, out, router, gate_up, down;
    float *input_norm, *post_norm, *qkv_bias, *out_bias, *router_bias, *gate_up_bias, *down_bias,
        *sinks;
    KvLayer kv;
    int32_t* ids;
  };

  std::byte* allocate(int64_t bytes) {
    buffers_.push_back(must(device_->allocate(static_cast<uint64_t>(bytes))));
    return buffers_.back().data();
  }
  std::byte* words(int64_t bytes, uint32_t keep, uint32_t add) {
    std::byte* data = allocate(bytes);
    fill(data, bytes, keep, add);
    return data;
  }
  void fill(std::byte* data, int64_t bytes, uint32_t keep, uint32_t add, int unit_bytes = 4,
            int code_bytes = 4) {
    launch_kernel(
        "fill", fill_words,
        FillParams{reinterpret_cast<uint32_t*>(data), bytes / 4, keep, add, ++seed_,
                   static_cast<uint32_t>(unit_bytes / 4), static_cast<uint32_t>(code_bytes / 4)},
        dim3(2048), 256, 0, native_);
  }
  float* floats(int64_t count, float scale, float offset) {
    auto* data = reinterpret_cast<float*>(allocate(count * 4));
    launch_kernel("fill", fill_floats, FloatParams{data, count, scale, offset, ++seed_}, dim3(512),
                  256, 0, native_);
    return data;
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    auto* data = reinterpret_cast<T*>(allocate(static_cast<int64_t>(values.size() * sizeof(T))));
    must(device_->copy_from_host(data, values.data(), values.size() * sizeof(T), *stream_));
    must(stream_->synchronize());
    return data;
  }
  PackedMatrix matrix(DType format, int experts, int rows, int cols) {
    PackedMatrix m{.format = format,
                   .layout = PackedLayout::kFragment16x32,
                   .num_experts = experts,
                   .rows = rows,
                   .cols = cols};
    std::byte* data = allocate(m.bytes());
    m.data = data;
    if (format == DType::kBF16) {
      fill(data, m.bytes(), 0x807F807Fu, 0x3C003C00u);
      return m;
    }
    for (int e = 0; e < experts; ++e) {
      // E4M3 has no infinities but a NaN: its exponents are kept below the top.
      fill(data + e * m.expert_bytes(), m.units_bytes(),
           format == DType::kMXFP8 ? 0xBFBFBFBFu : ~0u, 0, m.unit_bytes(), m.unit_code_bytes());
    }
    return m;
  }
  void fold(PackedMatrix& m) {
    // fill() makes scales of 0x73 to 0x76.
    const size_t rows =
        static_cast<size_t>(m.num_experts) * static_cast<size_t>(m.num_tiles()) * 16;
    m.greatest_scales = upload(std::vector<uint8_t>(rows, 0x76));
  }
  void lay(PackedMatrix& m) {
    gemm::lay_weights_i8(m, allocate(static_cast<int64_t>(gemm::i8_weights_bytes(m))),
                         stream_.get());
  }
  Layer make_layer() {
    Layer l{};
    l.qkv = matrix(o_.dense, 1, 5120, kHidden), l.out = matrix(o_.dense, 1, kHidden, 4096);
    l.router = matrix(DType::kBF16, 1, o_.experts, kHidden);
    l.gate_up = matrix(DType::kMXFP4, o_.experts, 5760, kHidden);
    l.down = matrix(DType::kMXFP4, o_.experts, kHidden, kHidden);
    if (o_.choice.activation() == DType::kMXFP8)
      fold(l.gate_up), fold(l.down), lay(l.qkv), lay(l.out);
    l.input_norm = floats(kHidden, 0.3f, 1), l.post_norm = floats(kHidden, 0.3f, 1);
    l.qkv_bias = floats(5120, 0.5f, 0), l.out_bias = floats(kHidden, 0.1f, 0);
    l.router_bias = floats(o_.experts, 0.01f, 0), l.sinks = floats(64, 1, 0);
    l.gate_up_bias = floats(int64_t{o_.experts} * 5760, 0.1f, 0);
    l.down_bias = floats(int64_t{o_.experts} * kHidden, 0.1f, 0);
    return l;
  }

  Launch launch() {
    return {.device = DeviceKind::kCuda,
            .stream = stream_.get(),
            .workspace = workspace_,
            .workspace_bytes = workspace_bytes_,
            .l1 = forms().l1};
  }
  // As the plans of such launches have them.
  Forms forms() const {
    if (stages()) {
      return {
          .x = XForm::kF32, .q = QForm::kBf16Staged, .a = AForm::kBf16Staged, .t = TForm::kAbsent};
    }
    const bool loads_to_registers =
        o_.tokens == 1 ? o_.dense == DType::kMXFP4 : o_.tokens <= 16 && !o_.is_prompt;
    return {.x = o_.x_is_single ? XForm::kF32 : XForm::kF32Pair,
            .l1 = loads_to_registers ? L1Form::kL1 : L1Form::kShared};
  }
  // The forms of the values that a step reads or leaves: its rows know no others.
  template <typename... Members>
  Forms forms_of(Members... members) const {
    const Forms all = forms();
    Forms chosen{.l1 = all.l1};
    ((chosen.*members = all.*members), ...);
    return chosen;
  }
  // Prompts whose rows take x in one float stage q and a for one another, as the engine has them.
  bool stages() const { return o_.is_prompt && o_.x_is_single; }
  QkvParams qkv(Layer& l) {
    return {.launch = launch(),
            .batch = batch_,
            .hidden = kHidden,
            .num_heads = 64,
            .num_kv_heads = 8,
            .head_dim = 64,
            .x = x_,
            .norm_weight = l.input_norm,
            .weight = l.qkv,
            .bias = l.qkv_bias,
            .rotary = {.table = rotary_, .max_positions = static_cast<int32_t>(max_positions())},
            .kv = l.kv,
            .q = q_,
            .q_factor = AttendParams{}.q_factor(),
            .reduce = {},
            .forms = forms_of(&Forms::x, &Forms::q),
            .activation = o_.choice.activation()};
  }
  AttendParams attend(Layer& l, bool window) {
    return {.launch = launch(),
            .batch = batch_,
            .num_heads = 64,
            .num_kv_heads = 8,
            .head_dim = 64,
            .window = window ? 128 : 0,
            .q = q_,
            .kv = l.kv,
            .sinks = l.sinks,
            .a = a_,
            .forms = forms_of(&Forms::q, &Forms::a)};
  }
  OutParams out(Layer& l) {
    return {.launch = launch(),
            .num_tokens = o_.tokens,
            .a = a_,
            .weight = l.out,
            .bias = l.out_bias,
            .x = x_,
            .fold = {},
            .forms = forms_of(&Forms::x, &Forms::a),
            .activation = o_.choice.activation()};
  }
  RouteParams route(Layer& l) {
    return {.launch = launch(),
            .num_tokens = o_.tokens,
            .hidden = kHidden,
            .top_k = 4,
            .x = x_,
            .norm_weight = l.post_norm,
            .weight = l.router,
            .bias = l.router_bias,
            .t = t_,
            .expert_ids = ids_,
            .expert_weights = expert_weights_,
            .forms = forms_of(&Forms::x, &Forms::t)};
  }
  RouteFold fold(Layer& l, int turn) {
    return {.top_k = 4,
            .norm_weight = l.post_norm,
            .weight = l.router,
            .bias = l.router_bias,
            .sums = route_sums_[turn],
            .next_sums = route_sums_[1 - turn],
            .squares = route_squares_,
            .parts = reinterpret_cast<std::byte*>(t_),
            .experts_format = l.gate_up.format};
  }
  ExpertsParams experts(Layer& l, int32_t* ids) {
    return {.launch = launch(),
            .num_tokens = o_.tokens,
            .hidden = kHidden,
            .intermediate = kHidden,
            .top_k = 4,
            .t = t_,
            .norm_weight = l.post_norm,
            .expert_ids = ids,
            .expert_weights = expert_weights_,
            .gate_up = l.gate_up,
            .gate_up_bias = l.gate_up_bias,
            .down = l.down,
            .down_bias = l.down_bias,
            .x = x_,
            .pairs = {},
            .fold = {},
            .reduce = {},
            .forms = forms_of(&Forms::x, &Forms::t),
            .activation = o_.choice.activation(),
            .tile = o_.choice.tile()};
  }
  bool can_fold() {
    ExpertsParams params = experts(layers_[0], layers_[0].ids);
    params.fold = fold(layers_[0], 0);
    params.forms.router = RouterForm::kSums;
    return chooser_.select(params).has_value();
  }
  UnembedParams unembed() {
    return {.launch = launch(),
            .num_rows = static_cast<int32_t>(num_rows()),
            .hidden = kHidden,
            .row_idx = logit_rows_,
            .x = x_,
            .norm_weight = final_norm_,
            .weight = head_,
            .logits = logits_,
            .forms = forms_of(&Forms::x)};
  }
  Work work_of(const QkvParams& p) { return Op<QkvParams>::work(p); }
  Work work_of(const OutParams& p) { return Op<OutParams>::work(p); }
  Work work_of(const RouteParams& p) { return Op<RouteParams>::work(p); }
  Work work_of(const UnembedParams& p) { return Op<UnembedParams>::work(p); }
  Work work_of(const ExpertsParams& p) {
    return experts_work(p, static_cast<int>(distinct_ + 0.5));
  }
  static void add(Work& sum, const Work& work) {
    sum.bytes += work.bytes;
    sum.flops += work.flops;
  }
  Work work_of(const AttendParams& p) {
    if (o_.is_prompt) return Op<AttendParams>::work(p);
    const double keys = p.window > 0 ? std::min(p.window, o_.depth + 1) : o_.depth + 1;
    return {.bytes = o_.tokens * keys * 8 * 64 * 2 * 2.0};
  }
  bool has_attend() { return chooser_.select(attend(layers_[0], false)).has_value(); }
  template <typename P>
  Work run_step(const P& params) {
    chooser_.run(params);
    return work_of(params);
  }

  // Microseconds of one replay of what `record` launches: the median of several.
  double time(const std::function<void()>& record) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    must(cudaStreamBeginCapture(native_, cudaStreamCaptureModeThreadLocal));
    record();
    must(cudaStreamEndCapture(native_, &graph));
    must(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    std::vector<double> all;
    for (int i = 0; i < o_.repeat + 3; ++i) {
      must(cudaEventRecord(begin, native_));
      must(cudaGraphLaunch(exec, native_));
      must(cudaEventRecord(end, native_));
      must(stream_->synchronize());
      float ms = 0;
      must(cudaEventElapsedTime(&ms, begin, end));
      if (i >= 3) all.push_back(ms * 1e3);
    }
    must(cudaGraphExecDestroy(exec));
    must(cudaGraphDestroy(graph));
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }
  void measure_bandwidth() {
    const int64_t bytes = int64_t{4} << 30;
    Buffer buffer = must(device_->allocate(bytes));
    fill(buffer.data(), bytes, ~0u, 0);
    const ReadParams read{reinterpret_cast<const uint4*>(buffer.data()), bytes / 16,
                          reinterpret_cast<uint32_t*>(logits_)};
    const double us =
        time([&] { launch_kernel("read", read_all, read, dim3(132 * 16), 512, 0, native_); });
    read_gb_s_ = bytes / us / 1e3;
    std::printf("%s, read %.0f GB/s, %d tokens, depth %d, dense %s, %.1f distinct experts\n",
                device_->properties().name.c_str(), read_gb_s_, o_.tokens, o_.depth,
                std::string(dtype_name(o_.dense)).c_str(), distinct_);
  }
  void report(const char* name, const Work& work, double us) const {
    const double limit = work.bytes / read_gb_s_ / 1e3;
    std::printf("%-10s %10.2f %10.2f %10.2f %7.1f%% %8.1f\n", name, work.bytes / 1e6, us, limit,
                100 * limit / us, work.flops / us / 1e6);
  }

  Options o_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  cudaStream_t native_;
  KernelChooser chooser_;
  std::vector<Buffer> buffers_;
  std::vector<Layer> layers_;
  PackedMatrix head_;
  float *final_norm_, *x_, *q_, *a_, *t_, *logits_, *expert_weights_, *rotary_, *route_sums_[2],
      *route_squares_, *first_x_;
  float *first_sums_ = nullptr, *sums_ = nullptr;  // [layers, tokens, words] of two floats
  uint64_t first_x_bytes_ = 0, floats_of_sums_ = 0;
  std::byte* workspace_ = nullptr;
  uint64_t workspace_bytes_ = 0;
  int32_t *logit_rows_, *table_, *ids_ = nullptr;
  int table_stride_;
  Ragged batch_;
  uint32_t seed_ = 0;
  uint64_t ids_seed_ = 0;
  double distinct_ = 0, read_gb_s_ = 0;
};

}  // namespace
}  // namespace moxie

int main(int argc, char** argv) {
  using namespace moxie;
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--model") {
      if (value == "20b") options.layers = 24, options.experts = 32;
    } else if (flag == "--dense") {
      options.dense = value == "bf16"    ? DType::kBF16
                      : value == "mxfp8" ? DType::kMXFP8
                                         : DType::kMXFP4;
    } else if (flag == "--tokens") {
      options.tokens = std::atoi(argv[i + 1]);
    } else if (flag == "--prompt") {
      options.tokens = std::atoi(argv[i + 1]), options.is_prompt = true;
    } else if (flag == "--layers") {
      options.layers = std::atoi(argv[i + 1]);
    } else if (flag == "--depth") {
      options.depth = std::atoi(argv[i + 1]);
    } else if (flag == "--repeat") {
      options.repeat = std::atoi(argv[i + 1]);
    } else if (flag == "--kernel") {
      must(options.choice.add(value));
    } else if (flag == "--x") {
      options.x_is_single = value == "single";
    } else if (flag == "--activation") {
      must(options.choice.set_activation(value));
    } else if (flag == "--tile") {
      must(options.choice.set_tile(value));
    } else {
      std::fprintf(stderr, "unknown flag %s\n", argv[i]);
      return 2;
    }
  }
  Bench(options).run();
  return 0;
}
