// Rows as a file would store them, packed for the device and for the reference rows.
#include "model/self_test_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "core/threads.h"
#include "model/loader.h"
#include "model/pass_plan.h"

namespace moxie {
namespace {

// As gpt-oss's sizes: 2,880 / 5 is 4.5 times 128 and 3 times 192, as 2,880 is 22.5 and 15 times.
constexpr int32_t kLeastHidden = 512, kLeastInner = 96, kMostExperts = 16, kMostVocab = 344;
constexpr int32_t kMostWindow = 128;

// The least odd fraction that is not below `least`: it leaves the remainders by powers of two.
int32_t odd_fraction(int32_t size, int32_t least) {
  int32_t found = size;
  for (int32_t part = 3; size / part >= least; part += 2)
    if (size % part == 0) found = size / part;
  return found;
}

// Seeded; the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// Where this one is after so many draws.
  Random after(int64_t draws) const {
    Random one = *this;
    one.state_ += static_cast<uint64_t>(draws) * 0x9E3779B97F4A7C15ull;
    return one;
  }
  /// In -1..1.
  float uniform() { return static_cast<float>(static_cast<int32_t>(bits() >> 32)) * 0x1p-31f; }

 private:
  uint64_t state_;
};

// An array whose elements the threads that fill it touch first.
template <typename T>
struct DrawnArray {
  std::unique_ptr<T[]> data;
  int64_t size = 0;

  void make(int64_t count) {
    data = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(count));
    size = count;
  }
};

// Rows of one expert's matrix, or of a table, whose values the format can hold. They are the same
// with a pool and without.
struct TestRows {
  DrawnArray<float> values;
  DrawnArray<uint8_t> blocks, scales;
  StoredRows rows;

  TestRows(DType format, int32_t num_rows, int32_t cols, double deviation, Random random,
           ThreadPool* pool = nullptr) {
    rows.cols = cols;
    if (format == DType::kMXFP4) {
      make_mxfp4(num_rows, cols, deviation, random, pool);
      return;
    }
    values.make(int64_t{num_rows} * cols);
    const auto most = static_cast<float>(std::sqrt(3.0) * deviation);
    draw(values, random, pool, [most, is_half = format == DType::kBF16](Random& one) {
      const float value = most * one.uniform();
      return is_half ? bf16_to_f32(f32_to_bf16(value)) : value;
    });
    if (format == DType::kMXFP8) round_to_mxfp8();
    rows.kind = StoredRows::Kind::kF32;
    rows.data = reinterpret_cast<const std::byte*>(values.data.get());
    rows.row_stride_bytes = int64_t{4} * cols;
  }

  // Row `to` has the values of row `from`.
  void repeat(int32_t from, int32_t to) {
    const auto copy = [&](auto& list, int64_t stride) {
      if (list.size > 0)
        std::copy_n(list.data.get() + from * stride, stride, list.data.get() + to * stride);
    };
    copy(values, rows.cols);
    copy(blocks, rows.cols / 2);
    copy(scales, rows.cols / kMxBlock);
  }

 private:
  // A draw of `random` for each value.
  template <typename T, typename Value>
  static void draw(DrawnArray<T>& list, const Random& random, ThreadPool* pool, Value&& value) {
    const auto fill = [&](int64_t begin, int64_t end) {
      Random one = random.after(begin);
      for (int64_t i = begin; i < end; ++i) list.data[static_cast<size_t>(i)] = value(one);
    };
    if (pool == nullptr) return fill(0, list.size);
    pool->share(list.size, int64_t{1} << 16, fill);
  }
  void make_mxfp4(int32_t num_rows, int32_t cols, double deviation, const Random& random,
                  ThreadPool* pool) {
    // E2M1 codes taken evenly have an RMS of about 2.9.
    const int middle = 127 + static_cast<int>(std::lround(std::log2(deviation / 2.9)));
    blocks.make(int64_t{num_rows} * (cols / 2));
    scales.make(int64_t{num_rows} * (cols / kMxBlock));
    draw(blocks, random, pool, [](Random& one) { return static_cast<uint8_t>(one.bits() >> 56); });
    draw(scales, random.after(blocks.size), pool, [middle](Random& one) {
      return static_cast<uint8_t>(middle - 2 + static_cast<int>(one.bits() >> 62));
    });
    rows.kind = StoredRows::Kind::kMxfp4Split;
    rows.data = reinterpret_cast<const std::byte*>(blocks.data.get());
    rows.scales = reinterpret_cast<const std::byte*>(scales.data.get());
    rows.row_stride_bytes = cols / 2;
    rows.scale_stride_bytes = cols / kMxBlock;
  }
  void round_to_mxfp8() {
    for (int64_t at = 0; at + kMxBlock <= values.size; at += kMxBlock) {
      uint8_t codes[kMxBlock];
      float* const block = values.data.get() + at;
      const float scale = e8m0_to_f32(quantize_mxfp8(block, codes));
      for (int k = 0; k < kMxBlock; ++k) block[k] = e4m3_to_f32(codes[k]) * scale;
    }
  }
};

// A tile of one expert's matrix in the CPU's layout.
void pack_rows16(const Weight& weight, const StoredRows& rows, int32_t tile,
                 const PackedMatrix& target) {
  int64_t lanes[16];
  for (int32_t lane = 0; lane < 16; ++lane) {
    const int32_t packed = 16 * tile + lane, output = tile / 2 * 16 + lane;
    const int32_t inner = weight.part_rows[0];
    if (weight.is_gate_up())
      lanes[lane] = output < inner ? tile % 2 * inner + output : -1;
    else
      lanes[lane] = packed < target.rows ? packed : -1;
  }
  pack_tile_rows16(rows, lanes, target.format, const_cast<std::byte*>(target.tile(0, tile)));
}

// The same in CUDA's, some tiles.
void pack_fragments(const Weight& weight, const StoredRows& rows, int32_t head_dim,
                    int32_t first_tile, int32_t num_tiles, const PackedMatrix& target) {
  MatrixRepack repack{.sources = {},
                      .target = target,
                      .order = weight.entry->order,
                      .head_dim = head_dim,
                      .first_tile = first_tile,
                      .num_tiles = num_tiles};
  const int32_t of_source = weight.is_gate_up() ? weight.part_rows[0] : weight.all_parts_rows;
  repack.sources[0] = {.rows = rows, .num_rows = of_source};
  repack.sources[1] = {.rows = rows, .first = of_source, .num_rows = of_source};
  repack_on_host(repack);
}

void store_row(DType format, const float* values, int32_t count, std::byte* to) {
  if (format == DType::kF32) {
    std::memcpy(to, values, sizeof(float) * static_cast<size_t>(count));
  } else if (format == DType::kBF16) {
    for (int32_t i = 0; i < count; ++i) {
      const uint16_t bits = f32_to_bf16(values[i]);
      std::memcpy(to + 2 * i, &bits, 2);
    }
  } else {  // Q8_0
    for (int32_t block = 0; block < count / kMxBlock; ++block) {
      constexpr float kScale = 0x1p-6f;
      const uint16_t scale = f32_to_f16(kScale);
      std::memcpy(to + 34 * block, &scale, 2);
      for (int32_t k = 0; k < kMxBlock; ++k) {
        const float code = std::clamp(values[block * kMxBlock + k] / kScale, -127.0f, 127.0f);
        to[34 * block + 2 + k] = static_cast<std::byte>(static_cast<int8_t>(std::lround(code)));
      }
    }
  }
}

// The least and the greatest value of a vector.
std::pair<float, float> range_of(const Weight& weight) {
  const std::string_view name = weight.entry->name;
  if (name.ends_with("norm")) return {0.7f, 1.3f};
  if (name == "sinks") return {2.0f, 6.0f};
  if (name == "gate_up_bias") return {-7.0f, 7.0f};  // some reach the clamps
  return {-0.5f, 0.5f};                              // other biases
}

// Fills weights of the CPU's layout and of the device's, both in the host's memory.
class Filler {
 public:
  Filler(const GptOssConfig& config, ThreadPool& pool) : config_(config), pool_(pool) {}

  void fill(const Weight& weight, const RowTable& table, const RowTable& reference) {
    const TestRows rows(table.format, weight.rows, weight.cols, weight.entry->made, next(), &pool_);
    auto store = [&](int64_t r, int) {
      const float* values = rows.values.data.get() + r * weight.cols;
      for (const RowTable& one : {table, reference})
        store_row(one.format, values, weight.cols,
                  const_cast<std::byte*>(one.data) + r * one.row_bytes());
    };
    pool_.run(weight.rows, store);
  }
  void fill(const Weight& weight, const PackedMatrix& matrix, const PackedMatrix& reference) {
    const double deviation = weight.entry->made / std::sqrt(static_cast<double>(weight.cols));
    const uint64_t seed = ++num_filled_;
    const auto draw = [&](int32_t expert, ThreadPool* pool) {
      return TestRows(matrix.format, weight.all_parts_rows, weight.cols, deviation,
                      Random(seed << 16 | static_cast<uint64_t>(expert)), pool);
    };
    const auto pack = [&](const StoredRows& rows, int32_t expert, int32_t begin, int32_t end) {
      for (int32_t tile = begin; tile < std::min(end, reference.num_tiles()); ++tile)
        pack_rows16(weight, rows, tile, reference.expert(expert));
      const PackedMatrix target = matrix.expert(expert);
      if (matrix.layout == PackedLayout::kFragment16x32)
        return pack_fragments(weight, rows, config_.head_dim, begin, end - begin, target);
      for (int32_t tile = begin; tile < end; ++tile) pack_rows16(weight, rows, tile, target);
    };
    if (weight.num_experts > 1) {
      auto of_expert = [&](int64_t task, int) {
        const auto e = static_cast<int32_t>(task);
        pack(draw(e, nullptr).rows, e, 0, matrix.num_tiles());
      };
      pool_.run(weight.num_experts, of_expert);
      return;
    }
    TestRows rows = draw(0, &pool_);
    if (weight.entry->name == "router")
      for (int32_t r = 1; r < std::min(8, weight.rows); r += 2) rows.repeat(r - 1, r);
    pool_.share(matrix.num_tiles(), 4, [&](int64_t begin, int64_t end) {
      pack(rows.rows, 0, static_cast<int32_t>(begin), static_cast<int32_t>(end));
    });
  }
  void fill(const Weight& weight, const float* vector, const float* reference, DeviceKind kind) {
    Random random = next();
    const auto [least, greatest] = range_of(weight);
    const int32_t per_part = weight.part_rows[0];
    for (int32_t e = 0; e < weight.num_experts; ++e) {
      for (int32_t i = 0; i < weight.all_parts_rows; ++i) {
        const float drawn = least + (greatest - least) * (0.5f + 0.5f * random.uniform());
        const bool repeats = weight.entry->name == "router_bias" && i % 2 == 1 && i < 8;
        int32_t at = i, cpu_at = i;
        if (weight.is_gate_up()) {
          const int32_t half = i / per_part, output = i % per_part;
          cpu_at = gate_up_packed_row(output, half);
          at = kind == DeviceKind::kCpu ? cpu_at : fragment_gate_up_row(output, half);
        }
        const int64_t first = int64_t{e} * weight.rows;
        float* const to = const_cast<float*>(reference) + first;
        to[cpu_at] = repeats ? to[cpu_at - 1] : drawn;
        const_cast<float*>(vector)[first + at] = to[cpu_at];
      }
    }
  }

 private:
  Random next() { return Random(++num_filled_); }

  const GptOssConfig& config_;
  ThreadPool& pool_;
  uint64_t num_filled_ = 0;
};

// The format that the real model's weight has.
DType format_of(Weight weight, const std::vector<size_t>& kinds, const ModelWeights& formats) {
  if (weight.layer >= 0)
    weight.layer = static_cast<int32_t>(kinds[static_cast<size_t>(weight.layer)]);
  DType found = DType::kF32;
  visit_place(weight, formats, [&](const auto& place) {
    if constexpr (requires { place.format; }) found = place.format;
  });
  return found;
}

}  // namespace

GptOssConfig self_test_config(const GptOssConfig& config, const std::vector<size_t>& kinds,
                              TestSizes sizes) {
  GptOssConfig small = config;
  small.num_layers = static_cast<int32_t>(kinds.size());
  small.is_window.clear();
  for (const size_t kind : kinds) small.is_window.push_back(config.is_window[kind]);
  if (sizes == TestSizes::kNarrow) {
    small.hidden = odd_fraction(config.hidden, kLeastHidden);
    small.num_heads = config.num_heads / config.num_kv_heads;
    small.num_kv_heads = 1;
  }
  small.intermediate = odd_fraction(config.intermediate, kLeastInner);
  small.num_experts = std::min(config.num_experts, std::max(kMostExperts, config.top_k));
  small.vocab = std::min(config.vocab, kMostVocab);
  small.sliding_window = std::min(config.sliding_window, kMostWindow);
  return small;
}

std::string self_test_shapes(const GptOssConfig& config, const ModelWeights& formats) {
  const std::vector<size_t> kinds = kinds_of_layers(config, formats);
  const GptOssConfig c = self_test_config(config, kinds, TestSizes::kWide);
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", config.hidden, config.intermediate,
                  c.num_heads, c.num_kv_heads, c.head_dim, c.num_experts, c.top_k, c.vocab,
                  c.sliding_window, c.attention_sinks, c.mlp_router, c.swiglu_limit);
  for_each_weight(c, [&](const Weight& weight) {
    if (!weight.is_vector() && weight.is_present)
      text += fmt::format(" {} {}", weight.name(), dtype_name(format_of(weight, kinds, formats)));
  });
  for (const uint8_t is_window : c.is_window) text += is_window != 0 ? " window" : " full";
  return text;
}

Result<SelfTestModel> make_self_test_model(const GptOssConfig& config, const ModelWeights& formats,
                                           TestSizes sizes, Device& device, Stream& stream,
                                           Device& host, ThreadPool& pool) {
  SelfTestModel model;
  model.kinds = kinds_of_layers(config, formats);
  model.config = self_test_config(config, model.kinds, sizes);
  // The reference rows read blocks as they are, and BF16 and others as F32, which holds them.
  WeightFormats own, exact;
  for_each_weight(model.config, [&](const Weight& weight) {
    own.push_back(format_of(weight, model.kinds, formats));
    const bool keeps = own.back() == DType::kQ8_0 || own.back() == DType::kMXFP4;
    exact.push_back(keeps ? own.back() : DType::kF32);
  });
  const auto lay_out = [&](const WeightFormats& of, DeviceKind kind, std::byte* base,
                           ModelWeights* out) {
    return lay_out_weights(model.config, of, kind, base, out);
  };
  const uint64_t bytes = lay_out(own, device.kind(), nullptr, &model.weights);
  auto buffer = device.allocate(bytes);
  if (!buffer) return fail(std::move(buffer.error()));
  // Zeros, by all threads: pages that are touched first take longer than what is written there.
  const auto zeros = [&](uint64_t count) {
    auto memory = host.allocate(count);
    if (memory)
      pool.share(static_cast<int64_t>(count), int64_t{2} << 20, [&](int64_t begin, int64_t end) {
        std::memset(memory->data() + begin, 0, static_cast<size_t>(end - begin));
      });
    return memory;
  };
  auto staged = zeros(bytes);
  if (!staged) return fail(std::move(staged.error()));
  auto reference = zeros(lay_out(exact, DeviceKind::kCpu, nullptr, &model.reference));
  if (!reference) return fail(std::move(reference.error()));
  lay_out(exact, DeviceKind::kCpu, reference->data(), &model.reference);
  model.reference.storage.push_back(std::move(*reference));
  ModelWeights on_host;
  lay_out(own, device.kind(), staged->data(), &on_host);
  Filler filler(model.config, pool);
  for_each_weight(model.config, [&](const Weight& weight) {
    if (!weight.is_present) return;  // zeros, or null
    visit_place(weight, on_host, [&](auto& place) {
      visit_place(weight, model.reference, [&](auto& of_reference) {
        if constexpr (!std::is_same_v<decltype(place), decltype(of_reference)>)
          CHECK(false);
        else if constexpr (requires { place.format; })
          filler.fill(weight, place, of_reference);
        else
          filler.fill(weight, place, of_reference, device.kind());
      });
    });
  });
  if (auto copied = device.copy_from_host(buffer->data(), staged->data(), bytes, stream); !copied)
    return fail(std::move(copied.error()));
  if (auto done = stream.synchronize(); !done) return fail(std::move(done.error()));
  lay_out(own, device.kind(), buffer->data(), &model.weights);
  model.weights.storage.push_back(std::move(*buffer));
  return model;
}

}  // namespace moxie
