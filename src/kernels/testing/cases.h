// Cases of every operation: a few numbers in, Params with random contents out.
//
// A case is a struct of sizes and formats: sizes() makes Params without memory, which are enough to
// ask a row whether it takes them; build() gives them memory and contents, for rows to run on; the
// Built's outputs() are what a row wrote, to compare. In and out buffers are set afresh before each
// run, outputs to NaN, and the workspace is exactly what the row asked for, so that the sanitizer
// sees a row that takes more.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/experts/experts.h"
#include "kernels/gate/gate.h"
#include "kernels/gather/gather.h"
#include "kernels/moe_fp8/moe_fp8.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/reduce/reduce.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotate/rotate.h"
#include "kernels/route/route.h"
#include "kernels/row_rounding.h"
#include "kernels/sample/sample.h"
#include "kernels/tap/tap.h"
#include "kernels/testing/packed.h"
#include "kernels/unembed/unembed.h"

namespace moxie::testing {

/// What a row wrote, as numbers, and how far from the reference it may be: rounding + relative *
/// |expected|, where rounding is already in the output's unit.
struct Output {
  const char* name;
  int64_t width;  ///< values a token
  std::vector<double> values;
  /// Rounding errors as a share of the greatest |expected| of the output.
  double rounding = 0;
  /// Steps of a storage format, as a share of the value itself.
  double relative = 0;
  double absolute = 0;
};

struct EmbedCase {
  using Params = EmbedParams;
  int32_t tokens = 1, hidden = 96, vocab = 50;
  DType table = DType::kBF16;
  std::string name() const;
  Params sizes() const;
};

struct QkvCase {
  using Params = QkvParams;
  int32_t tokens = 1, hidden = 64, heads = 2, kv_heads = 1, head_dim = 32;
  DType weights = DType::kBF16, cache = DType::kBF16;
  int32_t first_position = 0;  ///< of the first sequence
  uint64_t seed = 1;
  std::string name() const;
  Params sizes() const;
};

/// Each of `seqs` sequences has `tokens` tokens in the launch. Before them the first sequence has
/// `depth` tokens in its cache, each next one 3 more.
struct AttendCase {
  using Params = AttendParams;
  int32_t seqs = 2, tokens = 1, depth = 40, heads = 8, kv_heads = 2, head_dim = 64, window = 0;
  DType cache = DType::kBF16;
  std::string name() const;
  Params sizes() const;
};

struct OutCase {
  using Params = OutParams;
  int32_t tokens = 1, rows = 64, cols = 64;
  DType weights = DType::kBF16;
  uint64_t seed = 1;
  bool overwrites = false;
  std::string name() const;
  Params sizes() const;
};

struct RouteCase {
  using Params = RouteParams;
  int32_t tokens = 1, hidden = 64, experts = 32, top_k = 4;
  DType weights = DType::kBF16;
  uint64_t seed = 1;
  std::string name() const;
  Params sizes() const;
};

struct ExpertsCase {
  using Params = ExpertsParams;
  int32_t tokens = 1, hidden = 64, intermediate = 64, experts = 8, top_k = 4;
  DType weights = DType::kMXFP4;
  float input_scale = 1;           ///< large values reach the clamps of the SwiGLU
  bool is_uneven = true;           ///< half of the tokens choose among the first top_k + 1 experts
  int32_t before = 0, behind = 0;  ///< experts that tokens choose among and the weights do not hold
  bool avoids_held = false;  ///< tokens choose among the experts before, at least top_k, alone
  DType activation = DType::kBF16;
  uint64_t seed = 1;
  std::string name() const;
  Params sizes() const;
};

struct UnembedCase {
  using Params = UnembedParams;
  int32_t rows = 1, hidden = 64, vocab = 100;
  DType weights = DType::kBF16;
  uint64_t seed = 1;
  std::string name() const;
  Params sizes() const;
};

/// Rows differ in how they draw.
struct SampleCase {
  using Params = SampleParams;
  int32_t rows = 1, vocab = 1000, num_logprobs = 0;
  std::string name() const;
  Params sizes() const;
};

struct TapCase {
  using Params = TapParams;
  int32_t tokens = 1, hidden = 96;
  std::string name() const;
  Params sizes() const;
};

/// The rank's part and those of the others, which stand still.
struct ReduceCase {
  using Params = ReduceParams;
  int32_t tokens = 1, hidden = 96, ranks = 2, rank = 0;
  std::string name() const;
  Params sizes() const;
};

/// The last rank's logits are fewer by `missing`.
struct GatherCase {
  using Params = GatherParams;
  int32_t rows = 1, width = 48, ranks = 2, missing = 16;
  std::string name() const;
  Params sizes() const;
};

/// Rows of x and of y lie `gap` values apart.
struct RmsNormCase {
  using Params = RmsNormParams;
  int32_t tokens = 1, width = 96, gap = 0;
  bool is_copy = false;
  std::string name() const;
  Params sizes() const;
};

struct GateCase {
  using Params = GateParams;
  int32_t tokens = 1, width = 96;
  std::string name() const;
  Params sizes() const;
};

struct RotateCase {
  using Params = RotateParams;
  int32_t tokens = 1, heads = 2, kv_heads = 1, head_dim = 32;
  DType cache = DType::kBF16;
  bool norms = false, keys_only = false;
  int32_t gap = 0;  ///< values between the rows of qkv
  std::string name() const;
  Params sizes() const;
};

/// Groups of four experts; the second quarter of the experts is local.
struct MoeFp8Case {
  using Params = MoeFp8Params;
  int32_t tokens = 1, hidden = 256, intermediate = 128, experts = 32, top_k = 8;
  std::string name() const;
  Params sizes() const;
};

/// Memory of a case and Params that point at it. `P` is one of the Params above.
template <typename P>
struct Built {
  P params;  ///< without launch
  std::vector<PackedTensor> weights;
  std::vector<std::vector<float>> floats;
  std::vector<std::vector<int32_t>> ints;
  std::vector<std::vector<std::byte>> bytes;
  std::vector<float> initial_x;  ///< of steps that add to x
  std::shared_ptr<RankLink> link;

  /// Puts outputs and in/out buffers back to what they are before a run.
  void reset();
  std::vector<Output> outputs() const;
};

Built<EmbedParams> build(const EmbedCase& c);
Built<QkvParams> build(const QkvCase& c);
Built<AttendParams> build(const AttendCase& c);
Built<OutParams> build(const OutCase& c);
Built<RouteParams> build(const RouteCase& c);
Built<ExpertsParams> build(const ExpertsCase& c);
Built<UnembedParams> build(const UnembedCase& c);
Built<SampleParams> build(const SampleCase& c);
Built<TapParams> build(const TapCase& c);
Built<ReduceParams> build(const ReduceCase& c);
Built<GatherParams> build(const GatherCase& c);
Built<RmsNormParams> build(const RmsNormCase& c);
Built<GateParams> build(const GateCase& c);
Built<RotateParams> build(const RotateCase& c);
Built<MoeFp8Params> build(const MoeFp8Case& c);

}  // namespace moxie::testing
