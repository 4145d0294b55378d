// Allocates what a rank's launches need, and runs them.
#include "engine/rank_runner.h"

#include <algorithm>

#include "engine/plan.h"
#include "model/rotary_table.h"

namespace moxie {

Result<std::unique_ptr<RankRunner>> RankRunner::create(const Parts& parts, const RankSizes& sizes) {
  std::unique_ptr<RankRunner> runner(new RankRunner(parts));
  auto status = runner->make(sizes);
  if (status) status = runner->make_decode_loop(sizes);
  if (status) status = parts.stream.synchronize();
  if (!status) return fail(std::move(status.error()));
  return runner;
}

Status RankRunner::make(const RankSizes& sizes) {
  Device& device = parts_.device;
  const GptOssConfig& config = parts_.config;
  auto rotary =
      make_rotary_table(device, parts_.stream, yarn_frequencies(config), sizes.max_model_len);
  if (!rotary) return fail(std::move(rotary.error()));
  rotary_ = std::move(*rotary);
  model_ = std::make_unique<GptOss>(config, parts_.weights,
                                    Rotary{rotary_.as<float>(), sizes.max_model_len},
                                    parts_.kernels, sizes.use_sinks, sizes.taps, parts_.link);
  const auto bytes =
      activation_bytes(config, parts_.weights, sizes.kv_dtype, parts_.kernels,
                       sizes.max_batch_tokens, sizes.max_logit_rows, sizes.taps.size());
  if (sizes.costs) model_->set_row_costs(sizes.costs, bytes.workspace);
  if (auto status = model_->check_rows(sizes.kv_dtype, sizes.max_batch_tokens); !status)
    return status;

  auto memory = device.allocate(bytes.total() + 20 * 256);
  if (!memory) return fail(std::move(memory.error()));
  Arena arena(std::move(*memory));
  activations_ =
      make_activations(config, bytes, sizes.max_batch_tokens, sizes.max_logit_rows, arena);
  activation_buffer_ = arena.release();
  // Every pass leaves the first part cleared, and clears the second before it adds to it.
  const uint64_t part_bytes = 4ull * static_cast<uint64_t>(sizes.max_batch_tokens) *
                              static_cast<uint64_t>(bytes.floats_of_x * config.hidden);
  for (float* part : activations_.parts) {
    if (part == nullptr) continue;
    if (auto status = device.fill_zero(part, part_bytes, parts_.stream); !status) return status;
  }

  // What the other rank's out leaves is read before route writes the normed x.
  if (parts_.link != nullptr)
    parts_.link->set_received(reinterpret_cast<uint16_t*>(activations_.t));

  auto kv = KvCache::create(device, parts_.stream, kv_shape(config, sizes.kv_dtype),
                            config.is_window, sizes.num_full_pages, sizes.num_window_pages);
  if (!kv) return fail(std::move(kv.error()));
  kv_ = std::move(*kv);
  auto arrays = LaunchArrays::create(device, {.num_tokens = sizes.max_batch_tokens,
                                              .num_seqs = sizes.max_num_seqs,
                                              .num_logit_rows = sizes.max_logit_rows,
                                              .table_stride = sizes.table_stride});
  if (!arrays) return fail(std::move(arrays.error()));
  launch_arrays_ = std::move(*arrays);
  if (device.kind() == DeviceKind::kCpu) return {};
  device_requests_.emplace(device, config.vocab);
  return device_requests_->reserve(static_cast<size_t>(sizes.max_logit_rows));
}

Status RankRunner::make_decode_loop(const RankSizes& sizes) {
  auto loop = DecodeLoop::create(
      {.device = parts_.device,
       .stream = parts_.stream,
       .model = *model_,
       .kv = *kv_,
       .kernels = parts_.kernels,
       .activations = activations_,
       .max_model_len = sizes.max_model_len,
       .max_streams =
           std::min({sizes.max_num_seqs, activations_.max_logit_rows, DecodeLoop::kMostStreams}),
       .use_graphs = sizes.use_graphs,
       .skips_taps = sizes.skips_taps,
       .is_read = parts_.link == nullptr || parts_.link->rank() == 0});
  if (!loop) return fail(std::move(loop.error()));
  decode_loop_ = std::move(*loop);
  if (sizes.caches_graphs)
    graphs_ = std::make_unique<GraphCache>(parts_.device, parts_.stream, parts_.kernels,
                                           sizes.use_graphs);
  return {};
}

Status RankRunner::run(const HostArrays& arrays, const Follow& follow, bool in_graph) {
  auto placed = launch_arrays_->place(arrays, *kv_, parts_.stream, &layers_);
  if (!placed) return fail(std::move(placed.error()));
  Batch& batch = *placed;
  // Tokens with their drafts: few, and the same numbers of them again and again.
  if (graphs_ == nullptr || batch.ragged.num_tokens > GraphCache::kMostTokens) {
    model_->forward(batch, layers_, activations_, parts_.stream);
    return follow ? follow(arrays, batch.ragged) : Status{};
  }
  batch.ragged.num_visible_keys = 0;  // not part of the key
  // A head's passes have drafts in the first place.
  const GraphCache::Key key{0, batch.ragged.num_tokens, batch.ragged.num_seqs, batch.num_logit_rows,
                            arrays.table_stride};
  auto status = graphs_->run(key, [&] {
    model_->forward(batch, layers_, activations_, parts_.stream);
    if (follow && in_graph) static_cast<void>(follow(arrays, batch.ragged));
  });
  return status && follow && !in_graph ? follow(arrays, batch.ragged) : status;
}

Status RankRunner::begin_decoding(const HostArrays& first,
                                  std::span<const SampleRequest> requests) {
  if (auto status = decode_loop_->end(); !status) return status;
  const auto has_lists = [](const SampleRequest& request) {
    return request.num_bias > 0 || request.num_history > 0 || request.allowed_mask != nullptr;
  };
  if (device_requests_ && std::any_of(requests.begin(), requests.end(), has_lists)) {
    if (auto status = device_requests_->place(requests, parts_.stream); !status) return status;
    requests = device_requests_->placed();
  }
  return decode_loop_->begin(first, requests);
}

}  // namespace moxie
