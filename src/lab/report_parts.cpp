// Title, limits, samples and conditions of a report.
#include "lab/report_parts.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "lab/report_svg.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

std::string text_at(const Json& document, const char* part, const char* key) {
  const auto found = document.find(part);
  if (found == document.end() || !found->is_object()) return "";
  const auto value = found->find(key);
  return value == found->end() || !value->is_string() ? "" : value->get<std::string>();
}

}  // namespace

std::string share_text(std::optional<double> share) {
  return share ? fmt::format("{:.1f}%", 100 * *share) : "-";
}

Page begin_page(const char* command, const MachineLimits& limits, const Json& document) {
  const std::string model = text_at(document, "model", "name");
  Page page(fmt::format("moxie {}: {}", command, model.empty() ? "no model" : model));
  std::string line = limits.gpu.empty() ? limits.cpu : limits.gpu;
  if (limits.gpu.empty()) line += fmt::format(", {} threads", limits.num_threads);
  line += fmt::format("; memory was read at {} GB/s in this run", figure(limits.read_gb_s));
  const Json record = document.value("record", Json::object());
  const std::string commit = text_at(record, "environment", "commit");
  const std::string time = text_at(record, "environment", "time_utc");
  if (!commit.empty()) line += "; commit " + commit;
  if (!time.empty()) line += "; " + time;
  page.paragraph(line + ".");
  return page;
}

Roofline roofline_of(const MachineLimits& limits) {
  Roofline roofline{.read_gb_s = limits.read_gb_s};
  for (const auto& [name, peak] : {std::pair{"fp32", &limits.fp32},
                                   {"bf16", &limits.bf16},
                                   {"int8", &limits.int8},
                                   {"fp8", &limits.fp8}}) {
    if (peak->rate > 0) roofline.peaks.push_back({name, peak->rate});
  }
  return roofline;
}

void add_samples(Page* page, const std::vector<Strip>& strips) {
  page->heading("Samples");
  page->picture(strips_svg(strips), "Each dot is a sample, as its deviation from the median.");
  Page::Table table{.head = {"series", "unit", "#median", "#mean", "#stdev", "samples"}};
  for (const Strip& strip : strips) {
    const Summary summary = summarize(strip.samples);
    std::string samples;
    for (const double sample : strip.samples)
      samples += (samples.empty() ? "" : "; ") + figure(sample);
    table.rows.push_back({strip.name, strip.unit, figure(summary.median), figure(summary.mean),
                          figure(summary.stdev), samples});
  }
  page->table(table);
}

void end_page(Page* page, const Json& document) {
  add_conditions(page, document.value("record", Json::object()));
  page->heading("Document");
  page->folded("everything above and more as JSON", json_text(document, 2));
}

}  // namespace moxie
