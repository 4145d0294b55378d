// Names of steps, forced rows, counts, and the list of all rows.
#include "kernels/registry.h"

#include <algorithm>

#include "core/nearest.h"
#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/experts/experts.h"
#include "kernels/gemm/tile_model.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/route/route.h"
#include "kernels/sample/sample.h"
#include "kernels/unembed/unembed.h"

namespace moxie {
namespace {

constexpr const char* kStepNames[kNumSteps] = {"embed", "qkv",     "attend",  "out",
                                               "route", "experts", "unembed", "sample"};

// Kinds of rows of experts, and what their names contain: one of these.
struct KindOfExperts {
  const char* name;
  std::array<std::string_view, 3> parts;
  bool has(std::string_view row) const {
    return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
      return !part.empty() && row.find(part) != row.npos;
    });
  }
};
constexpr KindOfExperts kKindsOfExperts[] = {{"gemv", {"_gemv", "_slices_", "_tiles_"}},
                                             {"w4a16", {"_bf16_gemm"}},
                                             {"w4a8", {"_e4m3_gemm"}}};

const KindOfExperts* kind_of_experts(std::string_view name) {
  for (const KindOfExperts& kind : kKindsOfExperts)
    if (name == kind.name) return &kind;
  return nullptr;
}

template <typename P>
void append_rows(std::vector<RowInfo>& rows) {
  for (const Row<P>& row : table_of<P>()) rows.push_back(row_info(row));
}

}  // namespace

const char* step_name(StepKind step) { return kStepNames[static_cast<int>(step)]; }

std::vector<RowInfo> all_rows() {
  std::vector<RowInfo> rows;
  append_rows<EmbedParams>(rows);
  append_rows<QkvParams>(rows);
  append_rows<AttendParams>(rows);
  append_rows<OutParams>(rows);
  append_rows<RouteParams>(rows);
  append_rows<ExpertsParams>(rows);
  append_rows<UnembedParams>(rows);
  append_rows<SampleParams>(rows);
  return rows;
}

bool takes_tile(std::string_view row) { return row.find("_bf16_gemm_sm90") != row.npos; }

Status KernelChoice::add(const std::string& assignment) {
  const auto equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == assignment.size()) {
    return fail("expected STEP=NAME, found '" + assignment + "'", "--kernel",
                "for example --kernel experts=reference; `moxie kernels` lists them");
  }
  const std::string step = assignment.substr(0, equals);
  const std::string name = assignment.substr(equals + 1);
  if (step == "all") {
    if (name != "reference" && name != "auto") {
      return fail("all= takes 'reference' or 'auto', found '" + name + "'", "--kernel");
    }
    for (int i = 0; i < kNumSteps; ++i) {
      if (name == "auto")
        forced_[i].reset();
      else
        forced_[i] = std::string(kStepNames[i]) + "_reference";
    }
    return {};
  }
  const auto found = std::find(std::begin(kStepNames), std::end(kStepNames), step);
  if (found == std::end(kStepNames)) {
    const std::vector<std::string> step_names(std::begin(kStepNames), std::end(kStepNames));
    return fail("no step '" + step + "'", "--kernel",
                "did you mean '" + nearest_name(step, step_names) + "'?");
  }
  const int index = static_cast<int>(found - std::begin(kStepNames));
  if (name == "auto") {
    forced_[index].reset();
    return {};
  }
  const std::string full = name == "reference" ? step + "_reference" : name;
  const bool is_experts = index == static_cast<int>(StepKind::kExperts);
  std::vector<std::string> known;
  for (const RowInfo& row : all_rows()) {
    if (static_cast<int>(row.step) == index) known.push_back(row.name);
  }
  if (is_experts)
    for (const KindOfExperts& kind : kKindsOfExperts) known.push_back(kind.name);
  if (std::find(known.begin(), known.end(), full) == known.end()) {
    return fail("step '" + step + "' has no row '" + name + "'", "--kernel",
                "did you mean '" + nearest_name(full, known) + "'? `moxie kernels` lists them");
  }
  forced_[index] = full;
  return {};
}

Status KernelChoice::set_tile(const std::string& tile) {
  auto columns = gemm::parse_tile(tile);
  if (!columns) return fail(std::move(columns.error()));
  tile_columns_ = *columns;
  return {};
}

bool KernelChoice::allows(StepKind step, std::string_view row) const {
  if (excluded_.contains(row)) return false;
  const auto& name = forced(step);
  if (!name || *name == row) return true;
  const KindOfExperts* kind = step == StepKind::kExperts ? kind_of_experts(*name) : nullptr;
  return kind != nullptr && kind->has(row);
}

Status KernelChoice::set_activation(const std::string& activation) {
  if (activation == "mxfp6" || activation == "mxfp4") {
    return fail("no row takes " + activation + " activations", "--activation",
                "auto, bf16 (or wider), int8 or mxfp8");
  }
  if (activation != "auto" && activation != "bf16" && activation != "int8" && activation != "mxfp8")
    return fail("unknown value '" + activation + "'", "--activation", "auto, bf16, int8 or mxfp8");
  activation_ = activation;
  return {};
}

DType KernelChoice::activation() const {
  const auto& row = forced(StepKind::kExperts);
  const bool wants = row && (*row == "w4a8" || kind_of_experts("w4a8")->has(*row));
  return activation_ == "mxfp8" || (activation_ == "auto" && wants) ? DType::kF8E4M3 : DType::kBF16;
}

bool KernelChoice::all_reference() const {
  for (int i = 0; i < kNumSteps; ++i) {
    if (!forced_[i] || *forced_[i] != std::string(kStepNames[i]) + "_reference") return false;
  }
  return true;
}

tl::unexpected<Error> KernelChooser::refusal(const std::string& row, StepKind step,
                                             const std::string& why) const {
  const std::string where = row.empty() ? "step " + std::string(step_name(step))
                                        : "--kernel " + std::string(step_name(step)) + "=" + row;
  return fail(why, where, "`moxie kernels` shows what this machine can run");
}

std::string KernelChooser::missing(Features needs) const {
  return "needs " + feature_names(needs & ~features_) + ", which this machine lacks";
}

void KernelChooser::count(StepKind step, const char* name) {
  std::lock_guard lock(mutex_);
  ++(recording_ ? *recording_ : counts_)[{static_cast<int>(step), name}];
}

void KernelChooser::count(const Launches& launches) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, number] : launches) counts_[key] += number;
}

void KernelChooser::begin_recording() {
  std::lock_guard lock(mutex_);
  CHECK(!recording_, "recording already");
  recording_.emplace();
}

KernelChooser::Launches KernelChooser::end_recording() {
  std::lock_guard lock(mutex_);
  CHECK(recording_.has_value(), "not recording");
  Launches launches = std::move(*recording_);
  recording_.reset();
  return launches;
}

std::vector<KernelChooser::Count> KernelChooser::counts() const {
  std::lock_guard lock(mutex_);
  std::vector<Count> list;
  for (const auto& [key, launches] : counts_) {
    list.push_back({static_cast<StepKind>(key.first), key.second, launches});
  }
  return list;
}

void KernelChooser::reset_counts() {
  std::lock_guard lock(mutex_);
  counts_.clear();
}

}  // namespace moxie
