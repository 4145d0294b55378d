// moxie inspect: the contents of a checkpoint's files, or a draft head's, and all their faults.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/cli.h"
#include "apps/output.h"
#include "engine/plan.h"
#include "engine/tokenizer_source.h"
#include "model/draft_checkpoint.h"
#include "model/weight_table.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

struct InspectFlags {
  std::vector<std::string> models;
  std::string model = "embedded";
  std::string target;  ///< not empty: the model is a draft head for this one
  bool json = false;
};

Json dims(const Shape& shape) {
  Json list = Json::array();
  for (int i = 0; i < shape.rank; ++i) list.push_back(shape[i]);
  return list;
}

// Lists each weight that the model lacks, and what rows get instead.
Json absent_weights(const GptOssConfig& config) {
  Json absent = Json::array();
  for (const WeightEntry& entry : weight_table()) {
    if (entry.has == nullptr || config.*entry.has) continue;
    const bool is_zeros = entry.absent == Absent::kZeros;
    absent.push_back({{"weight", entry.name}, {"instead", is_zeros ? "zeros" : "nothing"}});
  }
  return absent;
}

struct Inspected {
  std::vector<Fault> faults;  ///< of the weights' files and the tokenizer's
  bool has_tokenizer = true;
};

Inspected look_at(const Checkpoint& checkpoint) {
  Inspected found{.faults = checkpoint.faults()};
  const auto tokenizer = tokenizer_of(checkpoint);
  found.has_tokenizer = !tokenizer || *tokenizer != nullptr;
  if (!tokenizer) {
    const Error& e = tokenizer.error();
    found.faults.push_back({.file = e.where,
                            .tensor = "tokenizer",
                            .found = e.what,
                            .expected = e.hint.empty() ? "a tokenizer that can be read" : e.hint});
  }
  return found;
}

Json to_json(const Checkpoint& checkpoint, const Inspected& found) {
  Json tensors = Json::array(), faults = Json::array();
  uint64_t total = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    tensors.push_back({{"name", tensor.name},
                       {"file", tensor.file},
                       {"dtype", tensor.dtype},
                       {"shape", dims(tensor.shape)},
                       {"bytes", tensor.bytes},
                       {"weight", tensor.weight}});
    total += tensor.bytes;
  }
  for (const Fault& fault : found.faults) {
    faults.push_back({{"file", fault.file},
                      {"tensor", fault.tensor},
                      {"found", fault.found},
                      {"expected", fault.expected}});
  }
  return {{"path", checkpoint.path()},
          {"format", checkpoint_kind_name(checkpoint.kind())},
          {"config", Json::parse(config_json(checkpoint.config()), nullptr, false)},
          {"num_tensors", tensors.size()},
          {"bytes", total},
          {"tensors", std::move(tensors)},
          {"absent", absent_weights(checkpoint.config())},
          {"has_tokenizer", found.has_tokenizer},
          {"faults", std::move(faults)}};
}

void print(const Checkpoint& checkpoint, const Inspected& found) {
  const GptOssConfig& c = checkpoint.config();
  fmt::print("{} ({})\n", checkpoint.path(), checkpoint_kind_name(checkpoint.kind()));
  fmt::print("layers {} ({} window of {}, {} full)  hidden {}  intermediate {}\n", c.num_layers,
             c.num_window_layers(), c.sliding_window, c.num_full_layers(), c.hidden,
             c.intermediate);
  fmt::print("heads {} / {} kv of {}  experts {} (top {})  vocabulary {}  positions {}\n\n",
             c.num_heads, c.num_kv_heads, c.head_dim, c.num_experts, c.top_k, c.vocab,
             c.max_positions);
  fmt::print("{:<58} {:<8} {:<26} {:>14}\n", "tensor", "dtype", "shape", "bytes");
  uint64_t total = 0, count = 0;
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    fmt::print("{:<58} {:<8} {:<26} {:>14}\n", tensor.name, tensor.dtype, tensor.shape.to_string(),
               tensor.bytes);
    total += tensor.bytes;
    ++count;
  }
  fmt::print("\n{} tensors, {}\n", count, format_bytes(total));
  for (const Json& one : absent_weights(c)) {
    fmt::print("the model has no {}: {} instead\n", one["weight"].get<std::string>(),
               one["instead"].get<std::string>());
  }
  if (!found.has_tokenizer) fmt::print("no tokenizer: texts need one, lists of ids do not\n");
}

const char* kind_name(DraftKind kind) {
  return kind == DraftKind::kDflash ? "DFlash" : kind == DraftKind::kPeagle ? "P-EAGLE" : "EAGLE-3";
}

Json head_json(const DraftCheckpoint& head) {
  const DraftConfig& c = head.config();
  Json tensors = Json::array();
  for (const auto& [name, found] : head.tensors())
    tensors.push_back({{"name", found.tensor->name},
                       {"dtype", found.tensor->dtype_text},
                       {"shape", dims(found.tensor->shape)},
                       {"bytes", found.tensor->bytes},
                       {"weight", name}});
  return {{"path", head.path()},
          {"format", c.form},
          {"kind", kind_name(c.kind)},
          {"boundaries", c.takes_final_norm ? Json("final norm") : Json(c.boundaries)},
          {"num_layers", c.num_layers},
          {"hidden", c.hidden},
          {"intermediate", c.intermediate},
          {"num_heads", c.num_heads},
          {"num_kv_heads", c.num_kv_heads},
          {"head_dim", c.head_dim},
          {"vocab", c.vocab},
          {"draft_vocab", c.draft_vocab},
          {"block", c.block},
          {"mask_id", c.mask_id},
          {"mask_embedding", !head.mask_embedding().empty()},
          {"num_tensors", tensors.size()},
          {"tensors", std::move(tensors)},
          {"faults", Json::array()}};
}

void print(const DraftCheckpoint& head) {
  const DraftConfig& c = head.config();
  fmt::print("{} ({} head, {})\n", head.path(), kind_name(c.kind), c.form);
  fmt::print("features from {}\n", describe_boundaries(c));
  fmt::print("layers {}  hidden {}  intermediate {}  heads {} / {} kv of {}  vocabulary {} of {}\n",
             c.num_layers, c.hidden, c.intermediate, c.num_heads, c.num_kv_heads, c.head_dim,
             c.draft_vocab, c.vocab);
  if (c.mask_id >= 0)
    fmt::print("mask token {}{}{}\n", c.mask_id,
               head.mask_embedding().empty() ? "" : ", with an embedding of the head's",
               c.block > 0 ? fmt::format("  block {}", c.block) : "");
  fmt::print("\n{:<58} {:<8} {:<26} {:>14}\n", "tensor", "dtype", "shape", "bytes");
  uint64_t total = 0;
  for (const auto& [name, found] : head.tensors()) {
    const FileTensor& tensor = *found.tensor;
    fmt::print("{:<58} {:<8} {:<26} {:>14}\n", tensor.name, tensor.dtype_text,
               tensor.shape.to_string(), tensor.bytes);
    total += tensor.bytes;
  }
  fmt::print("\n{} tensors, {}\n", head.tensors().size(), format_bytes(total));
}

// One JSON document for what cannot be opened at all.
int report_unopened(const std::string& model, const Error& e, bool json) {
  if (json)
    print_document(
        Json{{"path", model},
             {"faults",
              {{{"file", e.where}, {"tensor", ""}, {"found", e.what}, {"expected", e.hint}}}}});
  return report(e);
}

int inspect_head(const std::string& path, const InspectFlags& flags) {
  const auto target = open_checkpoint(flags.target);
  if (!target) return report_unopened(flags.target, target.error(), flags.json);
  const auto head = DraftCheckpoint::open(path, (*target)->config());
  if (!head) return report_unopened(path, head.error(), flags.json);
  if (flags.json)
    print_document(head_json(*head));
  else
    print(*head);
  return kExitDone;
}

}  // namespace

Command inspect_command() {
  auto o = std::make_shared<InspectFlags>();
  return {.name = "inspect",
          .summary = "Configuration and weights of a checkpoint, and all its faults",
          .example = "moxie inspect ~/models/gpt-oss-20b",
          .declare =
              [o](Flags& flags) {
                flags.positional("M", &o->models, "a model, as --model takes it", false);
                flags.text("--model", &o->model, "the same, as a flag");
                flags.text("--target", &o->target,
                           "M is a draft head for this model: what is taken of it, and from where");
                flags.toggle("--json", &o->json, "print one JSON document");
              },
          .run =
              [o](const Flags&) {
                if (o->models.size() > 1) return usage("inspect takes one model");
                const std::string model = o->models.empty() ? o->model : o->models.front();
                if (!o->target.empty()) return inspect_head(model, *o);
                auto checkpoint = open_checkpoint(model);
                if (!checkpoint) return report_unopened(model, checkpoint.error(), o->json);
                const Inspected found = look_at(**checkpoint);
                const std::vector<Fault>& faults = found.faults;
                if (o->json)
                  print_document(to_json(**checkpoint, found));
                else
                  print(**checkpoint, found);
                std::fflush(stdout);
                for (const Fault& fault : faults) {
                  std::fprintf(stderr, "moxie: fault: %s\n", fault.message().c_str());
                }
                if (!faults.empty()) {
                  std::fprintf(stderr, "moxie: error: %zu fault%s in %s\n", faults.size(),
                               faults.size() == 1 ? "" : "s", model.c_str());
                }
                return faults.empty() ? kExitDone : kExitFailed;
              }};
}

}  // namespace moxie
