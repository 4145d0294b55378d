// Predicts the cells, and prints them.
#include "apps/gpu_speeds.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "kernels/gemm/mma_tiles.h"
#include "kernels/rates.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

// Of the context, what generated tokens take behind a depth.
constexpr int32_t kGenerated = 128;

// Mean tokens of an expert for which tiles are listed.
constexpr double kTileTokens[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};

Json cell_json(const SpeedCell& cell) {
  Json json = Json::object();
  if (cell.test.n_prompt > 0)
    json["n_prompt"] = cell.test.n_prompt;
  else
    json.update({{"streams", cell.test.streams}, {"depth", cell.test.depth}});
  json["fits"] = cell.fits;
  json["tok_s"] = nullptr;
  if (!cell.fits) return json;
  const Range& tok_s = cell.speed.tok_s;
  json["tok_s"] = {{"low", tok_s.low}, {"mid", tok_s.mid}, {"high", tok_s.high}};
  json["measured_tok_s"] = cell.speed.measured ? Json(*cell.speed.measured) : Json();
  json["from_tests"] = cell.speed.num_measured;
  return json;
}

Json card_json(const GpuCard& card) {
  return {{"name", card.name},
          {"compute_capability", card.compute_capability},
          {"sms", card.num_sms},
          {"clock_ghz", card.clock_ghz},
          {"memory_gb", card.memory_gb},
          {"memory_gb_s", card.memory_gb_s},
          {"bf16_tflops", card.bf16_tflops},
          {"fp8_tflops", card.fp8_tflops},
          {"fp4_tflops", card.fp4_tflops},
          {"l2_mb", card.l2_mb},
          {"shared_kb", card.shared_kb}};
}

template <typename Visit>
void for_each_published(const GpuCard& card, int32_t billions, Visit&& visit) {
  for (const PublishedSpeed& speed : published_speeds())
    if (speed.gpu == std::string_view(card.name) && speed.billions == billions) visit(speed);
}

std::string rounded(double tok_s) {
  return tok_s < 100 ? fmt::format("{:.1f}", tok_s) : fmt::format("{:.0f}", tok_s);
}

}  // namespace

GpuSpeeds gpu_speeds(const GpuCard& card, const PredictedModel& model,
                     const std::function<bool(int32_t, int32_t)>& fits) {
  GpuSpeeds speeds{.card = &card};
  const auto add = [&](const SpeedTest& test, int32_t num_tokens, std::vector<SpeedCell>* cells) {
    if (num_tokens > model.config.max_positions || !speeds.why_not.empty()) return;
    SpeedCell cell{.test = test, .fits = fits(num_tokens, test.streams)};
    auto speed = predict_speed(card, model, test);
    if (!speed) {
      speeds.why_not = speed.error().message();
      return;
    }
    cell.speed = *speed;
    cells->push_back(cell);
  };
  for (const int32_t depth : kSpeedDepths)
    for (const int32_t streams : kSpeedStreams)
      add({.depth = depth, .streams = streams}, depth + kGenerated, &speeds.decode);
  for (const int32_t n : kSpeedPrompts) add({.n_prompt = n}, n, &speeds.prompts);
  return speeds;
}

std::string status_of(const GpuCard& card) {
  return *card.measured_by == '\0'
             ? std::string("predicted, never run on this card")
             : fmt::format("predicted; measured where it says so (records {})", card.measured_by);
}

std::string cell_text(const SpeedCell& cell) {
  if (!cell.fits) return "does not fit";
  const Range& tok_s = cell.speed.tok_s;
  std::string text =
      fmt::format("{} - {} - {}", rounded(tok_s.low), rounded(tok_s.mid), rounded(tok_s.high));
  if (cell.speed.measured) text += fmt::format(" (measured {})", rounded(*cell.speed.measured));
  return text;
}

std::vector<CardTile> tiles_of(const GpuCard& card) {
  const gemm::TileDevice device{.num_sms = card.num_sms,
                                .read_gb_s = card.read_share.mid * card.memory_gb_s,
                                .mma_gflops = 1e3 * card.product_share.mid * card.bf16_tflops,
                                .operand_gb_s_of_sm = kOperandBytesAClock * card.clock_ghz};
  std::vector<CardTile> tiles;
  const int32_t rows =
      rows_of(card) == GpuRows::kHopper ? gemm::kGroupedTileRows : gemm::kMmaTileRows;
  for (const double mean : kTileTokens) {
    const gemm::TileChoice choice = gemm::choose_tile_of(rows, mean, false, device);
    tiles.push_back({mean, gemm::tile_name({rows, choice.columns}), choice.reason});
  }
  return tiles;
}

Json to_json(const GpuSpeeds& speeds, int32_t billions) {
  Json json = {{"card", card_json(*speeds.card)},
               {"status", status_of(*speeds.card)},
               {"rows", rows_name(rows_of(*speeds.card))}};
  json["tiles"] = Json::array();
  for (const CardTile& tile : tiles_of(*speeds.card))
    json["tiles"].push_back(
        {{"tokens_an_expert", tile.mean}, {"tile", tile.tile}, {"reason", tile.reason}});
  if (!speeds.why_not.empty()) {
    json["not_predicted"] = speeds.why_not;
    return json;
  }
  Json decode = Json::array(), prefill = Json::array(), published = Json::array();
  for (const SpeedCell& cell : speeds.decode) decode.push_back(cell_json(cell));
  for (const SpeedCell& cell : speeds.prompts) prefill.push_back(cell_json(cell));
  for_each_published(*speeds.card, billions, [&](const PublishedSpeed& speed) {
    published.push_back({{"test", speed.test}, {"tok_s", speed.tok_s}, {"by", speed.by}});
  });
  json.update({{"decode", decode}, {"prefill", prefill}, {"published", published}});
  return json;
}

void print_speeds(const GpuSpeeds& speeds, int32_t billions) {
  const GpuCard& card = *speeds.card;
  fmt::print(
      "\ntok/s on {}, low - middle - high: {}\n{}; {} SMs, {:.0f} GB/s, {:.0f} TFLOPS in "
      "BF16\n\n",
      card.name, status_of(card), rows_name(rows_of(card)), card.num_sms, card.memory_gb_s,
      card.bf16_tflops);
  if (!speeds.why_not.empty()) {
    fmt::print("  not predicted: {}\n", speeds.why_not);
    return;
  }
  constexpr const char* kLine = "  {:<14} {:>38} {:>30} {:>32}\n";
  fmt::print(kLine, "decode behind", "1 stream", "8 streams", "64 streams");
  constexpr size_t kColumns = std::size(kSpeedStreams);
  for (size_t i = 0; i + kColumns <= speeds.decode.size(); i += kColumns)
    fmt::print(kLine, speeds.decode[i].test.depth, cell_text(speeds.decode[i]),
               cell_text(speeds.decode[i + 1]), cell_text(speeds.decode[i + 2]));
  for (const SpeedCell& cell : speeds.prompts)
    fmt::print("  {:<14} {:>38}\n", fmt::format("prompt of {}", cell.test.n_prompt),
               cell_text(cell));
  for_each_published(card, billions, [&](const PublishedSpeed& speed) {
    fmt::print("  published of this card: {} {} tok/s, {}\n", speed.test, rounded(speed.tok_s),
               speed.by);
  });
  fmt::print("  tiles by tokens an expert:");
  for (const CardTile& tile : tiles_of(card)) fmt::print(" {:.0f}: {}", tile.mean, tile.tile);
  fmt::print("\n");
}

}  // namespace moxie
