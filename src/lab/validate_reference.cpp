// The reference engine, the tolerance by formats, and sums over rows of logits.
#include "lab/validate_reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/clock.h"
#include "lab/logit_distance.h"
#include "lab/stats.h"
#include "lab/validate_requests.h"

namespace moxie {
namespace {

constexpr int32_t kReferenceChunk = 16;

// Appends the logits of `count` ids from `from` on.
Status add_logits(Engine& engine, SeqId seq, size_t from, size_t count, ReferenceText* text) {
  const Chunk chunk{seq, std::span(text->ids).subspan(from, count), Logits::kAll};
  const auto rows = engine.step({&chunk, 1});
  if (!rows) return fail(rows.error());
  const size_t values = count * static_cast<size_t>(engine.config().vocab);
  text->logits.insert(text->logits.end(), *rows, *rows + values);
  return {};
}

// The token behind the last launch of `num_rows` rows, drawn at temperature 1.
Result<int32_t> draw(Engine& engine, size_t num_rows, uint64_t seed, size_t step) {
  const std::vector<SampleRequest> requests(
      num_rows, SampleRequest{.temperature = 1, .seed = seed, .step = step});
  std::vector<SampleAnswer> answers(num_rows);
  if (auto status = engine.sample(requests, answers); !status)
    return fail(std::move(status.error()));
  return answers.back().token;
}

// One text of up to `num_ids` ids, cut when `is_late` says so: random ids, of which a text that is
// the model's own has the first few alone; the others are drawn.
Result<ReferenceText> make_text(Engine& engine, size_t num_ids, uint64_t seed, bool is_own,
                                const std::function<bool()>& is_late) {
  constexpr size_t kLeast = 2 * kReferenceChunk;
  ReferenceText text;
  text.ids = random_ids(static_cast<int32_t>(num_ids), engine.config().vocab, seed);
  const SeqId seq = engine.kv().add_sequence();
  Status status;
  size_t at = 0, last_rows = 0;
  while (status && at < num_ids && (at < kLeast || !is_late())) {
    const bool draws = is_own && at > 0;
    const size_t count = draws ? 1 : std::min<size_t>(kReferenceChunk, num_ids - at);
    if (draws) {
      const auto token = draw(engine, last_rows, seed, at);
      if (token) text.ids[at] = *token;
      if (!token) status = fail(token.error());
    }
    if (status) status = add_logits(engine, seq, at, count, &text);
    at += count;
    last_rows = count;
  }
  engine.kv().free_sequence(seq);
  if (!status) return fail(std::move(status.error()));
  text.ids.resize(at);
  return text;
}

// Half of the relative distance of two neighbouring values, by the name of a format in a row's
// name.
// `activation`: as the switch has it.
double rounding_of_row(const std::string& name, const std::string& activation) {
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  if (has("_mx_"))
    return std::ldexp(1, activation == "mxfp4" ? -2 : activation == "mxfp6_e3m2" ? -3 : -4);
  if (has("_e4m3_gemm")) return std::ldexp(1, -4);
  if (has("_i8_")) return std::ldexp(1, -7);  // of the greatest in a block, not of each value
  if (has("_bf16_prefill") || has("_bf16_ordered") || has("_bf16_gemm") || has("_bf16_flash") ||
      has("_e4m3_prefill") || has("_e4m3_ordered"))
    return std::ldexp(1, -9);
  if (has("_i16_") || has("bf16x2")) return std::ldexp(1, -15);
  return 0;
}

double rounding_of_cache(DType dtype) {
  if (dtype == DType::kF8E4M3) return std::ldexp(1, -4);
  return dtype == DType::kBF16 ? std::ldexp(1, -9) : 0;
}

double variance(std::span<const float> row) {
  double sum = 0, squares = 0;
  for (const float value : row) sum += value;
  const double mean = sum / static_cast<double>(row.size());
  for (const float value : row) squares += (value - mean) * (value - mean);
  return squares / static_cast<double>(row.size());
}

EngineOptions of_reference(const EngineOptions& options, const char* kv_dtype,
                           int32_t most_tokens) {
  return {.model = options.model,
          .device = "cpu",
          .threads = options.threads,
          .kernels = {"all=reference"},
          .mxfp4_layers = options.mxfp4_layers,
          .kv_dtype = kv_dtype,
          .max_model_len = most_tokens,
          .max_batch_tokens = kReferenceChunk,
          .max_logit_rows = kReferenceChunk,
          .seed = options.seed,
          .show_progress = options.show_progress};
}

}  // namespace

Result<std::vector<ReferenceText>> reference_texts(const EngineOptions& options,
                                                   const ReferenceLimits& limits) {
  auto engine = Engine::load(of_reference(options, "f32", limits.most_tokens));
  if (!engine) return fail(std::move(engine.error()));
  std::vector<ReferenceText> texts;
  const auto start = Clock::now();
  for (int32_t t = 0; t < limits.num_texts; ++t) {
    const double most_s = limits.most_s * (t + 1) / limits.num_texts;
    auto text =
        make_text(**engine, static_cast<size_t>(limits.most_tokens), 100 + static_cast<uint64_t>(t),
                  t % 2 == 1, [&] { return seconds_since(start) > most_s; });
    if (!text) return fail(std::move(text.error()));
    texts.push_back(std::move(*text));
  }
  return texts;
}

Result<RoundingResponse> rounding_response(const EngineOptions& options,
                                           const ReferenceText& text) {
  const size_t num_ids = text.ids.size();
  auto engine = Engine::load(of_reference(options, "bf16", static_cast<int32_t>(num_ids)));
  if (!engine) return fail(std::move(engine.error()));
  ReferenceText rounded{.ids = text.ids, .logits = {}};
  const SeqId seq = (*engine)->kv().add_sequence();
  for (size_t at = 0; at < num_ids; at += kReferenceChunk) {
    const size_t count = std::min<size_t>(kReferenceChunk, num_ids - at);
    if (auto status = add_logits(**engine, seq, at, count, &rounded); !status)
      return fail(std::move(status.error()));
  }
  LogitsDistance distance;
  add_rows(text, 0, rounded.logits, (*engine)->config().vocab, &distance);
  return RoundingResponse{.eta = rounding_of_cache(DType::kBF16),
                          .median_kl = median(distance.kl),
                          .mean_kl = mean(distance.kl)};
}

double Tolerance::nll() const { return std::sqrt(2 * mean_kl); }
double Tolerance::logprob() const { return 4 * std::sqrt(2 * median_kl); }

void Tolerance::allow_for(const RoundingResponse& response) {
  constexpr double kSafety = 4;  // twice the distance
  const double scale = kSafety * (eta / response.eta) * (eta / response.eta);
  median_kl = std::max(median_kl, std::min(scale * response.median_kl, unrelated_kl / 4));
  mean_kl = std::max(mean_kl, std::min(scale * response.mean_kl, unrelated_kl / 4));
  because += fmt::format(
      "; the reference itself moves by {:.3g} (mean {:.3g}) when its cache alone is BF16",
      response.median_kl, response.mean_kl);
}

Tolerance tolerance_of(const Engine& subject, const std::vector<std::string>& rows,
                       const std::vector<ReferenceText>& texts) {
  const GptOssConfig& config = subject.config();
  const auto vocab = static_cast<size_t>(config.vocab);
  Tolerance tolerance;
  // Sums of so many F32 products, whose errors are independent.
  const int32_t longest_sum = std::max({config.hidden, config.intermediate, config.q_width()});
  double squares = std::ldexp(1, -48) * longest_sum;
  tolerance.because = fmt::format("F32 sums of {}", longest_sum);
  const auto add = [&](double rounding, const std::string& of) {
    if (rounding == 0) return;
    squares += rounding * rounding;
    tolerance.because += ", " + of;
  };
  double of_rows = 0;
  std::string coarsest;
  for (const std::string& name : rows)
    if (const double u = rounding_of_row(name, subject.options().activation); u > of_rows)
      of_rows = u, coarsest = name;
  add(of_rows, coarsest);
  add(rounding_of_cache(subject.kv_dtype()),
      fmt::format("{} cache", dtype_name(subject.kv_dtype())));
  if (!subject.options().mxfp8_layers.empty()) add(std::ldexp(1, -4), "MXFP8 layers");
  tolerance.eta = std::sqrt(squares);

  double sum = 0;
  int64_t count = 0;
  for (const ReferenceText& text : texts) {
    for (size_t at = 0; at < text.logits.size(); at += vocab, ++count)
      sum += variance(std::span(text.logits).subspan(at, vocab));
  }
  const double of_logits = count > 0 ? sum / static_cast<double>(count) : 0;
  constexpr double kSafety = 8, kOfSwap = 0.5;
  const double updates = 2.0 * config.num_layers;
  const double relative = kSafety * tolerance.eta * std::sqrt(updates);
  const double of_rounding = relative * relative * of_logits / 2;
  // The logits of experts around the last one chosen lie 1 / (k sqrt(2 ln(E / k))) deviations
  // apart.
  const double experts_per_choice =
      static_cast<double>(config.num_experts) / std::max(config.top_k, 1);
  const double density = config.top_k * std::sqrt(2 * std::log(std::max(experts_per_choice, 1.0)));
  const double share_swapped = std::min(1.0, config.num_layers * relative * density);
  const double of_swaps = share_swapped * of_logits / 2 * kOfSwap * kOfSwap / updates;
  const auto num_ids = static_cast<double>(texts.front().ids.size());
  tolerance.mean_kl = of_rounding + of_swaps;
  tolerance.median_kl = of_rounding + 2 * of_swaps / num_ids;
  tolerance.unrelated_kl = of_logits;
  return tolerance;
}

bool LogitsDistance::is_within(const Tolerance& tolerance) const {
  return num_not_finite == 0 && median(kl) <= tolerance.median_kl &&
         mean(kl) <= tolerance.mean_kl && nll_difference() <= tolerance.nll();
}

double LogitsDistance::nll_difference() const {
  return num_targets > 0 ? std::fabs(nll - reference_nll) / static_cast<double>(num_targets) : 0;
}
double LogitsDistance::perplexity() const {
  return num_targets > 0 ? std::exp(nll / static_cast<double>(num_targets)) : 0;
}
double LogitsDistance::reference_perplexity() const {
  return num_targets > 0 ? std::exp(reference_nll / static_cast<double>(num_targets)) : 0;
}

void add_rows(const ReferenceText& text, size_t first, std::span<const float> rows, int32_t vocab,
              LogitsDistance* distance) {
  const auto width = static_cast<size_t>(vocab);
  for (size_t i = 0; i * width < rows.size() && first + i < text.ids.size(); ++i) {
    const float* const row = rows.data() + i * width;
    const float* const reference = text.logits.data() + (first + i) * width;
    const auto not_finite =
        std::count_if(row, row + width, [](float value) { return !std::isfinite(value); });
    distance->num_not_finite += not_finite;
    const double kl = row_kl(reference, row, vocab);
    distance->kl.push_back(std::isfinite(kl) ? kl : std::numeric_limits<double>::infinity());
    if (first + i + 1 == text.ids.size()) continue;
    const int32_t next = text.ids[first + i + 1];
    distance->nll += log_sum_exp(row, vocab) - row[next];
    distance->reference_nll += log_sum_exp(reference, vocab) - reference[next];
    ++distance->num_targets;
  }
}

}  // namespace moxie
