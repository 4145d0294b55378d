// Reads definitions, workloads and blobs of a tree, and appends traces.
#include "lab/trace_tree.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/formats.h"
#include "core/json_text.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A definition or a line is small; a workloads file has one line a workload.
constexpr uintmax_t kMostTextBytes = uintmax_t{64} << 20;

Result<std::string> text_of(const fs::path& path) {
  std::error_code code;
  const uintmax_t bytes = fs::file_size(path, code);
  if (code) return fail(code.message(), path.string(), "is this a flashinfer-trace tree?");
  if (bytes > kMostTextBytes) return fail("is larger than 64 MiB", path.string());
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.good() && !file.eof()) return fail("could not be read", path.string());
  return text;
}

Result<std::string> string_at(const Json& from, const char* key, const std::string& where) {
  const auto at = from.find(key);
  if (at == from.end() || !at->is_string())
    return fail(at == from.end() ? "is missing" : "is not a string", where + ": " + key);
  return at->get<std::string>();
}
Result<const Json*> object_at(const Json& from, const char* key, const std::string& where) {
  const auto at = from.find(key);
  if (at == from.end() || !at->is_object())
    return fail(at == from.end() ? "is missing" : "is not an object", where + ": " + key);
  return &*at;
}

// safetensors' name of a definition's dtype, and its bytes; empty: not one of ours.
std::pair<std::string, int64_t> stored_dtype(const std::string& dtype) {
  if (dtype == "float32") return {"F32", 4};
  if (dtype == "bfloat16") return {"BF16", 2};
  if (dtype == "float8_e4m3fn") return {"F8_E4M3", 1};
  if (dtype == "int32") return {"I32", 4};
  if (dtype == "int64") return {"I64", 8};
  return {"", 0};
}

bool is_for_us(const TraceDefinition& definition) {
  std::set<std::string> names;
  for (const auto& input : definition.inputs) names.insert(input.name);
  const auto& ours = moe_fp8_input_names();
  return std::all_of(ours.begin(), ours.end(),
                     [&](const auto& name) { return names.contains(name); });
}

// The greatest extent: products of three of them fit in 64 bits.
constexpr int64_t kMostExtent = int64_t{1} << 20;

Result<int64_t> extent_of(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value < 0 || value > kMostExtent)
    return fail("is " + value.dump() + ", expected an integer from 0 to 1048576", where);
  return value.get<int64_t>();
}

Result<TraceDefinition::Input> parse_input(const std::string& name, const Json& json,
                                           const std::string& where) {
  if (!json.is_object()) return fail("is not an object", where);
  auto dtype = string_at(json, "dtype", where);
  if (!dtype) return fail(dtype.error());
  TraceDefinition::Input input{.name = name, .dtype = *dtype};
  const auto shape = json.find("shape");
  if (shape == json.end() || shape->is_null()) {
    input.is_scalar = true;
    return input;
  }
  if (!shape->is_array() || shape->size() > Shape::kMaxRank)
    return fail("is not a list of up to 5 axes", where + ": shape");
  for (const Json& axis : *shape) {
    if (!axis.is_string()) return fail("has an axis that is not a name", where + ": shape");
    input.axes.push_back(axis.get<std::string>());
  }
  return input;
}

}  // namespace

Result<TraceDefinition> parse_definition(const std::string& text, const std::string& path) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return fail("is not a JSON object", path);
  auto name = string_at(json, "name", path);
  if (!name) return fail(name.error());
  auto op_type = string_at(json, "op_type", path);
  if (!op_type) return fail(op_type.error());
  if (!is_plain_name(*name) || !is_plain_name(*op_type))
    return fail("name or op_type is no plain name", path, "both become parts of paths");
  auto axes = object_at(json, "axes", path);
  if (!axes) return fail(axes.error());
  auto inputs = object_at(json, "inputs", path);
  if (!inputs) return fail(inputs.error());
  TraceDefinition definition{.path = path, .name = *name, .op_type = *op_type};
  for (const auto& [axis, value] : (*axes)->items()) {
    const std::string where = fmt::format("{}: axes: {}", path, axis);
    if (!value.is_object()) return fail("is not an object", where);
    auto type = string_at(value, "type", where);
    if (!type) return fail(type.error());
    if (*type == "var") continue;
    if (*type != "const") return fail("has type '" + *type + "', expected const or var", where);
    if (!value.contains("value")) return fail("has no value", where);
    auto extent = extent_of(value["value"], where);
    if (!extent) return fail(extent.error());
    definition.constants[axis] = *extent;
  }
  for (const auto& [input, value] : (*inputs)->items()) {
    auto parsed = parse_input(input, value, fmt::format("{}: inputs: {}", path, input));
    if (!parsed) return fail(parsed.error());
    definition.inputs.push_back(std::move(*parsed));
  }
  return definition;
}

Result<std::vector<TraceDefinition>> read_definitions(const std::string& tree,
                                                      const std::string& only) {
  std::vector<fs::path> paths;
  std::error_code code;
  for (fs::recursive_directory_iterator at(fs::path(tree) / "definitions", code), end;
       !code && at != end; at.increment(code))
    if (at->path().extension() == ".json") paths.push_back(at->path());
  if (code)
    return fail(code.message(), (fs::path(tree) / "definitions").string(),
                "--dataset takes the root of a flashinfer-trace tree");
  std::sort(paths.begin(), paths.end());
  std::vector<TraceDefinition> found;
  for (const fs::path& path : paths) {
    if (!only.empty() && path.stem() != only) continue;
    auto text = text_of(path);
    if (!text) return fail(text.error());
    auto definition = parse_definition(*text, path.string());
    if (!definition) return fail(definition.error());
    if (is_for_us(*definition)) found.push_back(std::move(*definition));
  }
  if (found.empty())
    return fail(only.empty()
                    ? "has no definition with the inputs of moe_fp8_block_scale"
                    : "has no definition " + only + " with the inputs of moe_fp8_block_scale",
                tree, "`moxie op make-tree` writes one");
  return found;
}

Result<std::vector<TraceWorkload>> read_workloads(const std::string& tree,
                                                  const TraceDefinition& definition) {
  const std::string path =
      (fs::path(tree) / "workloads" / definition.op_type / (definition.name + ".jsonl")).string();
  auto text = text_of(path);
  if (!text) return fail(text.error());
  std::vector<TraceWorkload> workloads;
  std::istringstream lines(*text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = path + ":" + std::to_string(number);
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object()) return fail("is not a JSON object", where);
    auto of = string_at(json, "definition", where);
    if (!of) return fail(of.error());
    if (*of != definition.name) return fail("is for definition " + *of, where);
    auto workload = object_at(json, "workload", where);
    if (!workload) return fail(workload.error());
    auto uuid = string_at(**workload, "uuid", where);
    if (!uuid) return fail(uuid.error());
    auto axes = object_at(**workload, "axes", where);
    if (!axes) return fail(axes.error());
    auto inputs = object_at(**workload, "inputs", where);
    if (!inputs) return fail(inputs.error());
    TraceWorkload read{.where = where, .uuid = *uuid, .inputs = **inputs, .json = **workload};
    for (const auto& [axis, value] : (*axes)->items()) {
      auto extent = extent_of(value, fmt::format("{}: axes: {}", where, axis));
      if (!extent) return fail(extent.error());
      read.axes[axis] = *extent;
    }
    workloads.push_back(std::move(read));
  }
  if (workloads.empty()) return fail("has no workload", path);
  return workloads;
}

// ---- Tensors ------------------------------------------------------------------------------------

Result<OpTensor> WorkloadTensors::random_tensor(const TraceDefinition::Input& input,
                                                const Shape& shape, uint64_t seed) {
  const auto [dtype, width] = stored_dtype(input.dtype);
  const int64_t count = shape.num_elements();
  std::unique_ptr<std::byte[]> memory(
      new (std::nothrow) std::byte[static_cast<size_t>(std::max<int64_t>(count * width, 1))]);
  if (memory == nullptr) return fail("no memory for " + shape.to_string(), input.name);
  OpTensor tensor{input.name, dtype, shape, memory.get()};
  if (dtype == "F8_E4M3") {
    random_.fill_codes(reinterpret_cast<uint8_t*>(memory.get()), count, seed);
  } else if (dtype == "F32") {
    random_.fill_normal(reinterpret_cast<float*>(memory.get()), count, seed);
  } else if (dtype == "BF16") {
    std::vector<float> values(static_cast<size_t>(count));
    random_.fill_normal(values.data(), count, seed);
    auto* to = reinterpret_cast<uint16_t*>(memory.get());
    for (size_t i = 0; i < values.size(); ++i) to[i] = f32_to_bf16(values[i]);
  } else {
    return fail("a random tensor of " + input.dtype + " is not known", input.name);
  }
  const bool is_constant = std::all_of(input.axes.begin(), input.axes.end(), [&](const auto& axis) {
    return definition_.constants.contains(axis);
  });
  if (is_constant)
    kept_[input.name] = std::move(memory);
  else
    memory_.push_back(std::move(memory));
  return tensor;
}

Result<OpTensor> WorkloadTensors::stored_tensor(const TraceDefinition::Input& input,
                                                const Shape& shape, const Json& from,
                                                const std::string& where) {
  auto path = string_at(from, "path", where);
  if (!path) return fail(path.error());
  auto key = string_at(from, "tensor_key", where);
  if (!key) return fail(key.error());
  const fs::path relative = fs::path(*path).lexically_normal();
  if (relative.is_absolute() || relative.empty() || *relative.begin() == "..")
    return fail("lies outside of the tree: " + *path, where);
  const std::string full = (fs::path(tree_) / relative).string();
  auto file = SafetensorsFile::open(full);
  if (!file) return fail(file.error());
  const FileTensor* tensor = file->find(*key);
  if (tensor == nullptr) return fail("has no tensor " + *key, full);
  if (!tensor->is_readable) return fail("its bytes are not in the file", full + ": " + *key);
  if (!(tensor->shape == shape))
    return fail("has shape " + tensor->shape.to_string() + ", expected " + shape.to_string(),
                full + ": " + *key);
  OpTensor found{input.name, tensor->dtype_text, shape, file->data(*tensor)};
  files_.push_back(std::move(*file));
  return found;
}

Result<OpTensor> WorkloadTensors::scalar(const TraceDefinition::Input& input, const Json& from,
                                         const std::string& where) {
  const auto value = from.find("value");
  if (value == from.end() || !value->is_number()) return fail("has no number as value", where);
  memory_.emplace_back(new std::byte[8]);
  OpTensor tensor{input.name, "", Shape{}, memory_.back().get()};
  if (input.dtype.starts_with("int")) {
    if (!value->is_number_integer()) return fail("is " + value->dump() + ", not an integer", where);
    const auto number = value->get<int64_t>();
    tensor.dtype = "I64";
    std::memcpy(memory_.back().get(), &number, 8);
  } else {
    const auto number = value->get<double>();
    tensor.dtype = "F64";
    std::memcpy(memory_.back().get(), &number, 8);
  }
  return tensor;
}

Result<std::vector<OpTensor>> WorkloadTensors::tensors_of(const TraceWorkload& workload) {
  memory_.clear();
  files_.clear();
  std::vector<OpTensor> tensors;
  uint64_t number = 0;
  for (const auto& input : definition_.inputs) {
    ++number;
    const std::string where = workload.where + ": inputs: " + input.name;
    const auto from = workload.inputs.find(input.name);
    if (from == workload.inputs.end() || !from->is_object()) return fail("is missing", where);
    auto type = string_at(*from, "type", where);
    if (!type) return fail(type.error());
    Shape shape;
    for (const std::string& axis : input.axes) {
      const auto constant = definition_.constants.find(axis);
      const auto variable = workload.axes.find(axis);
      if (constant == definition_.constants.end() && variable == workload.axes.end())
        return fail("its axis " + axis + " has no value", where);
      shape.dims[shape.rank++] =
          constant != definition_.constants.end() ? constant->second : variable->second;
    }
    // Random tensors of one definition differ, and so do those of its workloads.
    const uint64_t seed = seed_ * 1000 + number;
    Result<OpTensor> tensor =
        fail("has type '" + *type + "'", where, "expected random, scalar or safetensors");
    if (*type == "scalar") {
      tensor = scalar(input, *from, where);
    } else if (*type == "safetensors") {
      tensor = stored_tensor(input, shape, *from, where);
    } else if (*type == "random" && kept_.contains(input.name)) {
      tensor =
          OpTensor{input.name, stored_dtype(input.dtype).first, shape, kept_[input.name].get()};
    } else if (*type == "random") {
      tensor = random_tensor(input, shape, seed + std::hash<std::string>()(workload.uuid));
    }
    if (!tensor) return fail(tensor.error());
    tensors.push_back(std::move(*tensor));
  }
  return tensors;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of("/\\") == std::string::npos && name.find('\0') == std::string::npos;
}

Result<std::string> place_of_traces(const std::string& tree, const std::string& author,
                                    const TraceDefinition& definition) {
  CHECK(is_plain_name(author), "is no plain name: " + author);
  const fs::path folder = fs::path(tree) / "traces" / author / definition.op_type;
  std::error_code code;
  fs::create_directories(folder, code);
  if (code) return fail(code.message(), folder.string(), "check the path and permissions");
  const fs::path path = folder / (definition.name + ".jsonl");
  const fs::path& written = fs::exists(path, code) ? path : folder;
  if (::access(written.c_str(), W_OK) != 0)
    return fail(std::strerror(errno), written.string(), "check the path and permissions");
  return path.string();
}

Status append_traces(const std::string& path, const std::vector<Json>& traces) {
  std::ofstream file(path, std::ios::binary | std::ios::app);
  for (const Json& trace : traces) file << json_text(trace) << '\n';
  file.close();
  if (!file) return fail("could not be written whole", path, "is the disk full?");
  return {};
}

}  // namespace moxie
