// The table of weights: for each packed weight its names in every format of files, its shape, the
// types a file may store, its shard axis, whether a model may lack it, and its place in
// ModelWeights. Readers, loader, packer, memory plan, inspect, the synthetic maker and the writer
// walk it; there is no other list. docs/adding-a-weight.md adds an entry.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/repack_cuda.h"
#include "model/weights.h"

namespace moxie {

/// A dimension in terms of the configuration, and where a rank's share of it begins; null: there is
/// none.
struct DimRange {
  int32_t first = 0, count = 0;
};
using Dim = DimRange (*)(const GptOssConfig& config);

/// How files name and order tensors; bits, so that an entry can hold several formats.
enum class FileFormat : uint8_t {
  kHuggingFace = 1,
  kOriginal = 2,  ///< `original/`
  kGguf = 4,      ///< architecture "gpt-oss"
  kOldGguf = 8    ///< architecture "gptoss"; such files use names of kGguf too
};

/// How files store the parts of a packed weight (q, k and v; gate and up).
enum class PartsIn : uint8_t {
  kOwn,      ///< each in a tensor of its own
  kStacked,  ///< one tensor: all rows of a part, then those of the next
  kInTurn    ///< one tensor: a row of each part in turn (interleaved)
};

inline constexpr int kMaxParts = 3;

/// One way of storing a packed weight. Names follow FormatNames::layer_prefix and the layer's
/// number where each layer has one.
struct StoredAs {
  uint8_t formats = 0;  ///< of FileFormat
  PartsIn parts = PartsIn::kOwn;
  std::string_view names[kMaxParts];
};

/// The types a file may store.
enum class StoredTypes : uint8_t {
  kFloats,  ///< BF16, F16 or F32
  kDense,   ///< floats; in GGUF also MXFP4 and Q8_0
  kExperts  ///< as kDense; in the other formats also MXFP4 as two U8 tensors, blocks and scales
};

/// What a rank of several holds. Rows and columns are the matrix's (of q, k and v whole heads).
/// kExperts: experts, or columns of each expert's intermediate values. kFirstRank: what is added
/// once: the first rank has it, the others have zeros, but a rank has its own experts'. kNone: the
/// whole weight.
enum class ShardAxis : uint8_t { kNone, kRows, kColumns, kExperts, kVocabulary, kFirstRank };

/// What rows get for a weight that the model lacks.
enum class Absent : uint8_t {
  kZeros,  ///< zeros of its size, which rows read without a check
  kNone    ///< a null pointer (vectors only), which rows accept
};

/// The member that holds the weight. The alternative says how it is packed: a table of rows, a
/// matrix, or a vector of F32. Members of LayerWeights: every layer has one.
using WeightPlace = std::variant<RowTable ModelWeights::*, PackedMatrix ModelWeights::*,
                                 const float * ModelWeights::*, PackedMatrix LayerWeights::*,
                                 const float * LayerWeights::*>;

struct WeightEntry {
  std::string_view name;  ///< of the member
  WeightPlace place;
  Dim parts[kMaxParts] = {};  ///< rows (elements of a vector) of each part
  Dim cols = nullptr;         ///< null: a vector
  bool is_per_expert = false;
  PackedRowOrder order = PackedRowOrder::kNatural;
  StoredTypes types = StoredTypes::kFloats;
  ShardAxis shard = ShardAxis::kNone;
  /// The model has it where this member of the configuration is set; null: always.
  bool GptOssConfig::*has = nullptr;
  Absent absent = Absent::kZeros;
  /// The switch that quantises it when it is loaded; null: none does.
  bool DenseLayers::*quantised = nullptr;
  /// Values of synthetic models and of written checkpoints. A matrix: the deviation of its outputs
  /// for inputs of deviation 1; a table: the deviation of its values; a vector: each value.
  double made = 0;
  std::array<StoredAs, 5> stored = {};
};

/// The table, in the order in which weights lie in memory.
std::span<const WeightEntry> weight_table();

/// One packed weight of a model.
struct Weight {
  const WeightEntry* entry = nullptr;
  size_t index = 0;    ///< in the walk
  int32_t layer = -1;  ///< -1: the model's
  bool is_present = true;
  int32_t num_parts = 1;
  int32_t part_rows[kMaxParts] = {}, all_parts_rows = 0;
  int32_t part_first[kMaxParts] = {}, first_col = 0, first_expert = 0;  ///< of a rank's share
  int32_t num_experts = 1;
  int32_t rows = 0;  ///< packed, of one expert: gate and up are padded to whole tiles
  int32_t cols = 0;  ///< 0: a vector

  std::string name() const;  ///< "layers.3.qkv", "head"
  bool is_vector() const { return cols == 0; }
  bool is_gate_up() const { return entry->order == PackedRowOrder::kGateUp; }
  /// Packed rows that no part fills.
  bool has_padding() const { return all_parts_rows < rows; }
  int64_t num_elements() const { return int64_t{num_experts} * rows * std::max(cols, 1); }
  bool is_null() const { return !is_present && entry->absent == Absent::kNone; }
};

/// Visits every weight of the table, those of layers layer by layer; absent ones too.
void for_each_weight(const GptOssConfig& config, const std::function<void(const Weight&)>& visit);

/// Calls visit with the weight's place: RowTable&, PackedMatrix& or const float*&, const if
/// `weights` is.
template <typename Weights, typename Visit>
void visit_place(const Weight& weight, Weights& weights, Visit&& visit) {
  std::visit(
      [&]<typename T, typename Owner>(T Owner::*member) {
        if constexpr (std::is_same_v<Owner, LayerWeights>)
          visit(weights.layers[static_cast<size_t>(weight.layer)].*member);
        else
          visit(weights.*member);
      },
      weight.entry->place);
}

/// Overloads several functions by argument type, for visit_place.
template <typename... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};
template <typename... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

/// A part of a weight in a file's tensor: row r of the part is the tensor's row first + r * step.
struct PartInFile {
  std::string tensor;
  Shape shape;  ///< of the whole dense tensor: [experts, rows, columns] without absent dimensions
  int32_t first = 0, step = 1, num_rows = 0;
};

/// The parts of a weight in a format, in the first way of storing whose first tensor name
/// `has_tensor` accepts. If there is none, in the last way, whose usual names go into faults.
std::vector<PartInFile> parts_in_file(
    const Weight& weight, FileFormat format,
    const std::function<bool(const std::string&)>& has_tensor = [](const auto&) { return false; });

/// A tensor of a file; names of kExperts lack the endings for blocks and scales.
struct TensorInFile {
  std::string name;
  Shape shape;
};
std::vector<TensorInFile> tensors_in_file(const Weight& weight, FileFormat format);

/// The differences between formats in tensor names.
struct FormatNames {
  std::string_view layer_prefix;
  std::string_view blocks, scales;  ///< kExperts: endings of the names of MXFP4's two tensors
};
const FormatNames& format_names(FileFormat format);

}  // namespace moxie
