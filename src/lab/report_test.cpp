// Reports: escaping, scales, charts of odd data, and pages that are well-formed, need nothing from
// outside, and show the figures of their documents.
#include "lab/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>

#include "kernels/embed/embed.h"
#include "kernels/experts/experts.h"
#include "kernels/qkv/qkv.h"
#include "lab/record.h"
#include "lab/report_svg.h"
#include "lab/testing/xml_check.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr const char* kHostile = "</title><script>alert('x')</script>&\"\x01\xff<svg onload=\"y\">";

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
// The page without the document at its end, which holds every figure anyway.
std::string shown(const std::string& html) { return html.substr(0, html.find("<details>")); }

TEST(EscapeXml, NothingLeavesTheTextItIsIn) {
  EXPECT_EQ(escape_xml("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escape_xml("tab\tline\n\xC3\xA9\xF0\x9F\x99\x82"),
            "tab\tline\n\xC3\xA9\xF0\x9F\x99\x82");
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(escape_xml(std::string_view("\0\x1b\xff", 3)), replaced + replaced + replaced);
  EXPECT_EQ(escape_xml("\xEF\xBF\xBF"), replaced) << "U+FFFF is no character of XML";
  EXPECT_EQ(escape_xml("\xED\xA0\x80").find('\xED'), std::string::npos) << "a surrogate";
}

TEST(XmlCheck, FindsFaults) {
  EXPECT_EQ(fault_of_xml("<a b=\"c>d\"><e/>&amp;</a>"), "");
  for (const char* text : {"<a>", "</a>", "<a></b>", "<a><b></a></b>", "a & b", "<a b=\"<\"/>",
                           "a > b", "<a", "&nbsp;"}) {
    EXPECT_NE(fault_of_xml(text), "") << text;
  }
}

TEST(Figure, HasFourDigitsAndNoNaN) {
  EXPECT_EQ(figure(0), "0");
  EXPECT_EQ(figure(12.345678), "12.35");
  EXPECT_EQ(figure(999.96), "1,000");
  EXPECT_EQ(figure(-1234567), "-1,234,567");
  EXPECT_EQ(figure(-123456), "-123,456");
  EXPECT_EQ(figure(3.5e12), "3.5e+12");
  EXPECT_EQ(figure(kNaN), "-");
  EXPECT_EQ(figure(-kInf), "-");
}

TEST(Scale, EveryValueOfEveryRangeHasAFinitePlaceInside) {
  const double values[] = {0, 1, -1, 1e-300, 1e300, -1e300, kNaN, kInf, -kInf};
  for (const double from : values) {
    for (const double to : values) {
      for (const Scale& scale : {Scale::linear(from, to, 10, 90), Scale::log10(from, to, 10, 90)}) {
        for (const double value : values) {
          EXPECT_TRUE(scale.at(value) >= 10 - 1e-9 && scale.at(value) <= 90 + 1e-9)
              << from << ".." << to << " at " << value << ": " << scale.at(value);
        }
        EXPECT_LE(scale.ticks(8).size(), 20u) << from << ".." << to;
      }
    }
  }
  EXPECT_EQ(Scale::linear(0, 10, 0, 100).at(2.5), 25);
  EXPECT_NEAR(Scale::log10(1, 100, 0, 100).at(10), 50, 1e-9);
  EXPECT_EQ(Scale::linear(0, 10, 0, 1).ticks(5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(Scale::log10(0.5, 200, 0, 1).ticks(8), (std::vector<double>{1, 10, 100}));
}

TEST(LabelPlaces, LabelsDoNotMeetAndStayInside) {
  const LabelPlaces::Box area{0, 0, 200, 100};
  LabelPlaces places(area);
  std::vector<LabelPlaces::Box> boxes;
  LabelPlaces::Box box;
  while (places.find(100, 50, "experts", &box)) boxes.push_back(box);
  EXPECT_GE(boxes.size(), 4u);
  for (size_t i = 0; i < boxes.size(); ++i) {
    EXPECT_TRUE(boxes[i].x >= 0 && boxes[i].x + boxes[i].width <= 200);
    EXPECT_TRUE(boxes[i].y >= 0 && boxes[i].y + boxes[i].height <= 100);
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(boxes[i].meets(boxes[j])) << i << ' ' << j;
  }
}

void expect_sound(const std::string& svg) {
  EXPECT_EQ(fault_of_xml(svg), "") << svg;
  static const std::regex kBroken("\"[^\"]*\\b(nan|inf)\\b[^\"]*\"");
  EXPECT_FALSE(std::regex_search(svg, kBroken)) << svg;
}

TEST(Charts, OddDataGiveSoundPictures) {
  expect_sound(roofline_svg({}));
  expect_sound(timeline_svg({}));
  expect_sound(stack_svg("", {}));
  expect_sound(bars_to_pass_svg({}));
  expect_sound(strips_svg({}));
  for (const double odd : {0.0, -1.0, kNaN, kInf, 1e300, 1e-300}) {
    expect_sound(roofline_svg(
        {.read_gb_s = odd,
         .peaks = {{kHostile, odd}, {"two", 1}},
         .groups = {kHostile},
         .points = {
             {kHostile, 0, odd, 1, 1}, {"bytes", 0, 1, odd, 1}, {"seconds", 7, 1, 1, odd}}}));
    expect_sound(timeline_svg({.label = kHostile,
                               .length_us = odd,
                               .lanes = {kHostile},
                               .bars = {{0, 0, odd, odd, kHostile}, {0, 0, 1, 2, ""}},
                               .gaps = {{odd, 1}}}));
    expect_sound(stack_svg(kHostile, {{kHostile, 0, odd, kHostile}, {"b", 1, 0.5, ""}}));
    expect_sound(bars_to_pass_svg({{kHostile, odd, 0.5}, {"none", std::nullopt, odd}}));
    expect_sound(strips_svg({{kHostile, kHostile, {odd, 1}}, {"", "", {odd}}, {"", "", {}}}));
  }
}

TEST(Charts, PointsWithoutCountedWorkAreSaidToBeLeftOut) {
  const Roofline roofline{.read_gb_s = 10,
                          .peaks = {{"bf16", 100}},
                          .groups = {"g"},
                          .points = {{"seen", 0, 1e6, 1e6, 1e-3}, {"unseen", 0, 0, 0, 1e-3}}};
  const std::string svg = roofline_svg(roofline);
  EXPECT_TRUE(has(svg, "seen of g: 1e9 operations/s at 1 operations a byte"));
  EXPECT_FALSE(has(svg, "unseen of g"));
  EXPECT_TRUE(has(svg, "1 without counted work are left out"));
}

// A phase whose last repetition is three tokens of embed, qkv and experts, 100 ns each and a gap.
PhaseProfile decode_phase() {
  PhaseProfile phase{.test = {.n_gen = 3}, .plain_tok_s = {100, 110}, .profiled_tok_s = {90, 91}};
  phase.window_us = 0.45678;
  for (int c = 0; c < kNumCategories; ++c) {
    phase.categories.push_back({{.name = category_name(static_cast<Category>(c))}});
  }
  phase.categories[0] = {{.name = "experts", .us = 17.25, .launches = 2, .share_of_time = 0.613}};
  phase.categories[0].work = {.bytes = 123456, .flops = 654321};
  phase.categories[0].share_of_limit = 0.321;
  phase.categories[0].above_limit_us = 11.75;
  phase.steps = {phase.categories[0]};
  phase.kernels = {{{.name = kHostile, .us = 17.25, .launches = 2, .share_of_time = 0.613},
                    "symbol",
                    {"experts", Category::kExperts}}};
  phase.rows = {{&Op<ExpertsParams>::info, "experts_row", 77}};
  phase.gates = gates_of(phase, true);
  phase.last.symbols = {{"embed_row", &Op<EmbedParams>::info},
                        {"qkv_row", &Op<QkvParams>::info},
                        {"experts_row", &Op<ExpertsParams>::info}};
  phase.last_begin_ns = 1000;
  const int64_t starts[] = {1000, 1400, 1850};
  for (const int64_t start : starts) {
    for (int32_t s = 0; s < 3; ++s) {
      phase.last.activities.push_back({start + 100 * s, start + 100 * (s + 1), s});
    }
  }
  phase.last_end_ns = 2400;
  return phase;
}

Json document_of(const char* model) {
  Record record;
  record.environment.commit = kHostile;
  record.configuration = {{"--model", model, "flag"}, {"--kv-dtype", "auto", "default"}};
  return {{"model", {{"name", model}}}, {"record", to_json(record)}};
}

TEST(Timeline, OfDecodeIsTheTokenOfMedianLengthWithItsGap) {
  const Timeline timeline = timeline_of(decode_phase());
  EXPECT_EQ(timeline.lanes, (std::vector<std::string>{"embed", "qkv", "experts"}));
  EXPECT_DOUBLE_EQ(timeline.length_us, 0.45) << "of 400 and 450 ns";
  ASSERT_EQ(timeline.bars.size(), 3u);
  EXPECT_DOUBLE_EQ(timeline.bars[2].start_us, 0.2);
  ASSERT_EQ(timeline.gaps.size(), 1u);
  EXPECT_DOUBLE_EQ(timeline.gaps[0].start_us, 0.3);
  EXPECT_DOUBLE_EQ(timeline.gaps[0].end_us, 0.45);
}

TEST(Timeline, OfPrefillIsTheWholeRepetition) {
  PhaseProfile phase = decode_phase();
  phase.test = {.n_prompt = 3};
  const Timeline timeline = timeline_of(phase);
  EXPECT_DOUBLE_EQ(timeline.length_us, 1.4);
  EXPECT_EQ(timeline.bars.size(), 9u);
  EXPECT_EQ(timeline.gaps.size(), 3u);
  EXPECT_TRUE(timeline_of(PhaseProfile{}).bars.empty());
}

void expect_sound_page(const std::string& html) {
  expect_sound(html);
  for (const char* outside : {"<script", "<link", "<img", "src=", "href=", "url(", "@import"}) {
    EXPECT_FALSE(has(html, outside)) << outside;
  }
  EXPECT_TRUE(has(html, "prefers-color-scheme: dark"));
}

TEST(ProfilePage, ShowsItsFiguresAndEscapesNames) {
  const std::vector<PhaseProfile> phases = {decode_phase()};
  MachineLimits limits;
  limits.cpu = kHostile;
  limits.read_gb_s = 38.21;
  limits.bf16 = {260.5, "x"};
  const std::string html = profile_page(phases, limits, document_of(kHostile)).html();
  expect_sound_page(html);
  const std::string text = shown(html);
  for (const double value : {17.25, 123456.0, 654321.0, 11.75, 2.0, 77.0, 0.45678, 100.0, 110.0,
                             105.0, 90.0, 91.0, 38.21, 260.5}) {
    EXPECT_TRUE(has(text, figure(value))) << figure(value);
  }
  for (const char* word : {"61.3%", "32.1%", "tg3 (decode)", "experts_row", "--kv-dtype", "over",
                           "passed", "&lt;script&gt;alert(&#39;x&#39;)"}) {
    EXPECT_TRUE(has(text, word)) << word;
  }
  for (const Gate& gate : phases[0].gates) EXPECT_TRUE(has(text, escape_xml(gate.next)));
  EXPECT_LT(text.find(">--model<"), text.find(">--kv-dtype<")) << "given switches come first";
}

TEST(ProfilePage, OfNothingIsSound) {
  expect_sound_page(profile_page({}, {}, Json::object()).html());
  PhaseProfile empty;
  for (int c = 0; c < kNumCategories; ++c) {
    empty.categories.push_back({{.name = category_name(static_cast<Category>(c))}});
  }
  expect_sound_page(
      profile_page({&empty, 1}, {}, {{"model", 3}, {"record", Json::array()}}).html());
}

TEST(BenchPage, ShowsItsFiguresAndEscapesNames) {
  const std::vector<BenchResult> results = {{.test = {.n_prompt = 512},
                                             .tok_s = {83.25, 84.5, 82.125},
                                             .bytes_per_token = 314159,
                                             .flops_per_token = 271828,
                                             .read_gb_s = {37.5},
                                             .share_of_limit = 0.514,
                                             .kernels = {{&Op<QkvParams>::info, "qkv_row", 24}}},
                                            {.test = {.n_gen = 4}}};
  const std::string html = bench_page(results, {}, document_of(kHostile)).html();
  expect_sound_page(html);
  const std::string text = shown(html);
  for (const double value : {83.25, 84.5, 82.125, 314159.0, 271828.0, 37.5, 24.0}) {
    EXPECT_TRUE(has(text, figure(value))) << figure(value);
  }
  for (const char* word : {"pp512", "51.4%", "qkv_row", "tg4", "no samples"}) {
    EXPECT_TRUE(has(text, word)) << word;
  }
  expect_sound_page(bench_page({}, {}, Json::object()).html());
}

TEST(WritePage, SaysWhereItCannotWrite) {
  const std::string path = testing::TempDir() + "no/such/folder/a.html";
  const Status status = write_page(Page("t"), path);
  ASSERT_FALSE(status.has_value());
  EXPECT_TRUE(has(status.error().message(), path)) << status.error().message();
  const std::string good = testing::TempDir() + "report_test.html";
  ASSERT_TRUE(write_page(Page("t"), good).has_value());
  EXPECT_EQ(std::filesystem::file_size(good), Page("t").html().size());
  std::filesystem::remove(good);
}

}  // namespace
}  // namespace moxie
