// The harness: one sequence, shuffled pages of 16 tokens.
#include "model/testing/harness.h"

#include <algorithm>
#include <numeric>

namespace moxie {

Result<std::unique_ptr<ModelHarness>> ModelHarness::open(const std::string& model,
                                                         Options options) {
  auto harness = std::make_unique<ModelHarness>();
  ModelHarness& h = *harness;
  h.options_ = std::move(options);
  h.device_ = make_cpu_device(h.options_.threads);
  auto stream = h.device_->make_stream();
  if (!stream) return fail(stream.error());
  h.stream_ = std::move(*stream);
  auto checkpoint = open_checkpoint(model);
  if (!checkpoint) return fail(checkpoint.error());
  h.checkpoint_ = std::move(*checkpoint);
  auto weights = h.checkpoint_->load(*h.device_, h.options_.load);
  if (!weights) return fail(weights.error());
  h.weights_ = std::move(*weights);
  KernelChoice choice;
  for (const auto& assignment : h.options_.kernels) {
    if (auto status = choice.add(assignment); !status) return fail(status.error());
  }
  CHECK(choice.set_activation(h.options_.activation).has_value(), h.options_.activation);
  h.kernels_ = std::make_unique<KernelChooser>(DeviceKind::kCpu, cpu_features(), choice);
  const GptOssConfig& config = h.config();
  h.rotary_.resize(static_cast<size_t>(h.options_.max_tokens) * config.head_dim);
  fill_rotary_table(config, 0, h.options_.max_tokens, h.rotary_.data());
  std::vector<int32_t> taps(h.options_.taps ? static_cast<size_t>(config.num_layers) + 1 : 0);
  std::iota(taps.begin(), taps.end(), 0);
  h.model_ =
      std::make_unique<GptOss>(config, h.weights_, Rotary{h.rotary_.data(), h.options_.max_tokens},
                               *h.kernels_, h.options_.use_sinks, taps);
  if (auto status = h.model_->check_rows(h.options_.kv_dtype); !status) return fail(status.error());

  const auto bytes = activation_bytes(config, h.weights_, h.options_.kv_dtype, *h.kernels_,
                                      h.options_.max_tokens, h.options_.max_tokens, taps.size());
  auto buffer = h.device_->allocate(bytes.total() + 16 * 256);
  if (!buffer) return fail(buffer.error());
  Arena arena(std::move(*buffer));
  h.activations_ =
      make_activations(config, bytes, h.options_.max_tokens, h.options_.max_tokens, arena);
  h.activations_buffer_ = arena.release();

  constexpr int32_t kPageTokens = 16;
  const int32_t num_pages = ceil_div(h.options_.max_tokens, kPageTokens);
  h.page_table_.resize(static_cast<size_t>(num_pages));
  std::iota(h.page_table_.begin(), h.page_table_.end(), 0);
  for (int32_t i = num_pages - 1; i > 0; --i) {
    std::swap(h.page_table_[i], h.page_table_[(i * 7919 + 13) % (i + 1)]);
  }
  const int64_t page_bytes =
      int64_t{config.num_kv_heads} * kPageTokens *
      static_cast<int64_t>(dtype_bytes(h.options_.kv_dtype, config.head_dim));
  auto kv_buffer = h.device_->allocate(2 * page_bytes * num_pages * config.num_layers);
  if (!kv_buffer) return fail(kv_buffer.error());
  h.kv_buffer_ = std::move(*kv_buffer);
  for (int32_t l = 0; l < config.num_layers; ++l) {
    std::byte* base = h.kv_buffer_.data() + 2 * page_bytes * num_pages * l;
    h.kv_.push_back({.k = base,
                     .v = base + page_bytes * num_pages,
                     .page_stride_bytes = page_bytes,
                     .page_table = h.page_table_.data(),
                     .table_stride = num_pages,
                     .page_tokens = kPageTokens,
                     .dtype = h.options_.kv_dtype});
  }
  return harness;
}

const float* ModelHarness::launch(const std::vector<int32_t>& ids, int32_t begin, int32_t end,
                                  const std::vector<int32_t>& rows) {
  const int32_t n = end - begin;
  std::vector<int32_t> positions(n), seq(n, 0), offsets{0, n};
  std::iota(positions.begin(), positions.end(), begin);
  const Batch batch{.ragged = {.num_tokens = n,
                               .num_seqs = 1,
                               .positions = positions.data(),
                               .seq_idx = seq.data(),
                               .row_offsets = offsets.data()},
                    .token_ids = ids.data() + begin,
                    .num_logit_rows = static_cast<int32_t>(rows.size()),
                    .logit_rows = rows.data()};
  model_->forward(batch, kv_, activations_, *stream_);
  return activations_.logits;
}

std::vector<float> ModelHarness::logits(const std::vector<int32_t>& ids, int32_t chunk,
                                        std::vector<float>* hidden) {
  const auto total = static_cast<int32_t>(ids.size());
  CHECK(total <= options_.max_tokens && (hidden == nullptr || (chunk == 0 && options_.taps)));
  if (chunk == 0) chunk = total;
  const auto vocab = static_cast<size_t>(config().vocab);
  std::vector<float> all(ids.size() * vocab);
  for (int32_t begin = 0; begin < total; begin += chunk) {
    const int32_t end = std::min(total, begin + chunk);
    std::vector<int32_t> rows(static_cast<size_t>(end - begin));
    std::iota(rows.begin(), rows.end(), 0);
    const float* got = launch(ids, begin, end, rows);
    std::copy(got, got + rows.size() * vocab, all.begin() + begin * vocab);
  }
  if (hidden == nullptr) return all;
  const int64_t width = int64_t{total} * config().hidden;
  const int64_t stride = int64_t{options_.max_tokens} * config().hidden;
  hidden->clear();
  for (size_t tap = 0; tap < model_->taps().size(); ++tap) {
    const float* from = activations_.taps + static_cast<int64_t>(tap) * stride;
    hidden->insert(hidden->end(), from, from + width);
  }
  return all;
}

std::vector<int32_t> ModelHarness::greedy(const std::vector<int32_t>& ids, int32_t num_tokens) {
  std::vector<int32_t> all = ids, generated;
  int32_t done = 0;
  for (int32_t i = 0; i < num_tokens; ++i) {
    const auto end = static_cast<int32_t>(all.size());
    const float* row = launch(all, done, end, {end - done - 1});
    done = end;
    const auto best = static_cast<int32_t>(std::max_element(row, row + config().vocab) - row);
    all.push_back(best);
    generated.push_back(best);
  }
  return generated;
}

}  // namespace moxie
