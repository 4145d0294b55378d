// Limits of tests, and how measured times carry over to another card.
#include "lab/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "kernels/distinct_experts.h"
#include "kernels/registry.h"
#include "model/gpt_oss.h"

namespace moxie {
namespace {

// Decoding behind more tokens tells of the cache, behind fewer of everything else.
constexpr int32_t kMostShallowDepth = 1024;
// Up to so many streams take the rows for a few tokens.
constexpr int32_t kMostFewStreams = 16;

Batch batch_of(const SpeedTest& test, int32_t num_tokens, int64_t first_position) {
  if (test.n_prompt == 0)
    return {.ragged = {.num_tokens = test.streams,
                       .num_seqs = test.streams,
                       .num_visible_keys = int64_t{test.streams} * (test.depth + 1)},
            .num_logit_rows = test.streams};
  return {.ragged = {.num_tokens = num_tokens,
                     .num_seqs = 1,
                     .num_visible_keys =
                         num_tokens * first_position + int64_t{num_tokens} * (num_tokens + 1) / 2},
          .num_logit_rows = 1};
}

// A model whose speeds were measured, in a precision.
class MeasuredModel {
 public:
  MeasuredModel(int32_t billions, bool all_mxfp4)
      : checkpoint_(open(billions)),
        layout_(checkpoint_->layout(
            {.mxfp4_layers = {all_mxfp4, all_mxfp4, all_mxfp4}, .device = DeviceKind::kCuda})),
        all_mxfp4_(all_mxfp4) {}
  PredictedModel get() const {
    return {.config = checkpoint_->config(), .layout = layout_, .all_mxfp4 = all_mxfp4_};
  }

 private:
  static std::unique_ptr<Checkpoint> open(int32_t billions) {
    auto opened = open_checkpoint(fmt::format("synthetic:gpt-oss-{}b", billions));
    CHECK(opened.has_value(), opened ? "" : opened.error().message());
    return std::move(*opened);
  }
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelWeights layout_;
  bool all_mxfp4_;
};

PredictedModel model_of(const MeasuredSpeed& speed) {
  static const std::map<std::pair<int32_t, bool>, MeasuredModel> kModels = [] {
    std::map<std::pair<int32_t, bool>, MeasuredModel> models;
    for (const int32_t billions : {20, 120})
      for (const bool all : {false, true}) models.try_emplace({billions, all}, billions, all);
    return models;
  }();
  return kModels.at({speed.billions, speed.all_mxfp4}).get();
}

// A measured test with what is needed to carry it over.
struct Point {
  const MeasuredSpeed* speed;
  PredictedModel model;
  SpeedTest test;
  double us;
  TestLimit limit;
};
using Points = std::vector<const Point*>;

const std::vector<Point>& all_points() {
  static const std::vector<Point> kPoints = [] {
    std::vector<Point> points;
    for (const MeasuredSpeed& speed : measured_speeds()) {
      const SpeedTest test = parse_test(speed.test);
      const PredictedModel model = model_of(speed);
      const SpeedSource& source = *speed.source;
      points.push_back(
          {.speed = &speed,
           .model = model,
           .test = test,
           .us = 1e6 * (test.n_prompt > 0 ? test.n_prompt : test.streams) / speed.tok_s,
           .limit = limit_of(model, test, source.read_gb_s, source.product_gflops)});
    }
    return points;
  }();
  return kPoints;
}

// The tests for which `wanted` holds, of the kinds of rows, from all cards but one.
template <typename Wanted>
Points points_of(std::initializer_list<GpuRows> kinds, const std::string& left_out,
                 Wanted&& wanted) {
  Points points;
  for (const Point& point : all_points()) {
    const SpeedSource& source = *point.speed->source;
    if (std::find(kinds.begin(), kinds.end(), source.rows) != kinds.end() &&
        source.gpu != left_out && wanted(point.test))
      points.push_back(&point);
  }
  return points;
}

// Keeps the points at the least distance.
template <typename Distance>
void keep_nearest(Points* points, Distance&& distance) {
  double least = HUGE_VAL;
  for (const Point* point : *points) least = std::min(least, distance(point));
  std::erase_if(*points, [&](const Point* point) { return distance(point) > least; });
}

double tokens_an_expert(const GptOssConfig& config, const SpeedTest& test) {
  return static_cast<double>(test.n_prompt) * config.top_k / config.num_experts;
}

// Measured prompts whose experts have about as many tokens.
Points prompt_points(GpuRows rows, const PredictedModel& model, const SpeedTest& test,
                     const std::string& left_out) {
  const auto is_prompt = [](const SpeedTest& of) { return of.n_prompt > 0; };
  Points points = rows == GpuRows::kHopper
                      ? points_of({GpuRows::kHopper}, left_out, is_prompt)
                      : points_of({GpuRows::kPortable, GpuRows::kSm80}, left_out, is_prompt);
  const double wanted = tokens_an_expert(model.config, test);
  keep_nearest(&points, [&](const Point* point) {
    return std::abs(std::log(tokens_an_expert(point->model.config, point->test) / wanted));
  });
  return points;
}

// Measured launches of about as many streams, with few tokens before; of few streams in the model's
// precision, if there are any.
Points decode_points(GpuRows rows, const PredictedModel& model, const SpeedTest& test,
                     const std::string& left_out) {
  const bool is_few = test.streams <= kMostFewStreams;
  const auto is_like = [&](const SpeedTest& of) {
    return of.n_prompt == 0 && of.depth <= kMostShallowDepth &&
           (of.streams <= kMostFewStreams) == is_few;
  };
  const auto far = [&](const Point* point) {
    return std::abs(std::log(static_cast<double>(point->test.streams) / test.streams));
  };
  Points points;
  if (rows == GpuRows::kHopper) {
    points = points_of({GpuRows::kHopper}, left_out, is_like);
  } else if (rows == GpuRows::kPortable) {
    // The rows for a few tokens are Hopper's.
    points = is_few ? points_of({GpuRows::kHopper, GpuRows::kPortable}, left_out, is_like)
                    : points_of({GpuRows::kPortable, GpuRows::kSm80}, left_out, is_like);
  } else {
    points = points_of({GpuRows::kSm80}, left_out, is_like);
    keep_nearest(&points, far);
    // Several streams were not measured without clusters.
    if (points.empty() || far(points.front()) > 0)
      points = points_of({GpuRows::kPortable, GpuRows::kSm80}, left_out, is_like);
  }
  keep_nearest(&points, far);
  const auto is_same = [&](const Point* point) {
    return point->speed->all_mxfp4 == model.all_mxfp4;
  };
  // With many streams dense layers are a small part.
  if (is_few && std::any_of(points.begin(), points.end(), is_same))
    std::erase_if(points, [&](const Point* point) { return !is_same(point); });
  return points;
}

// Two tests of one run that differ in depth alone: what reading the cache took, and its limit.
struct CacheTime {
  double us, limit_us, read_gb_s;
};
std::vector<CacheTime> cache_times(GpuRows rows, const SpeedTest& test,
                                   const std::string& left_out) {
  const auto is_decode = [](const SpeedTest& of) { return of.n_prompt == 0 && of.streams == 1; };
  Points points;
  if (rows != GpuRows::kSm80)
    points = points_of({GpuRows::kHopper}, left_out, is_decode);
  else if (test.streams == 1)
    points = points_of({GpuRows::kSm80}, left_out, is_decode);
  else  // without clusters a sequence takes few SMs, but several sequences fill them
    points = points_of({GpuRows::kSm80, GpuRows::kHopper}, left_out, is_decode);
  std::vector<CacheTime> times;
  for (const Point* deep : points) {
    if (deep->test.depth <= kMostShallowDepth) continue;
    for (const Point* shallow : points) {
      if (shallow->test.depth <= kMostShallowDepth &&
          shallow->speed->source == deep->speed->source &&
          shallow->speed->billions == deep->speed->billions &&
          shallow->speed->all_mxfp4 == deep->speed->all_mxfp4)
        times.push_back({.us = deep->us - shallow->us,
                         .limit_us = deep->limit.cache_us - shallow->limit.cache_us,
                         .read_gb_s = deep->speed->source->read_gb_s});
    }
  }
  return times;
}

struct Extremes {
  double least = HUGE_VAL, most = 0, log_sum = 0;
  int32_t count = 0;
  void add(double us) {
    least = std::min(least, us), most = std::max(most, us), log_sum += std::log(us);
    ++count;
  }
  double mean() const { return std::exp(log_sum / count); }
};

// The card's time of what took `us` against a limit of `limit` elsewhere; `scale`: how many times
// as much of what is lost is found here, such as layers.
void carry_over(double card_limit, double us, double limit, double scale, Extremes* times) {
  times->add(card_limit * us / limit);
  times->add(card_limit + std::max(0.0, us - limit) * scale);
}

Extremes decode_us(const Points& points, const std::vector<CacheTime>& caches,
                   const PredictedModel& model, const SpeedTest& test, double read_gb_s,
                   double cache_gb_s, double product_gflops) {
  const double others_us = limit_of(model, test, read_gb_s, product_gflops).others_us;
  const double cache_us = limit_of(model, test, cache_gb_s, product_gflops).cache_us;
  Extremes others, cache;
  for (const Point* point : points) {
    const double layers = static_cast<double>(model.layout.layers.size()) /
                          static_cast<double>(point->model.layout.layers.size());
    carry_over(others_us, point->us - point->limit.cache_us, point->limit.others_us, layers,
               &others);
  }
  for (const CacheTime& time : caches)
    carry_over(cache_us, time.us, time.limit_us,
               cache_us * cache_gb_s / (time.limit_us * time.read_gb_s), &cache);
  if (caches.empty()) cache.add(cache_us);
  return {.least = others.least + cache.least,
          .most = others.most + cache.most,
          .log_sum = std::log(others.mean() + cache.mean()),
          .count = 1};
}

Extremes prompt_us(const Points& points, const PredictedModel& model, const SpeedTest& test,
                   double read_gb_s, double product_gflops) {
  const TestLimit limit = limit_of(model, test, read_gb_s, product_gflops);
  Extremes times;
  for (const Point* point : points)
    times.add((limit.cache_us + limit.others_us) * point->us /
              (point->limit.cache_us + point->limit.others_us));
  return times;
}

std::optional<double> measured_on(const GpuCard& card, const PredictedModel& model,
                                  const SpeedTest& test) {
  double sum = 0;
  int32_t count = 0;
  const auto same_depth = [](int32_t depth) { return depth <= 128 ? 0 : depth; };
  for (const Point& point : all_points()) {
    const SpeedTest& of = point.test;
    const GptOssConfig& config = point.model.config;
    if (point.speed->source->gpu != std::string_view(card.name) ||
        point.speed->source->rows != rows_of(card) || of.n_prompt != test.n_prompt ||
        of.streams != test.streams || same_depth(of.depth) != same_depth(test.depth) ||
        model.kv_dtype != point.model.kv_dtype || config.num_experts != model.config.num_experts ||
        point.model.layout.packed_bytes != model.layout.packed_bytes)
      continue;
    sum += point.speed->tok_s;
    ++count;
  }
  return count == 0 ? std::nullopt : std::optional(sum / count);
}

}  // namespace

TestLimit limit_of(const PredictedModel& model, const SpeedTest& test, double read_gb_s,
                   double product_gflops) {
  TestLimit limit;
  const int32_t all = test.n_prompt > 0 ? test.n_prompt : test.streams;
  const int32_t most = test.n_prompt > 0 ? std::max(1, model.max_batch_tokens) : all;
  for (int32_t done = 0; done < all; done += most) {
    const int32_t num_tokens = std::min(most, all - done);
    const auto distinct = static_cast<int32_t>(std::lround(
        expected_distinct_experts(model.config.num_experts, model.config.top_k, num_tokens)));
    const Batch batch = batch_of(test, num_tokens, int64_t{test.depth} + done);
    for (const auto& [op, work] :
         least_work(model.config, model.layout, model.kv_dtype, batch, distinct))
      (op == &Op<AttendParams>::info ? limit.cache_us : limit.others_us) +=
          limit_us(work, read_gb_s, product_gflops);
  }
  return limit;
}

GpuRows rows_of(const GpuCard& card) {
  const Features features = features_of(card);
  return (features & kSm90a) != 0      ? GpuRows::kHopper
         : (features & kClusters) != 0 ? GpuRows::kPortable
                                       : GpuRows::kSm80;
}

Result<PredictedSpeed> predict_speed(const GpuCard& card, const PredictedModel& model,
                                     const SpeedTest& test, const std::string& left_out) {
  if (model.config.hidden < kLeastGemmHidden)
    return fail(fmt::format("models narrower than {} take other rows, of which no speeds are kept",
                            kLeastGemmHidden),
                "plan --gpu", "the limit by bytes holds for them too");
  const GpuRows rows = rows_of(card);
  const bool is_prompt = test.n_prompt > 0;
  const Points points = is_prompt ? prompt_points(rows, model, test, left_out)
                                  : decode_points(rows, model, test, left_out);
  if (points.empty()) return fail("no measured speeds", rows_name(rows));
  const auto caches = cache_times(rows, test, left_out);
  const auto at = [&](double read_share, double product_share) {
    const double gflops = 1e3 * product_share * card.bf16_tflops;
    return is_prompt ? prompt_us(points, model, test, read_share * card.memory_gb_s, gflops)
                     : decode_us(points, caches, model, test, read_gb_s_of(card, read_share),
                                 read_share * card.memory_gb_s, gflops);
  };
  const double tokens = 1e6 * (is_prompt ? test.n_prompt : test.streams);
  const Range &read = card.read_share, &products = card.product_share;
  constexpr double kWider = 1 + kBetweenCards;
  // Wider, but not past the limit.
  const TestLimit least =
      limit_of(model, test, read.high * card.memory_gb_s, 1e3 * products.high * card.bf16_tflops);
  const double fastest_us =
      std::max(at(read.high, products.high).least / kWider, least.cache_us + least.others_us);
  return PredictedSpeed{.tok_s = {.low = tokens / at(read.low, products.low).most / kWider,
                                  .mid = tokens / at(read.mid, products.mid).mean(),
                                  .high = tokens / fastest_us},
                        .num_measured = static_cast<int32_t>(points.size()),
                        .measured = measured_on(card, model, test)};
}

std::vector<HeldOut> held_out_speeds() {
  std::vector<HeldOut> found;
  for (const Point& point : all_points()) {
    const MeasuredSpeed& speed = *point.speed;
    const bool is_known = std::any_of(found.begin(), found.end(), [&](const HeldOut& other) {
      return other.card->name == std::string_view(speed.source->gpu) &&
             other.speed->test == std::string_view(speed.test) &&
             other.speed->billions == speed.billions && other.speed->all_mxfp4 == speed.all_mxfp4;
    });
    if (speed.source->rows != GpuRows::kHopper || is_known) continue;
    const GpuCard& card = **gpu_card(speed.source->gpu);
    auto predicted = predict_speed(card, point.model, point.test, card.name);
    if (predicted) found.push_back({&card, &speed, *predicted});
  }
  return found;
}

std::span<const PublishedSpeed> published_speeds() {
  static constexpr PublishedSpeed kPublished[] = {
      {"GB10", 120, "tg32", 60.0, "vLLM, all layers in MXFP4"},
      {"GB10", 120, "tg32", 58.7, "llama.cpp"},
      {"GB10", 120, "tg32@d32768", 42.8, "llama.cpp"},
      {"GB10", 120, "pp2048", 4573, "vLLM, products in 8 bits"},
      {"GB10", 120, "pp8192", 6628, "vLLM, products in 8 bits"},
      {"GB10", 120, "pp2048", 2444, "llama.cpp"},
      {"GB10", 20, "tg32", 83.4, "llama.cpp"},
      {"GB10", 20, "pp2048", 4506, "llama.cpp"},
      {"RTXPRO6000", 120, "tg128", 193, "llama.cpp"},
      {"RTXPRO6000", 20, "tg128", 391, "llama.cpp"},
      {"RTX5090", 20, "tg256", 345, "imp"},
      {"RTX5090", 20, "pp2048", 13715, "llama.cpp, products in 4 bits"},
  };
  return kPublished;
}

}  // namespace moxie
