// The Params of every step of one pass: only this file connects steps and model.
#pragma once

#include <span>

#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/experts/experts.h"
#include "kernels/gather/gather.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/reduce/reduce.h"
#include "kernels/route/route.h"
#include "kernels/tap/tap.h"
#include "kernels/unembed/unembed.h"
#include "model/config.h"
#include "model/weights.h"

namespace moxie {

struct Batch;
struct Activations;

/// Where reduce is in a layer: the `l` of Pass::params<ReduceParams>().
inline constexpr size_t kBehindOut = 0, kBehindExperts = 1;

/// What the steps of a pass share. It refers to all of this, which must outlive it.
struct Pass {
  const GptOssConfig& config;
  const ModelWeights& weights;
  const Batch& batch;
  const Activations& act;
  std::span<const KvLayer> kv;  ///< one a layer; or one for all layers if only sizes count
  Rotary rotary;
  Launch launch;
  DType activation = DType::kBF16;  ///< KernelChooser::activation()
  gemm::Tile tile;                  ///< KernelChooser::tile()
  gemm::TileDevice tile_device{};   ///< of the device's rates
  bool use_sinks = true;
  RankLink* link = nullptr;  ///< null: a whole model, or a pass that only counts

  bool has_ranks() const { return config.share.num_ranks > 1; }
  /// Whether out and experts overwrite this rank's part instead of adding to a cleared one: on
  /// GPUs, by rows in which each value of x has one owner.
  bool overwrites_parts(const Forms& forms) const;
  /// Whether the rows that read x may exchange its parts: the same on all ranks.
  bool may_fold_reduce() const;
  /// Whether rows may leave parts of x in BF16 (ReduceForm::kRounded): the same on all ranks.
  bool may_round_parts() const;
  /// Whether out stores its part in BF16 into the other rank's memory, too: the same on all ranks.
  bool may_send_parts() const;
  /// The step's Params in layer `l`, with these forms. Embed, unembed and gather ignore `l`; for
  /// tap it is the number of the tap, for reduce kBehindOut or kBehindExperts.
  template <typename P>
  P params(size_t l, const Forms& forms) const;

 private:
  const KvLayer& kv_of(size_t l) const { return kv[kv.size() == 1 ? 0 : l]; }
  Launch launch_with(const Forms& forms) const;
  RouteFold fold(size_t l) const;
  uint16_t* received_by(int32_t rank) const;
  float* part_behind_experts(size_t l, const Forms& forms) const;
  ReduceFold reduce_before_qkv(size_t l, const Forms& forms) const;
  ReduceFold reduce_before_experts(const Forms& forms) const;
};

template <>
EmbedParams Pass::params<EmbedParams>(size_t l, const Forms& forms) const;
template <>
QkvParams Pass::params<QkvParams>(size_t l, const Forms& forms) const;
template <>
AttendParams Pass::params<AttendParams>(size_t l, const Forms& forms) const;
template <>
OutParams Pass::params<OutParams>(size_t l, const Forms& forms) const;
template <>
RouteParams Pass::params<RouteParams>(size_t l, const Forms& forms) const;
template <>
ExpertsParams Pass::params<ExpertsParams>(size_t l, const Forms& forms) const;
template <>
UnembedParams Pass::params<UnembedParams>(size_t l, const Forms& forms) const;
template <>
TapParams Pass::params<TapParams>(size_t l, const Forms& forms) const;
template <>
ReduceParams Pass::params<ReduceParams>(size_t l, const Forms& forms) const;
template <>
GatherParams Pass::params<GatherParams>(size_t l, const Forms& forms) const;

/// Calls visit.operator()<P>() for the Params of each step of a layer, in order.
template <typename Visit>
void for_each_layer_step(Visit&& visit) {
  visit.template operator()<QkvParams>();
  visit.template operator()<AttendParams>();
  visit.template operator()<OutParams>();
  visit.template operator()<RouteParams>();
  visit.template operator()<ExpertsParams>();
}

}  // namespace moxie
