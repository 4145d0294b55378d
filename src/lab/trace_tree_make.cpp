// Writes a flashinfer-trace tree for moe_fp8_block_scale: the definition in our words, the public
// workloads' sizes, and routing from a seed instead of captured routing.
#include <array>
#include <filesystem>
#include <fstream>

#include "core/formats.h"
#include "lab/trace_tree.h"
#include "weights/safetensors_write.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Sizes {
  const char* uuid;
  int32_t tokens, offset;
};
// First eight digits of the public uuid, seq_len and local_expert_offset, in the file's order.
constexpr Sizes kWorkloads[] = {
    {"b8f4f012", 7, 192},    {"e05c6c03", 1, 32},      {"6230e838", 32, 32}, {"8f1ff9f1", 80, 96},
    {"1a4c6ba1", 901, 96},   {"a7c2bcfd", 16, 224},    {"2e69caee", 15, 32}, {"8cba5890", 14, 0},
    {"5e8dc11c", 14107, 32}, {"58a34f27", 11948, 128}, {"5eadab1e", 62, 96}, {"eedc63b2", 59, 160},
    {"e626d3e6", 58, 64},    {"74d7ff04", 57, 96},     {"4822167c", 56, 64}, {"81955b1e", 55, 128},
    {"76010cb4", 54, 128},   {"fc378037", 53, 32},     {"f7d6ac7c", 52, 160}};
constexpr const char* kOpType = "moe";

// The definition's `run`: what this project computes, in PyTorch and F32.
constexpr const char* kReference = R"(import torch


def run(routing_logits, routing_bias, hidden_states, hidden_states_scale, gemm1_weights,
        gemm1_weights_scale, gemm2_weights, gemm2_weights_scale, local_expert_offset,
        routed_scaling_factor):
    groups, kept_groups, top_k, block = 8, 4, 8, 128
    tokens, experts = routing_logits.shape
    local, inter = gemm2_weights.shape[0], gemm2_weights.shape[2]

    def unscale(codes, scale):
        rows = scale.repeat_interleave(block, dim=-2)
        return codes.float() * rows.repeat_interleave(block, dim=-1)

    s = torch.sigmoid(routing_logits.float())
    b = s + routing_bias.float()
    of_group = b.view(tokens, groups, -1).topk(2, dim=-1).values.sum(-1)
    kept = torch.zeros_like(of_group).scatter_(1, of_group.topk(kept_groups, dim=-1).indices, 1)
    open_ = kept.repeat_interleave(experts // groups, dim=1).bool()
    ids = b.masked_fill(~open_, torch.finfo(torch.float32).min).topk(top_k, dim=-1).indices
    w = s.gather(1, ids)
    w = w / (w.sum(-1, keepdim=True) + 1e-20) * routed_scaling_factor

    a = hidden_states.float() * hidden_states_scale.t().repeat_interleave(block, dim=1)
    out = torch.zeros_like(a)
    for e in range(local):
        token, slot = (ids == e + int(local_expert_offset)).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        up_gate = a[token] @ unscale(gemm1_weights[e], gemm1_weights_scale[e]).t()
        up, gate = up_gate[:, :inter], up_gate[:, inter:]
        y = (torch.nn.functional.silu(gate) * up) @ unscale(
            gemm2_weights[e], gemm2_weights_scale[e]).t()
        out.index_add_(0, token, y * w[token, slot].unsqueeze(1))
    return out.to(torch.bfloat16)
)";

std::string definition_name(const TreeOptions& o) {
  return "moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e" + std::to_string(o.num_local_experts) +
         "_h" + std::to_string(o.hidden) + "_i" + std::to_string(o.intermediate);
}

Json definition_json(const TreeOptions& o) {
  const auto constant = [](int64_t value) { return Json{{"type", "const"}, {"value", value}}; };
  const auto tensor = [](std::vector<const char*> shape, const char* dtype) {
    return Json{{"shape", shape}, {"dtype", dtype}};
  };
  const auto scalar = [](const char* dtype) { return Json{{"shape", nullptr}, {"dtype", dtype}}; };
  return {
      {"name", definition_name(o)},
      {"op_type", kOpType},
      {"description", "FP8 block-scale mixture of experts with grouped sigmoid routing"},
      {"tags", {"status:generated"}},
      {"axes",
       {{"seq_len", {{"type", "var"}}},
        {"num_experts", constant(o.num_experts)},
        {"num_local_experts", constant(o.num_local_experts)},
        {"hidden_size", constant(o.hidden)},
        {"intermediate_size", constant(o.intermediate)},
        {"gemm1_out_size", constant(2 * int64_t{o.intermediate})},
        {"num_hidden_blocks", constant(o.hidden / kFp8Block)},
        {"num_intermediate_blocks", constant(o.intermediate / kFp8Block)},
        {"num_gemm1_out_blocks", constant(2 * o.intermediate / kFp8Block)}}},
      {"inputs",
       {{"routing_logits", tensor({"seq_len", "num_experts"}, "float32")},
        {"routing_bias", tensor({"num_experts"}, "bfloat16")},
        {"hidden_states", tensor({"seq_len", "hidden_size"}, "float8_e4m3fn")},
        {"hidden_states_scale", tensor({"num_hidden_blocks", "seq_len"}, "float32")},
        {"gemm1_weights",
         tensor({"num_local_experts", "gemm1_out_size", "hidden_size"}, "float8_e4m3fn")},
        {"gemm1_weights_scale",
         tensor({"num_local_experts", "num_gemm1_out_blocks", "num_hidden_blocks"}, "float32")},
        {"gemm2_weights",
         tensor({"num_local_experts", "hidden_size", "intermediate_size"}, "float8_e4m3fn")},
        {"gemm2_weights_scale",
         tensor({"num_local_experts", "num_hidden_blocks", "num_intermediate_blocks"}, "float32")},
        {"local_expert_offset", scalar("int32")},
        {"routed_scaling_factor", scalar("float32")}}},
      {"outputs", {{"output", tensor({"seq_len", "hidden_size"}, "bfloat16")}}},
      {"reference", kReference}};
}

Status write_text(const fs::path& path, const std::string& text) {
  std::error_code code;
  fs::create_directories(path.parent_path(), code);
  if (code) return fail(code.message(), path.string(), "check the path and permissions");
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file) return fail("could not be written whole", path.string(), "is the disk full?");
  return {};
}

// Writes the routing of one workload; returns its line.
Result<Json> write_workload(const fs::path& root, const TreeOptions& o, const Sizes& sizes,
                            uint64_t seed, RandomTensors& random) {
  const std::string name = definition_name(o);
  const std::string uuid = std::string(sizes.uuid) + "-0000-4000-8000-000000000000";
  const int64_t num_logits = int64_t{sizes.tokens} * o.num_experts;
  std::vector<float> logits(static_cast<size_t>(num_logits));
  std::vector<float> bias(static_cast<size_t>(o.num_experts));
  std::vector<uint16_t> bias_words;
  random.fill_normal(logits.data(), num_logits, 2 * seed);
  random.fill_normal(bias.data(), o.num_experts, 2 * seed + 1);
  for (const float value : bias) bias_words.push_back(f32_to_bf16(0.01f * value));
  const std::string blob = "blob/workloads/" + std::string(kOpType) + "/" + name + "/" + name +
                           "_" + uuid + ".safetensors";
  std::error_code code;
  fs::create_directories((root / blob).parent_path(), code);
  if (code) return fail(code.message(), (root / blob).string(), "check the path and permissions");
  const auto written = write_safetensors((root / blob).string(),
                                         {{"routing_logits",
                                           "F32",
                                           {sizes.tokens, o.num_experts},
                                           reinterpret_cast<const std::byte*>(logits.data())},
                                          {"routing_bias",
                                           "BF16",
                                           {o.num_experts},
                                           reinterpret_cast<const std::byte*>(bias_words.data())}});
  if (!written) return fail(written.error());
  Json inputs;
  for (const std::string& input : moe_fp8_input_names()) {
    if (input.starts_with("routing_"))
      inputs[input] = {{"type", "safetensors"}, {"path", "./" + blob}, {"tensor_key", input}};
    else
      inputs[input] = {{"type", "random"}};
  }
  // The public offsets are for 256 experts in eighths.
  const int64_t offset = int64_t{sizes.offset} * o.num_experts / 256;
  inputs["local_expert_offset"] = {{"type", "scalar"}, {"value", offset}};
  inputs["routed_scaling_factor"] = {{"type", "scalar"}, {"value", 2.5}};
  return Json{
      {"definition", name},
      {"workload", {{"uuid", uuid}, {"axes", {{"seq_len", sizes.tokens}}}, {"inputs", inputs}}},
      {"solution", nullptr},
      {"evaluation", nullptr}};
}

}  // namespace

Result<int> make_trace_tree(const std::string& folder, const TreeOptions& o, ThreadPool& pool) {
  const MoeFp8Params sizes{.num_experts = o.num_experts,
                           .num_local_experts = o.num_local_experts,
                           .hidden = o.hidden,
                           .intermediate = o.intermediate};
  if (const char* why = moe_fp8_shape_fault(sizes)) return fail(why, "make-tree");
  if (o.num_local_experts > o.num_experts / 8)
    return fail("local experts: at most an eighth of the experts", "make-tree",
                "the workloads' offsets are in eighths");
  const fs::path root(folder);
  std::error_code code;
  if (fs::exists(root, code) && !fs::is_empty(root, code))
    return fail("exists and is not empty", folder, "name another folder");
  const std::string name = definition_name(o);
  const auto definition = definition_json(o).dump(2) + "\n";
  if (auto written = write_text(root / "definitions" / kOpType / (name + ".json"), definition);
      !written)
    return fail(written.error());
  RandomTensors random(pool);
  std::string lines;
  int num_workloads = 0;
  uint64_t number = 0;
  for (const Sizes& workload : kWorkloads) {
    ++number;
    if (workload.tokens > o.max_tokens) continue;
    auto line = write_workload(root, o, workload, o.seed * 100 + number, random);
    if (!line) return fail(line.error());
    lines += line->dump() + "\n";
    ++num_workloads;
  }
  if (num_workloads == 0) return fail("no workload has so few tokens", "--max-tokens");
  if (auto written = write_text(root / "workloads" / kOpType / (name + ".jsonl"), lines); !written)
    return fail(written.error());
  return num_workloads;
}

}  // namespace moxie
