#include "model/self_test_side.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/threads.h"

namespace moxie {

SelfTestTokens::SelfTestTokens(const GptOssConfig& config, const SelfTestLaunch& launch) {
  const int32_t per_seq = launch.num_tokens / launch.num_seqs;
  for (int32_t s = 0; s < launch.num_seqs; ++s) {
    const int32_t count = s == 0 ? launch.num_tokens - per_seq * (launch.num_seqs - 1) : per_seq;
    const int32_t first = std::max(0, config.sliding_window + 3 * (s % 8) - count / 2);
    for (int32_t i = 0; i < count; ++i) {
      rows.push_back(static_cast<int32_t>(ids.size()));
      ids.push_back(((first + i) * 37 + s * 11 + 5) % config.vocab);
      positions.push_back(first + i);
      seq_idx.push_back(s);
      num_visible_keys += first + i + 1;
      longest = std::max(longest, first + i + 1);
    }
    offsets.push_back(static_cast<int32_t>(ids.size()));
  }
}

Status SelfTestSide::make(DType kv_dtype, const KernelChooser& kernels, int32_t max_tokens,
                          int32_t most_positions) {
  const auto bytes = activation_bytes(config, weights, kv_dtype, kernels, max_tokens, max_tokens);
  floats_of_x = bytes.floats_of_x;
  auto memory = device.allocate(bytes.total() + 16 * 256);
  if (!memory) return fail(std::move(memory.error()));
  Arena arena(std::move(*memory));
  act = make_activations(config, bytes, max_tokens, max_tokens, arena);
  act_memory = arena.release();
  std::vector<float> angles(static_cast<size_t>(most_positions * config.head_dim));
  fill_rotary_table(config, 0, most_positions, angles.data());
  auto table = device.allocate(angles.size() * sizeof(float));
  if (!table) return fail(std::move(table.error()));
  rotary_memory = std::move(*table);
  rotary = {rotary_memory.as<float>(), most_positions};
  return write(rotary_memory.data(), angles);
}

Status SelfTestSide::place(const SelfTestTokens& tokens, const std::vector<std::byte>& cache,
                           const KvLayer& shape, const std::vector<int32_t>& page_table) {
  std::vector<int32_t> all;
  for (const auto* list : {&tokens.ids, &tokens.positions, &tokens.seq_idx, &tokens.offsets,
                           &tokens.rows, &page_table})
    all.insert(all.end(), list->begin(), list->end());
  if (auto done = hold(all.size() * sizeof(int32_t), &input_memory); !done) return done;
  if (auto done = write(input_memory.data(), all); !done) return done;
  const auto* at = input_memory.as<int32_t>();
  const auto next = [&](const std::vector<int32_t>& list) {
    return std::exchange(at, at + list.size());
  };
  const auto num_tokens = static_cast<int32_t>(tokens.ids.size());
  batch.token_ids = next(tokens.ids);
  batch.ragged = {.num_tokens = num_tokens,
                  .num_seqs = static_cast<int32_t>(tokens.offsets.size()) - 1,
                  .positions = next(tokens.positions),
                  .seq_idx = next(tokens.seq_idx),
                  .row_offsets = next(tokens.offsets),
                  .num_visible_keys = tokens.num_visible_keys};
  batch.num_logit_rows = num_tokens;
  batch.logit_rows = next(tokens.rows);
  if (auto done = hold(cache.size(), &kv_memory); !done) return done;
  kv.assign(static_cast<size_t>(config.num_layers), shape);
  const auto half = static_cast<int64_t>(cache.size()) / (2 * config.num_layers);
  for (size_t l = 0; l < kv.size(); ++l) {
    kv[l].k = kv_memory.data() + 2 * half * static_cast<int64_t>(l);
    kv[l].v = kv[l].k + half;
    kv[l].page_table = at;
  }
  if (auto done = write(kv_memory.data(), cache); !done) return done;
  pass.emplace(Pass{.config = config,
                    .weights = weights,
                    .batch = batch,
                    .act = act,
                    .kv = kv,
                    .rotary = rotary,
                    .launch = {.device = device.kind(),
                               .stream = &stream,
                               .workspace = act.workspace,
                               .workspace_bytes = act.workspace_bytes,
                               .most_shared = most_shared},
                    .activation = activation,
                    .tile = tile,
                    .tile_device = tile_device,
                    .use_sinks = use_sinks});
  return make_activations_nan();
}

Status SelfTestSide::hold(uint64_t bytes, Buffer* memory) {
  if (memory->bytes() >= bytes) return {};
  auto larger = device.allocate(bytes);
  if (!larger) return fail(std::move(larger.error()));
  *memory = std::move(*larger);
  return {};
}

Status SelfTestSide::make_activations_nan() {
  const uint64_t bytes = act_memory.bytes();
  if (stream.pool != nullptr) {
    stream.pool->share(static_cast<int64_t>(bytes), 1 << 18, [&](int64_t begin, int64_t end) {
      std::memset(act_memory.data() + begin, 0xFF, static_cast<size_t>(end - begin));
    });
    return {};
  }
  // A device copies within its memory many times faster than from the host's.
  const std::vector<std::byte> first(std::min<uint64_t>(bytes, 1 << 18), std::byte{0xFF});
  if (auto done = write(act_memory.data(), first); !done) return done;
  for (uint64_t done = first.size(); done < bytes; done *= 2) {
    auto copied = device.copy_on_device(act_memory.data() + done, act_memory.data(),
                                        std::min(done, bytes - done), stream);
    if (!copied) return copied;
  }
  return stream.synchronize();
}

Status SelfTestSide::read_x(XForm form, std::vector<float>* x) {
  const size_t per_value = form == XForm::kF32Pair ? 2 : 1;
  std::vector<float> floats(x->size() * per_value);
  if (auto done = read(act.x, &floats); !done) return done;
  for (size_t i = 0; i < x->size(); ++i)
    (*x)[i] = per_value == 1
                  ? floats[i]
                  : static_cast<float>(static_cast<double>(floats[2 * i]) + floats[2 * i + 1]);
  return {};
}

}  // namespace moxie
