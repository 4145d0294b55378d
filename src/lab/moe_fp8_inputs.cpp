// Checks named tensors against each other, and makes random ones.
#include "lab/moe_fp8_inputs.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "core/formats.h"
#include "core/nearest.h"
#include "weights/synthetic_values.h"

namespace moxie {
namespace {

constexpr const char* kScalars[] = {"local_expert_offset", "routed_scaling_factor", "top_k",
                                    "n_group", "topk_group"};

bool is_scalar(const OpTensor& tensor) { return tensor.shape.num_elements() == 1; }

template <typename T>
std::vector<T> copy_of(const OpTensor& tensor) {
  std::vector<T> values(static_cast<size_t>(tensor.shape.num_elements()));
  if (!values.empty()) std::memcpy(values.data(), tensor.data, values.size() * sizeof(T));
  return values;
}

// Looks tensors up and keeps the first fault.
class Reader {
 public:
  Reader(const std::vector<OpTensor>& tensors, std::string where) : where_(std::move(where)) {
    const auto& names = moe_fp8_input_names();
    for (const OpTensor& tensor : tensors) {
      const bool is_known =
          std::find(names.begin(), names.end(), tensor.name) != names.end() ||
          std::find(std::begin(kScalars), std::end(kScalars), tensor.name) != std::end(kScalars);
      if (!is_known) {
        std::string all;
        for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
        add("no such input", tensor.name, "the inputs are " + all);
      }
      if (!by_name_.emplace(tensor.name, &tensor).second) add("appears twice", tensor.name, "");
    }
  }

  // A tensor of this dtype and rank; null after a fault.
  const OpTensor* find(const char* name, const char* dtype, int rank) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end()) return add("is missing", name, "every input must be given"), nullptr;
    const OpTensor& tensor = *at->second;
    if (tensor.dtype != dtype)
      return add("is " + tensor.dtype + ", expected " + dtype, name, ""), nullptr;
    if (tensor.shape.rank != rank)
      return add("has shape " + tensor.shape.to_string() + ", expected " + std::to_string(rank) +
                     " dimensions",
                 name, ""),
             nullptr;
    return &tensor;
  }
  void expect_shape(const OpTensor& tensor, const Shape& shape, const std::string& hint = "") {
    if (!(tensor.shape == shape))
      add("has shape " + tensor.shape.to_string() + ", expected " + shape.to_string(), tensor.name,
          hint);
  }
  std::optional<int64_t> integer(const char* name) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end()) return std::nullopt;
    const OpTensor& tensor = *at->second;
    if (!is_scalar(tensor)) return add("is not a scalar", name, ""), std::nullopt;
    if (tensor.dtype == "I32") return copy_of<int32_t>(tensor)[0];
    if (tensor.dtype == "I64") return copy_of<int64_t>(tensor)[0];
    return add("is " + tensor.dtype + ", expected I32 or I64", name, ""), std::nullopt;
  }
  std::optional<double> number(const char* name) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end()) return std::nullopt;
    const OpTensor& tensor = *at->second;
    if (!is_scalar(tensor)) return add("is not a scalar", name, ""), std::nullopt;
    if (tensor.dtype == "F32") return copy_of<float>(tensor)[0];
    if (tensor.dtype == "F64") return copy_of<double>(tensor)[0];
    return add("is " + tensor.dtype + ", expected F32 or F64", name, ""), std::nullopt;
  }
  void add(std::string what, const std::string& name, std::string hint) {
    if (!fault_) fault_ = Error{std::move(what), where_ + ": " + name, std::move(hint)};
  }
  const std::optional<Error>& fault() const { return fault_; }

 private:
  std::string where_;
  std::map<std::string, const OpTensor*> by_name_;
  std::optional<Error> fault_;
};

// An extent that a row's 32 bits hold.
int32_t extent(Reader& reader, const OpTensor& tensor, int dim) {
  const int64_t value = tensor.shape[dim];
  if (value >= 0 && value <= INT32_MAX / 2) return static_cast<int32_t>(value);
  reader.add("dimension " + std::to_string(dim) + " is " + std::to_string(value), tensor.name, "");
  return 0;
}

int32_t to_int32(Reader& reader, const char* name, int64_t value) {
  if (value >= INT32_MIN && value <= INT32_MAX) return static_cast<int32_t>(value);
  reader.add("is " + std::to_string(value), name, "");
  return -1;
}

// A uniform 64-bit word of (seed, index). Seeds are spread, so that streams do not overlap.
uint64_t word_of(uint64_t seed, uint64_t index) {
  return random_word(seed * 0xD1342543DE82EF95u, index);
}

// Two normal values from one word: Box and Muller's transform.
void normal_pair(uint64_t word, float* a, float* b) {
  const double u = (static_cast<double>(word >> 32) + 1) * 0x1p-32;  // above 0
  const double angle = 2 * M_PI * static_cast<double>(word & 0xFFFFFFFFu) * 0x1p-32;
  const double radius = std::sqrt(-2 * std::log(u));
  *a = static_cast<float>(radius * std::cos(angle));
  *b = static_cast<float>(radius * std::sin(angle));
}

}  // namespace

const std::vector<std::string>& moe_fp8_input_names() {
  static const std::vector<std::string> names = {
      "routing_logits",      "routing_bias",         "hidden_states", "hidden_states_scale",
      "gemm1_weights",       "gemm1_weights_scale",  "gemm2_weights", "gemm2_weights_scale",
      "local_expert_offset", "routed_scaling_factor"};
  return names;
}

Result<MoeFp8Inputs> MoeFp8Inputs::from(const std::vector<OpTensor>& tensors,
                                        const std::string& where) {
  Reader reader(tensors, where);
  const OpTensor* logits = reader.find("routing_logits", "F32", 2);
  const OpTensor* bias = reader.find("routing_bias", "BF16", 1);
  const OpTensor* hidden = reader.find("hidden_states", "F8_E4M3", 2);
  const OpTensor* hidden_scale = reader.find("hidden_states_scale", "F32", 2);
  const OpTensor* gemm1 = reader.find("gemm1_weights", "F8_E4M3", 3);
  const OpTensor* gemm1_scale = reader.find("gemm1_weights_scale", "F32", 3);
  const OpTensor* gemm2 = reader.find("gemm2_weights", "F8_E4M3", 3);
  const OpTensor* gemm2_scale = reader.find("gemm2_weights_scale", "F32", 3);
  const auto offset = reader.integer("local_expert_offset");
  const auto factor = reader.number("routed_scaling_factor");
  if (!offset) reader.add("is missing", "local_expert_offset", "a scalar of I32 or I64");
  if (!factor) reader.add("is missing", "routed_scaling_factor", "a scalar of F32 or F64");
  if (reader.fault()) return fail(*reader.fault());

  MoeFp8Inputs inputs;
  MoeFp8Params& p = inputs.params_;
  p.num_tokens = extent(reader, *hidden, 0);
  p.hidden = extent(reader, *hidden, 1);
  p.num_experts = extent(reader, *logits, 1);
  p.num_local_experts = extent(reader, *gemm1, 0);
  p.intermediate = extent(reader, *gemm2, 2);
  p.local_expert_offset = to_int32(reader, "local_expert_offset", *offset);
  p.routed_scaling_factor = static_cast<float>(*factor);
  const auto given_or = [&](const char* name, int32_t value) {
    const auto given = reader.integer(name);
    return given ? to_int32(reader, name, *given) : value;
  };
  p.top_k = given_or("top_k", p.top_k);
  p.num_groups = given_or("n_group", p.num_groups);
  p.kept_groups = given_or("topk_group", p.kept_groups);
  if (reader.fault()) return fail(*reader.fault());
  if (const char* why = moe_fp8_shape_fault(p)) return fail(why, where);

  const int64_t in = p.hidden / kFp8Block, mid = p.intermediate / kFp8Block;
  const int64_t local = p.num_local_experts, tokens = p.num_tokens;
  reader.expect_shape(*logits, {tokens, p.num_experts});
  reader.expect_shape(*bias, {p.num_experts});
  const bool is_turned = hidden_scale->shape == Shape{tokens, in};
  reader.expect_shape(*hidden_scale, {in, tokens},
                      is_turned ? "blocks come first: transpose it to [hidden / 128, tokens]" : "");
  reader.expect_shape(*gemm1, {local, 2 * p.intermediate, p.hidden});
  const bool is_turned1 = gemm1_scale->shape == Shape{local, in, 2 * mid};
  reader.expect_shape(
      *gemm1_scale, {local, 2 * mid, in},
      is_turned1 ? "transpose it to [experts, 2 intermediate / 128, hidden / 128]" : "");
  reader.expect_shape(*gemm2, {local, p.hidden, p.intermediate});
  const bool is_turned2 = gemm2_scale->shape == Shape{local, mid, in};
  reader.expect_shape(
      *gemm2_scale, {local, in, mid},
      is_turned2 ? "transpose it to [experts, hidden / 128, intermediate / 128]" : "");
  if (reader.fault()) return fail(*reader.fault());

  for (const OpTensor* tensor : {logits, hidden_scale, gemm1_scale, gemm2_scale})
    inputs.floats_.push_back(copy_of<float>(*tensor));
  inputs.bias_ = copy_of<uint16_t>(*bias);
  inputs.output_.resize(static_cast<size_t>(tokens) * static_cast<size_t>(p.hidden));
  p.hidden_states = reinterpret_cast<const uint8_t*>(hidden->data);
  p.gemm1_weights = reinterpret_cast<const uint8_t*>(gemm1->data);
  p.gemm2_weights = reinterpret_cast<const uint8_t*>(gemm2->data);
  inputs.point_at_own();
  return inputs;
}

void MoeFp8Inputs::point_at_own() {
  params_.routing_logits = floats_[0].data();
  params_.hidden_states_scale = floats_[1].data();
  params_.gemm1_weights_scale = floats_[2].data();
  params_.gemm2_weights_scale = floats_[3].data();
  params_.routing_bias = bias_.data();
  params_.output = output_.data();
}

MoeFp8Inputs MoeFp8Inputs::only(std::span<const int32_t> tokens) const {
  const size_t experts = static_cast<size_t>(params_.num_experts);
  const size_t hidden = static_cast<size_t>(params_.hidden), count = tokens.size();
  MoeFp8Inputs some;
  some.params_ = params_;
  some.params_.num_tokens = static_cast<int32_t>(count);
  some.floats_ = floats_, some.bias_ = bias_, some.file_ = file_;
  some.floats_[0].resize(count * experts);
  some.floats_[1].resize(count * hidden / kFp8Block);
  some.hidden_states_.resize(count * hidden);
  some.output_.resize(count * hidden);
  for (size_t i = 0; i < count; ++i) {
    const auto token = static_cast<size_t>(tokens[i]);
    std::copy_n(params_.routing_logits + token * experts, experts, &some.floats_[0][i * experts]);
    std::copy_n(params_.hidden_states + token * hidden, hidden, &some.hidden_states_[i * hidden]);
    for (size_t block = 0; block < hidden / kFp8Block; ++block)
      some.floats_[1][block * count + i] =
          floats_[1][block * static_cast<size_t>(params_.num_tokens) + token];
  }
  some.params_.hidden_states = some.hidden_states_.data();
  some.point_at_own();
  return some;
}

std::vector<int32_t> sample_tokens(int32_t num_tokens, int32_t count, uint64_t seed) {
  std::vector<int32_t> tokens;
  for (int32_t token = 0; token < num_tokens; ++token) {
    const auto wanted = static_cast<uint64_t>(std::max(count, 0)) - tokens.size();
    const auto left = static_cast<uint64_t>(num_tokens - token);
    if (word_of(seed, static_cast<uint64_t>(token)) % left < wanted) tokens.push_back(token);
  }
  return tokens;
}

Result<MoeFp8Inputs> MoeFp8Inputs::open(const std::string& path) {
  auto file = SafetensorsFile::open(path);
  if (!file) return fail(file.error());
  auto kept = std::make_shared<SafetensorsFile>(std::move(*file));
  std::vector<OpTensor> tensors;
  for (const FileTensor& tensor : kept->tensors()) {
    if (!tensor.is_readable)
      return fail("its bytes are not in the file", path + ": " + tensor.name);
    tensors.push_back({tensor.name, tensor.dtype_text, tensor.shape, kept->data(tensor)});
  }
  auto inputs = from(tensors, path);
  if (inputs) inputs->file_ = std::move(kept);
  return inputs;
}

// ---- Random tensors -----------------------------------------------------------------------------

void RandomTensors::fill_codes(uint8_t* to, int64_t count, uint64_t seed) {
  if (codes_.empty()) {
    codes_.resize(1 << 16);
    for (size_t i = 0; i < codes_.size(); i += 2) {
      float a, b;
      normal_pair(word_of(0, i), &a, &b);
      codes_[i] = f32_to_e4m3(std::clamp(a, -2.0f, 2.0f));
      codes_[i + 1] = f32_to_e4m3(std::clamp(b, -2.0f, 2.0f));
    }
  }
  pool_.share(count, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 4) {
      const uint64_t word = word_of(seed, static_cast<uint64_t>(i));
      for (int64_t n = i; n < std::min(end, i + 4); ++n)
        to[n] = codes_[(word >> (16 * (n - i))) & 0xFFFF];
    }
  });
}

void RandomTensors::fill_normal(float* to, int64_t count, uint64_t seed) {
  pool_.share(count, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += 2) {
      float a, b;
      normal_pair(word_of(seed, static_cast<uint64_t>(i)), &a, &b);
      to[i] = a;
      if (i + 1 < end) to[i + 1] = b;
    }
  });
}

RandomMoeFp8 random_moe_fp8(const MoeFp8Params& p, uint64_t seed, ThreadPool& pool) {
  RandomMoeFp8 made;
  RandomTensors random(pool);
  const int64_t in = p.hidden / kFp8Block, mid = p.intermediate / kFp8Block;
  const int64_t local = p.num_local_experts;
  uint64_t next = seed * 16;
  const auto take = [&](const char* name, const char* dtype, const Shape& shape, int64_t bytes) {
    // Not initialised: the tensors are filled by all threads.
    made.memory.emplace_back(new std::byte[static_cast<size_t>(std::max<int64_t>(bytes, 1))]);
    made.tensors.push_back({name, dtype, shape, made.memory.back().get()});
    return made.memory.back().get();
  };
  const auto floats = [&](const char* name, const Shape& shape) {
    const int64_t count = shape.num_elements();
    random.fill_normal(reinterpret_cast<float*>(take(name, "F32", shape, 4 * count)), count,
                       ++next);
  };
  const auto codes = [&](const char* name, const Shape& shape) {
    const int64_t count = shape.num_elements();
    random.fill_codes(reinterpret_cast<uint8_t*>(take(name, "F8_E4M3", shape, count)), count,
                      ++next);
  };
  floats("routing_logits", {p.num_tokens, p.num_experts});
  std::vector<float> bias(static_cast<size_t>(p.num_experts));
  random.fill_normal(bias.data(), p.num_experts, ++next);
  auto* words = reinterpret_cast<uint16_t*>(
      take("routing_bias", "BF16", {p.num_experts}, 2 * int64_t{p.num_experts}));
  for (int32_t e = 0; e < p.num_experts; ++e)
    words[e] = f32_to_bf16(0.01f * bias[static_cast<size_t>(e)]);
  codes("hidden_states", {p.num_tokens, p.hidden});
  floats("hidden_states_scale", {in, p.num_tokens});
  codes("gemm1_weights", {local, 2 * p.intermediate, p.hidden});
  floats("gemm1_weights_scale", {local, 2 * mid, in});
  codes("gemm2_weights", {local, p.hidden, p.intermediate});
  floats("gemm2_weights_scale", {local, in, mid});
  const auto scalar = [&](const char* name, const char* dtype, const void* value) {
    std::memcpy(take(name, dtype, Shape{}, 4), value, 4);
  };
  scalar("local_expert_offset", "I32", &p.local_expert_offset);
  scalar("routed_scaling_factor", "F32", &p.routed_scaling_factor);
  return made;
}

}  // namespace moxie
