// docs/gpus.md: the cards, predicted speeds, how predictions of cards at hand turn out, and tiles.
// Nothing here depends on the build or the machine.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "apps/cli.h"
#include "apps/gpu_speeds.h"
#include "engine/plan.h"

namespace moxie {
namespace {

// What a process takes besides weights and cache: the context, and activations of 8,192 tokens,
// which depend on the rows that a build has.
constexpr uint64_t kBesidesBytes = kCudaContextBytes + (uint64_t{1} << 30);

constexpr SpeedTest kColumns[] = {{.depth = 0, .streams = 1},
                                  {.depth = 2048, .streams = 1},
                                  {.depth = 8192, .streams = 1},
                                  {.depth = 32768, .streams = 1},
                                  {.depth = 131072 - 128, .streams = 1},
                                  {.depth = 2048, .streams = 8},
                                  {.depth = 2048, .streams = 64},
                                  {.n_prompt = 2048},
                                  {.n_prompt = 8192}};

void print_cards() {
  fmt::print(
      "## Cards\n\n"
      "Rates are of dense products with F32 sums, in TFLOPS; memory in 1e9 bytes; shared memory in "
      "KiB an SM. *Read* and *products* are the shares of bandwidth and of the BF16 rate that "
      "predictions take as low, middle and high.\n\n"
      "| card | capability | SMs | GHz | GB | GB/s | BF16 | FP8 | FP4 | L2 MB | shared | read | "
      "products | rows |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  const auto rate = [](double tflops) {
    return tflops > 0 ? fmt::format("{}", tflops) : std::string("-");
  };
  const auto range = [](const Range& share) {
    return fmt::format("{}, {}, {}", share.low, share.mid, share.high);
  };
  for (const GpuCard& card : gpu_cards())
    fmt::print("| {} | {:.1f} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
               card.name, 0.1 * card.compute_capability, card.num_sms, card.clock_ghz,
               card.memory_gb, card.memory_gb_s, card.bf16_tflops, rate(card.fp8_tflops),
               rate(card.fp4_tflops), card.l2_mb, card.shared_kb, range(card.read_share),
               range(card.product_share), rows_name(rows_of(card)));
  fmt::print(
      "\nSources: NVIDIA's data sheets and architecture papers (A100, GA102, Ada, Hopper, "
      "Blackwell, RTX Blackwell, DGX Spark). H100 and H200 are the SXM modules; their memory and "
      "the shares of their rates are measured ([records](records)). Of the GB10's memory 8 GB are "
      "left to the system. Not public: the rate of `mma.sync` on a B200, and the GB10's rate of "
      "BF16 products with F32 sums; their ranges are wide for that reason. No prediction uses the "
      "size of L2.\n\n");
}

SpeedCell cell_of(const GpuCard& card, const PredictedModel& model, const SpeedTest& test) {
  const int32_t num_tokens = test.n_prompt > 0 ? test.n_prompt : test.depth + 128;
  const KvShape shape = kv_shape(model.config, model.kv_dtype);
  const KvPages pages =
      kv_pages(shape, 0, num_tokens, test.streams, std::min(model.max_batch_tokens, num_tokens));
  const uint64_t bytes = model.layout.packed_bytes + kBesidesBytes +
                         static_cast<uint64_t>(pages.full) * shape.full_page_bytes() +
                         static_cast<uint64_t>(pages.window) * shape.window_page_bytes();
  SpeedCell cell{.test = test,
                 .fits = static_cast<double>(bytes) <= 1e9 * (card.memory_gb - card.system_gb)};
  auto speed = predict_speed(card, model, test);
  CHECK(speed.has_value(), speed ? "" : speed.error().message());
  cell.speed = *speed;
  return cell;
}

Status print_model(int32_t billions, bool all_mxfp4) {
  auto checkpoint = open_checkpoint(fmt::format("synthetic:gpt-oss-{}b", billions));
  if (!checkpoint) return fail(std::move(checkpoint.error()));
  const ModelWeights layout = (*checkpoint)
                                  ->layout({.mxfp4_layers = {all_mxfp4, all_mxfp4, all_mxfp4},
                                            .device = DeviceKind::kCuda});
  const PredictedModel model{
      .config = (*checkpoint)->config(), .layout = layout, .all_mxfp4 = all_mxfp4};
  fmt::print("### gpt-oss-{}b, {}\n\n| card |", billions,
             all_mxfp4 ? "`--mxfp4-layers all`" : "checkpoint precision");
  for (const SpeedTest& test : kColumns)
    fmt::print(" {} |", test.n_prompt > 0 ? fmt::format("prompt of {}", test.n_prompt)
                        : test.streams == 1
                            ? fmt::format("1 stream behind {}", test.depth)
                            : fmt::format("{} behind {}", test.streams, test.depth));
  fmt::print("\n|---|");
  for (size_t i = 0; i < std::size(kColumns); ++i) fmt::print("---|");
  fmt::print("\n");
  for (const GpuCard& card : gpu_cards()) {
    fmt::print("| {} |", card.name);
    for (const SpeedTest& test : kColumns)
      fmt::print(" {} |", cell_text(cell_of(card, model, test)));
    fmt::print("\n");
  }
  fmt::print("\n");
  return {};
}

void print_held_out() {
  const std::vector<HeldOut> all = held_out_speeds();
  fmt::print(
      "## How predictions turn out\n\n"
      "Each test that ran with Hopper's rows, predicted from the other card's tests alone. *Off* "
      "is "
      "the middle against what was measured.\n\n"
      "| card | model | precision | test | predicted | measured | off | inside |\n"
      "|---|---|---|---|---|---|---|---|\n");
  int32_t inside = 0;
  std::vector<double> off;
  for (const HeldOut& held : all) {
    const Range& tok_s = held.predicted.tok_s;
    const double measured = held.predicted.measured.value_or(held.speed->tok_s);
    const bool is_inside = measured >= tok_s.low && measured <= tok_s.high;
    inside += is_inside;
    off.push_back(tok_s.mid / measured - 1);
    fmt::print("| {} | {}b | {} | {} | {:.0f} - {:.0f} - {:.0f} | {:.0f} | {:+.0f}% | {} |\n",
               held.card->name, held.speed->billions,
               held.speed->all_mxfp4 ? "all MXFP4" : "checkpoint", held.speed->test, tok_s.low,
               tok_s.mid, tok_s.high, measured, 100 * off.back(), is_inside ? "yes" : "no");
  }
  for (double& one : off) one = std::abs(one);
  std::sort(off.begin(), off.end());
  fmt::print(
      "\n{} of {} lie inside. The middle is off by {:.0f}% in the median and {:.0f}% at most. The "
      "portable rows ran on one kind of card, so that nothing can be held out for them.\n\n",
      inside, all.size(), 100 * off[off.size() / 2], 100 * off.back());
}

void print_tiles() {
  fmt::print(
      "## Tiles\n\n"
      "Rows times tokens of an expert that the tile model takes for the grouped products, by the "
      "mean tokens of an expert. The rows take these, and `--tile` forces another. Of the cards "
      "only H100 and H200 have been run.\n\n| card |");
  for (const CardTile& tile : tiles_of(gpu_cards().front())) fmt::print(" {:.0f} |", tile.mean);
  fmt::print("\n|---|");
  for (size_t i = 0; i < tiles_of(gpu_cards().front()).size(); ++i) fmt::print("---|");
  fmt::print("\n");
  for (const GpuCard& card : gpu_cards()) {
    fmt::print("| {} |", card.name);
    for (const CardTile& tile : tiles_of(card)) fmt::print(" {} |", tile.tile);
    fmt::print("\n");
  }
}

}  // namespace

int print_gpus_markdown() {
  fmt::print(
      "# Other GPUs\n\n"
      "Written by `moxie plan --markdown`; the tables in src/lab (`gpu_cards.cpp`, "
      "`measured_speeds.cpp`) are the source. `moxie plan --gpu NAME` prints the same for any "
      "model, with its memory; with `--json` under `speeds`: `card`, `status`, `rows`, `decode` "
      "and "
      "`prefill` (for each test `fits`, `tok_s` with `low`, `mid` and `high`, `measured_tok_s`), "
      "`published` and `tiles`. How speeds are predicted, and what that is worth: "
      "[the decision](decisions/2026-11-26-predicting-other-gpus.md).\n\n");
  print_cards();
  fmt::print(
      "## Predicted speeds\n\n"
      "Tokens a second, low - middle - high, with a cache in BF16. Of these cards only H100 and "
      "H200 have run this program; what they measured stands in brackets, both by builds of one "
      "week, since a card is predicted from another by like builds only. What an H200 makes since "
      "then stands in [performance.md](performance.md). All other figures are predictions, never "
      "run on the card. *Does not fit*: weights, cache and 1.5 GiB.\n\n");
  for (const int32_t billions : {120, 20})
    for (const bool all_mxfp4 : {true, false})
      if (auto status = print_model(billions, all_mxfp4); !status) return report(status.error());
  print_held_out();
  print_tiles();
  return kExitDone;
}

}  // namespace moxie
