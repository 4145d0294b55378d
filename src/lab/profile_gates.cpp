// The decision gates: shares of time beyond which a part of the pass is what to work on, and for
// each of them the switch, the row or the document to turn to.
#include <fmt/format.h>

#include "kernels/attend/attend.h"
#include "kernels/experts/experts.h"
#include "lab/bench_runner.h"
#include "lab/profile.h"

namespace moxie {
namespace {

// From this share of the limit on, less work gains more than a better kernel.
constexpr double kNearLimit = 0.75;

bool is_gpu(const PhaseProfile& phase) { return !phase.limits.gpu.empty(); }

// "experts_... at 54.1% of its limit".
std::string row_and_limit(const PhaseProfile& phase, const OpInfo& op, const LimitedPart& part) {
  const std::string row = row_of(phase.rows, op);
  std::string text = row.empty() ? fmt::format("no row of {}", op.name) : row;
  if (part.share_of_limit)
    text += fmt::format(" at {:.1f}% of its limit", 100 * *part.share_of_limit);
  return text;
}

// How to look at the chain of rows for launches such as those of the phase.
std::string plan_command(const PhaseProfile& phase) {
  return fmt::format("`moxie kernels --plan -n {}`",
                     phase.is_decode() ? phase.test.streams : phase.test.n_prompt);
}

std::string after_experts(const PhaseProfile& phase) {
  const LimitedPart& part = phase.category(Category::kExperts);
  const OpInfo& op = Op<ExpertsParams>::info;
  const std::string seen = row_and_limit(phase, op, part);
  if (part.share_of_limit.value_or(0) < kNearLimit) {
    return fmt::format(
        "{}: {} shows the chain without this row, --kernel experts=NAME forces another; if none is "
        "nearer to its limit, docs/adding-a-kernel.md",
        seen, plan_command(phase));
  }
  if (phase.is_decode()) {
    return fmt::format(
        "{}: only fewer bytes a token help: --spec ngram (docs/speculation.md), or more streams "
        "(-b 8), which share experts",
        seen);
  }
  return fmt::format(
      "{}: only cheaper products help: --activation {}; `moxie score --compare-switches` tells "
      "what "
      "that loses",
      seen,
      is_gpu(phase) ? "mxfp8 (docs/decisions/2026-11-22-experts-in-eight-bits.md)"
                    : "int8 (docs/decisions/2026-11-22-fixed-point-on-every-cpu.md)");
}

std::string after_attention(const PhaseProfile& phase) {
  const LimitedPart& part = phase.category(Category::kAttention);
  const std::string seen = row_and_limit(phase, Op<AttendParams>::info, part);
  if (part.share_of_limit.value_or(0) < kNearLimit) {
    return fmt::format(
        "{}: {} shows the chain without this row, --kernel attend=NAME forces another ({})", seen,
        plan_command(phase),
        is_gpu(phase) ? "docs/decisions/2026-11-21-flashinfer-rows.md says which won where"
                      : "docs/decisions/2026-11-22-bf16-attention-on-cpu.md");
  }
  return phase.is_decode()
             ? fmt::format(
                   "{}: only fewer bytes of keys and values help: --kv-dtype fp8_e4m3; "
                   "`moxie score --compare-switches` tells what that loses",
                   seen)
             : fmt::format(
                   "{}: only less attention helps: shorter prompts, or --prefix-caching of "
                   "`moxie serve` where prompts begin alike (docs/operations.md)",
                   seen);
}

std::string after_quantisation(const PhaseProfile& phase) {
  const KernelPart* longest = nullptr;  // kernels stand with the longest first
  for (const KernelPart& kernel : phase.kernels) {
    if (kernel.name.starts_with("stage_") && longest == nullptr) longest = &kernel;
  }
  return fmt::format(
      "{} of step {} takes most: time it against --activation bf16; {} shows rows that take staged "
      "activations from the step before (docs/architecture.md, On a GPU)",
      longest != nullptr ? longest->name : "no kernel",
      longest != nullptr ? longest->place.step : "none", plan_command(phase));
}

std::string after_gaps(const PhaseProfile& phase) {
  const std::string seen = fmt::format("{:.1f} gaps a {}, the longest {:.1f} us", phase.gaps,
                                       phase.unit(), phase.longest_gap_us);
  if (!phase.by_drafts.empty()) {
    return seen +
           ": the host works between drafts and launches (docs/speculation.md); --trace FILE "
           "shows where";
  }
  if (is_gpu(phase)) {
    return seen + (phase.is_decode()
                       ? ": --graphs on takes the host out of the loop; --trace FILE "
                         "shows which launches wait"
                       : ": a larger --chunk means fewer launches; --trace FILE shows "
                         "which launches wait");
  }
  return seen +
         ": the host's work between rows; --trace FILE shows where it lies, --threads leaves "
         "a core to it if others use this machine";
}

}  // namespace

std::vector<Gate> gates_of(const PhaseProfile& phase, bool sees_kernels) {
  double staging = 0;
  for (const KernelPart& kernel : phase.kernels) {
    if (kernel.name.starts_with("stage_")) staging += kernel.share_of_time;
  }
  const auto share = [&](Category c) { return phase.category(c).share_of_time; };
  std::vector<Gate> gates = {{.name = "experts",
                              .question = "experts over 50% of the time?",
                              .threshold = 0.5,
                              .share = share(Category::kExperts)},
                             {.name = "attention",
                              .question = "attention over 40%?",
                              .threshold = 0.4,
                              .share = share(Category::kAttention)},
                             {.name = "quantisation",
                              .question = "quantisation (staging of activations) over 10%?",
                              .threshold = 0.1,
                              .share = sees_kernels ? std::optional(staging) : std::nullopt},
                             {.name = "gaps",
                              .question = "gaps without a kernel over 10%?",
                              .threshold = 0.1,
                              .share = share(Category::kGap)}};
  if (gates[0].is_over()) gates[0].next = after_experts(phase);
  if (gates[1].is_over()) gates[1].next = after_attention(phase);
  if (!gates[2].share) {
    gates[2].next =
        "rows are timed as a whole on the CPU: compare with --activation bf16, whose rows do not "
        "quantise";
  } else if (gates[2].is_over()) {
    gates[2].next = after_quantisation(phase);
  }
  if (gates[3].is_over()) gates[3].next = after_gaps(phase);
  return gates;
}

}  // namespace moxie
