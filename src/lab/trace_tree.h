// A flashinfer-trace tree: definitions, workloads with their blobs, and traces.
//
//   definitions/<op>/<definition>.json     workloads/<op>/<definition>.jsonl
//   traces/<author>/<op>/<definition>.jsonl     blob/...
// Nothing is trusted: every field that is read is checked, and blobs must lie in the tree.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lab/moe_fp8_inputs.h"

namespace moxie {

/// A definition of an operation, as far as inputs are concerned.
struct TraceDefinition {
  struct Input {
    std::string name, dtype;        ///< "float8_e4m3fn"
    bool is_scalar = false;         ///< its shape is null
    std::vector<std::string> axes;  ///< of its shape
  };
  std::string path, name, op_type;
  std::map<std::string, int64_t> constants;  ///< axes of type const
  std::vector<Input> inputs;
};

/// One line of a workloads file.
struct TraceWorkload {
  std::string where;  ///< file and line, for messages
  std::string uuid;
  std::map<std::string, int64_t> axes;
  nlohmann::ordered_json inputs;  ///< by name: {"type": ...}
  nlohmann::ordered_json json;    ///< the whole "workload" object, as traces repeat it
};

/// The definitions of the tree whose inputs are those of moe_fp8_block_scale; `only` names one,
/// which must be among them. Fails if there is none.
Result<std::vector<TraceDefinition>> read_definitions(const std::string& tree,
                                                      const std::string& only);
Result<TraceDefinition> parse_definition(const std::string& text, const std::string& path);

Result<std::vector<TraceWorkload>> read_workloads(const std::string& tree,
                                                  const TraceDefinition& definition);

/// The tensors of workloads. Random ones come from the seed; those whose shape has no variable axis
/// are made once and used for all workloads, since they hold the weights.
class WorkloadTensors {
 public:
  WorkloadTensors(std::string tree, const TraceDefinition& definition, uint64_t seed,
                  ThreadPool& pool)
      : tree_(std::move(tree)), definition_(definition), seed_(seed), random_(pool) {}
  /// Valid until the next call.
  Result<std::vector<OpTensor>> tensors_of(const TraceWorkload& workload);

 private:
  Result<OpTensor> random_tensor(const TraceDefinition::Input& input, const Shape& shape,
                                 uint64_t seed);
  Result<OpTensor> stored_tensor(const TraceDefinition::Input& input, const Shape& shape,
                                 const nlohmann::ordered_json& from, const std::string& where);
  Result<OpTensor> scalar(const TraceDefinition::Input& input, const nlohmann::ordered_json& from,
                          const std::string& where);

  std::string tree_;
  const TraceDefinition& definition_;
  uint64_t seed_;
  RandomTensors random_;
  std::map<std::string, std::unique_ptr<std::byte[]>> kept_;  // by name: for all workloads
  std::vector<std::unique_ptr<std::byte[]>> memory_;          // of this workload
  std::vector<SafetensorsFile> files_;
};

/// What a tree of make_trace_tree() holds; the defaults are the public definition's extents.
struct TreeOptions {
  int32_t num_experts = 256, num_local_experts = 32, hidden = 7168, intermediate = 2048;
  int32_t max_tokens = 1 << 20;  ///< leaves out workloads of more tokens
  uint64_t seed = 1;
};
/// Writes a tree with the definition, the public workloads' numbers of tokens and offsets, and
/// random routing. Returns the number of workloads. Fails if the folder exists and is not empty.
Result<int> make_trace_tree(const std::string& folder, const TreeOptions& options,
                            ThreadPool& pool);

/// Whether a name may be a part of a path in the tree: of an author, an operation or a definition.
bool is_plain_name(const std::string& name);
/// Makes the folder of traces/<author>/<op>/<definition>.jsonl and returns that path. Fails if
/// append_traces() could not write there.
Result<std::string> place_of_traces(const std::string& tree, const std::string& author,
                                    const TraceDefinition& definition);
Status append_traces(const std::string& path, const std::vector<nlohmann::ordered_json>& traces);

}  // namespace moxie
