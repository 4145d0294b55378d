// Forced rows, counts, and the list of all rows.
#include "kernels/registry.h"

#include <algorithm>
#include <optional>

#include "core/nearest.h"
#include "kernels/gemm/tile_model.h"

namespace moxie {

const OpInfo* op_named(std::string_view name) {
  for (const OpTable& table : all_ops())
    if (name == table.op->name) return table.op;
  return nullptr;
}

std::vector<RowInfo> all_rows() {
  std::vector<RowInfo> all;
  for (const OpTable& table : all_ops())
    for (RowInfo& row : table.rows()) all.push_back(std::move(row));
  return all;
}

Status KernelChoice::add(const std::string& assignment) {
  const auto equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == assignment.size()) {
    return fail("expected STEP=NAME, found '" + assignment + "'", "--kernel",
                "for example --kernel experts=reference; `moxie kernels` lists them");
  }
  const std::string op_name = assignment.substr(0, equals);
  const std::string name = assignment.substr(equals + 1);
  if (op_name == "all") {
    if (name != "reference" && name != "auto") {
      return fail("all= takes 'reference' or 'auto', found '" + name + "'", "--kernel");
    }
    forced_.clear();
    if (name == "auto") return {};
    for (const OpTable& table : all_ops())
      forced_[table.op] = {.name = std::string(table.op->name) + "_reference"};
    return {};
  }
  std::vector<std::string> known;
  const OpTable* of_name = nullptr;
  for (const OpTable& table : all_ops()) {
    known.emplace_back(table.op->name);
    if (op_name == table.op->name) of_name = &table;
  }
  if (of_name == nullptr) {
    return fail("no step '" + op_name + "'", "--kernel",
                "did you mean '" + nearest_name(op_name, known) + "'?");
  }
  if (name == "auto") {
    forced_.erase(of_name->op);
    return {};
  }
  Forced found{.name = name == "reference" ? op_name + "_reference" : name};
  known.clear();
  for (const RowInfo& row : of_name->rows()) {
    known.push_back(row.name);
    if (!row.kind.empty()) known.push_back(row.kind);
    if (found.name == row.name || found.name == row.kind) found.activation = row.activation;
  }
  if (std::find(known.begin(), known.end(), found.name) == known.end()) {
    return fail(
        "step '" + op_name + "' has no row '" + name + "'", "--kernel",
        "did you mean '" + nearest_name(found.name, known) + "'? `moxie kernels` lists them");
  }
  forced_[of_name->op] = std::move(found);
  return {};
}

const std::string* KernelChoice::forced(const OpInfo& op) const {
  const auto found = forced_.find(&op);
  return found == forced_.end() ? nullptr : &found->second.name;
}

Status KernelChoice::set_tile(const std::string& tile) {
  auto parsed = gemm::parse_tile(tile);
  if (!parsed) return fail(std::move(parsed.error()));
  tile_ = *parsed;
  return {};
}

namespace {

std::optional<DType> mx_format(const std::string& name) {
  for (const DType format : {DType::kMXFP8, DType::kMXFP6, DType::kMXFP6E3M2, DType::kMXFP4})
    if (name == dtype_name(format)) return format;
  return std::nullopt;
}

}  // namespace

Status KernelChoice::set_activation(const std::string& activation) {
  const bool is_known = activation == "auto" || activation == "bf16" || activation == "int8";
  if (!is_known && !mx_format(activation))
    return fail("unknown value '" + activation + "'", "--activation",
                "auto, bf16 (or wider), int8, mxfp8, mxfp6 (E2M3), mxfp6_e3m2 or mxfp4");
  activation_ = activation;
  return {};
}

DType KernelChoice::activation() const {
  if (const auto format = mx_format(activation_)) return *format;
  if (activation_ == "auto") {
    for (const auto& [op, forced] : forced_)
      if (forced.activation != DType::kBF16) return forced.activation;
  }
  return DType::kBF16;
}

bool KernelChoice::all_reference() const {
  return std::ranges::all_of(all_ops(), [&](const OpTable& table) {
    const std::string* name = forced(*table.op);
    return name != nullptr && *name == std::string(table.op->name) + "_reference";
  });
}

tl::unexpected<Error> KernelChooser::refusal(const std::string& row, const OpInfo& op,
                                             const std::string& why) const {
  const std::string where =
      row.empty() ? "step " + std::string(op.name) : "--kernel " + std::string(op.name) + "=" + row;
  return fail(why, where, "`moxie kernels` shows what this machine can run");
}

std::string KernelChooser::missing(Features needs) const {
  return "needs " + feature_names(needs & ~features_) + ", which this machine lacks";
}

void KernelChooser::count(const OpInfo& op, const char* name) {
  std::lock_guard lock(mutex_);
  ++(recording_ ? *recording_ : counts_)[{&op, name}];
}

void KernelChooser::count(const Launches& launches) {
  std::lock_guard lock(mutex_);
  for (const auto& [key, number] : launches) counts_[key] += number;
}

void KernelChooser::add_time(const OpInfo& op, Clock::duration time) {
  std::lock_guard lock(mutex_);
  times_[&op] += time;
}

std::vector<KernelChooser::Time> KernelChooser::times() const {
  std::lock_guard lock(mutex_);
  std::vector<Time> times;
  for (const OpTable& table : all_ops()) {
    if (const auto found = times_.find(table.op); found != times_.end()) {
      times.push_back({table.op, std::chrono::duration<double>(found->second).count()});
    }
  }
  return times;
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
  for (const OpTable& table : all_ops()) {
    for (const auto& [key, launches] : counts_)
      if (key.first == table.op) list.push_back({key.first, key.second, launches});
  }
  return list;
}

void KernelChooser::reset_counts() {
  std::lock_guard lock(mutex_);
  counts_.clear();
}

}  // namespace moxie
