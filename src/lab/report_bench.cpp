// The report of a benchmark: its tests as a table, on the roofline, and sample by sample.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "lab/report.h"
#include "lab/report_parts.h"
#include "lab/report_svg.h"
#include "lab/stats.h"

namespace moxie {

Page bench_page(std::span<const BenchResult> results, const MachineLimits& limits,
                const nlohmann::ordered_json& document) {
  Page page = begin_page("bench", limits, document);
  page.heading("Tests");
  if (results.empty()) page.paragraph("No test was run.");
  Page::Table tests{.head = {"test", "#tok/s, median", "#stdev", "#bytes a token",
                             "#operations a token", "#of limit", "#memory beside, GB/s"}};
  std::map<std::pair<std::string, std::string>, std::string> launches;  // of step and row, by test
  Roofline roofline = roofline_of(limits);
  roofline.groups = {"prefill", "decode"};
  std::vector<Strip> strips;
  for (const BenchResult& result : results) {
    const Summary summary = summarize(result.tok_s);
    const std::string name = result.test.name();
    tests.rows.push_back({name, figure(summary.median), figure(summary.stdev),
                          figure(result.bytes_per_token), figure(result.flops_per_token),
                          share_text(result.share_of_limit), figure(median(result.read_gb_s))});
    if (summary.median > 0) {
      roofline.points.push_back({name, result.test.n_gen > 0 ? size_t{1} : size_t{0},
                                 result.flops_per_token, result.bytes_per_token,
                                 1 / summary.median});
    }
    strips.push_back({name, "tok/s", result.tok_s});
    for (const auto& count : result.kernels) {
      std::string& text = launches[{count.op->name, count.name}];
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, count.launches);
    }
  }
  page.table(tests);
  page.picture(roofline_svg(roofline),
               "The least operations and bytes of a token times the tokens a second, and the rates "
               "that this machine reached in this run: a point on a line is at the limit.");
  add_samples(&page, strips);
  page.heading("Rows that ran");
  Page::Table rows{.head = {"step", "row", "launches by test"}};
  for (const auto& [place, text] : launches) rows.rows.push_back({place.first, place.second, text});
  page.table(rows);
  end_page(&page, document);
  return page;
}

}  // namespace moxie
