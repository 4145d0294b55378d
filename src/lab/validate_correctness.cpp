// Level 2: logits against the reference in launches cut in several ways, and tokens of requests
// against the same requests run otherwise.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/sample/sample.h"
#include "lab/stats.h"
#include "lab/validate_reference.h"
#include "lab/validate_requests.h"
#include "lab/validate_run.h"

namespace moxie {
namespace {

// A way to cut a text into launches: `head` tokens at once, whose logits are not looked at but for
// the last, then `piece` tokens a launch.
struct Cut {
  std::string name;
  size_t head = 0, piece = 1;
};

std::vector<Cut> cuts_of(size_t num_ids, const Engine& engine) {
  constexpr size_t kTail = 16;
  const auto most = static_cast<size_t>(engine.plan().max_batch_tokens);
  const auto rows = static_cast<size_t>(engine.options().max_logit_rows);
  const size_t head = std::min(most, num_ids - std::min(num_ids, kTail));
  return {{"a prompt at once", head, std::min(kTail, rows)},
          {"launches of 61", 0, std::min<size_t>({61, rows, most})},
          {"launches of 7", 0, std::min<size_t>({7, rows, most})},
          {"a token a launch", std::min(most, num_ids - std::min<size_t>(num_ids, 40)), 1}};
}

// A sequence that is freed whatever happens.
struct Sequence {
  explicit Sequence(KvCache& cache) : kv(cache), id(cache.add_sequence()) {}
  ~Sequence() { kv.free_sequence(id); }
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;
  KvCache& kv;
  SeqId id;
};

Result<std::vector<float>> logits_of(Engine& engine, std::span<const Chunk> chunks,
                                     size_t num_rows) {
  if (auto launched = engine.step(chunks); !launched) return fail(std::move(launched.error()));
  std::vector<float> rows(num_rows * static_cast<size_t>(engine.config().vocab));
  if (auto status = engine.read_logits(rows); !status) return fail(std::move(status.error()));
  return rows;
}

Status add_cut(Engine& engine, const Cut& cut, const ReferenceText& text,
               LogitsDistance* distance) {
  const int32_t vocab = engine.config().vocab;
  const Sequence seq(engine.kv());
  const std::span<const int32_t> ids(text.ids);
  if (cut.head > 0) {
    const Chunk chunk{seq.id, ids.first(cut.head), Logits::kLast};
    const auto rows = logits_of(engine, {&chunk, 1}, 1);
    if (!rows) return fail(rows.error());
    add_rows(text, cut.head - 1, *rows, vocab, distance);
  }
  for (size_t at = cut.head; at < ids.size(); at += cut.piece) {
    const size_t count = std::min(cut.piece, ids.size() - at);
    const Chunk chunk{seq.id, ids.subspan(at, count), Logits::kAll};
    const auto rows = logits_of(engine, {&chunk, 1}, count);
    if (!rows) return fail(rows.error());
    add_rows(text, at, *rows, vocab, distance);
  }
  return {};
}

// All texts in the same launches, in pieces of different lengths.
Status add_together(Engine& engine, const std::vector<ReferenceText>& texts,
                    LogitsDistance* distance) {
  const int32_t vocab = engine.config().vocab;
  std::vector<std::unique_ptr<Sequence>> seqs;
  for (size_t t = 0; t < texts.size(); ++t) seqs.push_back(std::make_unique<Sequence>(engine.kv()));
  std::vector<size_t> done(texts.size());
  for (bool any = true; any;) {
    any = false;
    std::vector<Chunk> chunks;
    std::vector<std::pair<size_t, size_t>> parts;  // text, first token
    size_t num_rows = 0;
    for (size_t t = 0; t < texts.size(); ++t) {
      const std::span<const int32_t> ids(texts[t].ids);
      const size_t piece = t % 2 == 0 ? 5 : 1 + done[t] % 3;
      const size_t count = std::min(piece, ids.size() - done[t]);
      if (count == 0) continue;
      chunks.push_back({seqs[t]->id, ids.subspan(done[t], count), Logits::kAll});
      parts.emplace_back(t, done[t]);
      done[t] += count, num_rows += count;
      any = true;
    }
    if (!any) break;
    const auto rows = logits_of(engine, chunks, num_rows);
    if (!rows) return fail(rows.error());
    size_t row = 0;
    for (size_t c = 0; c < chunks.size(); ++c) {
      const size_t count = chunks[c].tokens.size(), width = static_cast<size_t>(vocab);
      add_rows(texts[parts[c].first], parts[c].second,
               std::span(*rows).subspan(row * width, count * width), vocab, distance);
      row += count;
    }
  }
  return {};
}

void check_distance(Validation& run, const std::string& name, const LogitsDistance& distance,
                    const Tolerance& tolerance) {
  run.check({.name = "finite logits, " + name,
             .passed = distance.num_not_finite == 0,
             .value = fmt::format("{} NaN or infinite", distance.num_not_finite),
             .bar = "none",
             .number = static_cast<double>(distance.num_not_finite)});
  run.check_most("median KL, " + name, median(distance.kl), tolerance.median_kl,
                 fmt::format("nats, {} tokens; {}", distance.kl.size(), tolerance.because));
  run.check_most("mean KL, " + name, mean(distance.kl), tolerance.mean_kl,
                 "nats; with experts that rounding may swap");
  const double difference = distance.nll_difference();
  run.check({.name = "perplexity, " + name,
             .passed = difference <= tolerance.nll(),
             .value = fmt::format("{:.6g} against {:.6g}", distance.perplexity(),
                                  distance.reference_perplexity()),
             .bar = fmt::format("logarithms differ by at most {:.3g}", tolerance.nll())});
}

struct NamedDistance {
  std::string name;
  LogitsDistance distance;
};

// Rows of the pass that the subject runs for launches of up to a whole batch.
Result<std::vector<std::string>> rows_that_may_run(Validation& run) {
  LaunchList sizes;
  const int32_t most = run.engine().plan().max_batch_tokens;
  for (const int32_t tokens : {1, 5, 16, 61, most})
    note_launch(std::min(tokens, most), 1, 1, &sizes);
  const auto rows = planned_launches(run.options().engine, run.engine(), sizes);
  if (!rows) return fail(rows.error());
  std::vector<std::string> names;
  for (const auto& [key, times] : *rows) names.push_back(key.second);
  return names;
}

// The tolerance for all these distances. Where one exceeds it, the reference's own response to
// rounding is measured, and counts.
Result<Tolerance> tolerance_for(Validation& run, const std::vector<ReferenceText>& texts,
                                const std::vector<NamedDistance>& distances) {
  const auto rows = rows_that_may_run(run);
  if (!rows) return fail(rows.error());
  Tolerance tolerance = tolerance_of(run.engine(), *rows, texts);
  const bool all_finite = std::ranges::all_of(
      distances, [](const NamedDistance& d) { return d.distance.num_not_finite == 0; });
  const bool all_within = std::ranges::all_of(
      distances, [&](const NamedDistance& d) { return d.distance.is_within(tolerance); });
  if (all_within || !all_finite) return tolerance;
  run.say("  the reference's response to rounding");
  // On the CPU both engines would need the memory of the weights.
  const bool closes = run.engine().device().kind() == DeviceKind::kCpu;
  if (closes) run.close();
  const auto response = rounding_response(run.options().engine, texts.front());
  if (!response) return fail(response.error());
  tolerance.allow_for(*response);
  if (closes)
    if (auto status = run.open(); !status) return fail(std::move(status.error()));
  return tolerance;
}

/// The tolerance that was used.
Result<Tolerance> check_logits(Validation& run, const std::vector<ReferenceText>& texts) {
  Engine& engine = run.engine();
  const size_t num_cuts = cuts_of(0, engine).size();
  std::vector<NamedDistance> distances;
  for (size_t c = 0; c < num_cuts; ++c) {
    NamedDistance& found = distances.emplace_back();
    for (const ReferenceText& text : texts) {  // of unequal length where time ran out
      const Cut cut = cuts_of(text.ids.size(), engine)[c];
      if (auto status = add_cut(engine, cut, text, &found.distance); !status)
        return fail(std::move(status.error()));
      found.name = cut.name;
    }
  }
  if (texts.size() > 1) {
    NamedDistance& found = distances.emplace_back();
    found.name = "texts in one launch";
    if (auto status = add_together(engine, texts, &found.distance); !status)
      return fail(std::move(status.error()));
  }
  auto tolerance = tolerance_for(run, texts, distances);
  if (!tolerance) return tolerance;
  for (const NamedDistance& d : distances) check_distance(run, d.name, d.distance, *tolerance);
  return tolerance;
}

// Draws from one row of logits, with many parameters, by the subject's row and by the reference's.
Status check_draws(Validation& run, const ReferenceText& text) {
  Engine& engine = run.engine();
  const int32_t vocab = engine.config().vocab;
  const auto count =
      std::min({text.ids.size(), static_cast<size_t>(engine.options().max_logit_rows),
                static_cast<size_t>(engine.plan().max_batch_tokens)});
  const Sequence seq(engine.kv());
  const Chunk chunk{seq.id, std::span(text.ids).first(count), Logits::kAll};
  const auto logits = logits_of(engine, {&chunk, 1}, count);
  if (!logits) return fail(logits.error());
  std::vector<SampleRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    SampleRequest& request = requests[i];
    request.temperature = i % 4 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i % 7);
    request.top_k = i % 5 == 1 ? 3 : 0;
    request.top_p = i % 5 == 2 ? 0.9f : 1.0f;
    request.min_p = i % 5 == 3 ? 0.02f : 0.0f;
    request.seed = 1000 + i;
    request.step = i;
  }
  std::vector<SampleAnswer> drawn(count), expected(count);
  if (auto status = engine.sample(requests, drawn); !status) return status;
  KernelChoice choice;
  if (auto status = choice.add("all=reference"); !status) return status;
  KernelChooser reference(DeviceKind::kCpu, 0, std::move(choice));
  const auto device = make_cpu_device(1);
  auto stream = device->make_stream();
  if (!stream) return fail(std::move(stream.error()));
  const SampleParams params{.launch = {.stream = stream->get()},
                            .num_rows = static_cast<int32_t>(count),
                            .vocab = vocab,
                            .logits = logits->data(),
                            .requests = requests.data(),
                            .answers = expected.data()};
  reference.run(params);
  size_t num_differ = 0;
  for (size_t i = 0; i < count; ++i) num_differ += drawn[i].token != expected[i].token ? 1 : 0;
  run.check({.name = "draws",
             .passed = num_differ == 0,
             .value = fmt::format("{} of {} differ from the reference row's", num_differ, count),
             .bar = "none: every row draws the same token",
             .number = static_cast<double>(num_differ)});
  return {};
}

}  // namespace

Status run_correctness(Validation& run) {
  const ValidateOptions& options = run.options();
  Engine& before = run.engine();
  const int32_t window = before.config().sliding_window;
  const int32_t context = before.plan().max_model_len;
  const ReferenceLimits limits{.num_texts = 2,
                               .most_tokens = std::min(window + 160, context),
                               .most_s = run.limit_s(90, 20)};
  // On the CPU both engines would need the memory of the weights.
  if (before.device().kind() == DeviceKind::kCpu) run.close();
  run.say("  the reference's logits");
  const auto texts = reference_texts(options.engine, limits);
  if (!texts) return fail(texts.error());
  if (auto status = run.open(); !status) return status;
  const size_t num_ids = texts->front().ids.size();
  if (std::cmp_less(num_ids, window + 16))
    run.omit("the border of the window",
             fmt::format("the reference made {} tokens in {:.0f} s", num_ids, limits.most_s));
  const auto tolerance = check_logits(run, *texts);
  if (!tolerance) return fail(tolerance.error());
  if (auto status = check_draws(run, texts->front()); !status) return status;
  return check_tokens(run, tolerance->logprob());
}

}  // namespace moxie
