// The report of a profile: rooflines of its steps, and for each phase the gates, the categories, a
// timeline and the kernels.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/embed/embed.h"
#include "lab/report.h"
#include "lab/report_parts.h"
#include "lab/report_svg.h"

namespace moxie {
namespace {

// Bars of a timeline at most: a page with more is slow to open.
constexpr size_t kMostBars = 6000;

std::string phase_title(const PhaseProfile& phase) {
  return fmt::format("{} ({})", phase.test.name(), phase.is_decode() ? "decode" : "prefill");
}

struct Excerpt {
  int64_t begin_ns = 0, end_ns = 0;
  std::string what;
};

// One unit of decode: from an `embed` to the next one.
Excerpt excerpt_of(const PhaseProfile& phase) {
  const Excerpt whole{phase.last_begin_ns, phase.last_end_ns, "the last repetition"};
  if (!phase.is_decode()) return whole;
  std::vector<int64_t> starts;
  for (const Activity& a : phase.last.activities) {
    const ActivityLog::Symbol& symbol = phase.last.symbols[static_cast<size_t>(a.symbol)];
    if (symbol.op == &Op<EmbedParams>::info) starts.push_back(a.start_ns);
  }
  if (starts.size() < 2) return whole;
  std::sort(starts.begin(), starts.end());
  std::vector<Excerpt> steps;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    if (starts[i + 1] > starts[i]) steps.push_back({starts[i], starts[i + 1], ""});
  }
  if (steps.empty()) return whole;
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::nth_element(steps.begin(), middle, steps.end(), [](const Excerpt& a, const Excerpt& b) {
    return a.end_ns - a.begin_ns < b.end_ns - b.begin_ns;
  });
  middle->what = fmt::format(
      "from one embed to the next, of median length among {} in the last "
      "repetition",
      steps.size());
  return *middle;
}

// Activities inside the excerpt, by their start.
std::vector<Activity> inside(const PhaseProfile& phase, const Excerpt& excerpt) {
  std::vector<Activity> some;
  for (Activity a : phase.last.activities) {
    if (a.end_ns <= excerpt.begin_ns || a.start_ns >= excerpt.end_ns) continue;
    a.start_ns = std::max(a.start_ns, excerpt.begin_ns);
    a.end_ns = std::min(a.end_ns, excerpt.end_ns);
    some.push_back(a);
  }
  std::sort(some.begin(), some.end(),
            [](const Activity& a, const Activity& b) { return a.start_ns < b.start_ns; });
  return some;
}

Page::Table parts_table(const char* what, const PhaseProfile& phase,
                        const std::vector<LimitedPart>& parts) {
  Page::Table table{.head = {what, fmt::format("#us a {}", phase.unit()), "#of time", "#of limit",
                             "limit", "#above limit, us", "#launches", "#bytes", "#operations"}};
  for (const LimitedPart& part : parts) {
    if (part.us == 0 && part.launches == 0) continue;
    table.rows.push_back({part.name, figure(part.us), share_text(part.share_of_time),
                          share_text(part.share_of_limit),
                          !part.share_of_limit ? "-"
                          : part.is_by_flops   ? "arithmetic"
                                               : "memory",
                          figure(part.above_limit_us), figure(part.launches),
                          figure(part.work.bytes), figure(part.work.flops)});
  }
  return table;
}

void add_gates(Page* page, const PhaseProfile& phase) {
  page->subheading("Gates");
  std::vector<BarToPass> bars;
  std::vector<std::string> next;
  for (const Gate& gate : phase.gates) {
    bars.push_back({gate.name, gate.share, gate.threshold});
    if (!gate.next.empty()) next.push_back(fmt::format("{}: {}", gate.name, gate.next));
  }
  page->picture(bars_to_pass_svg(bars), "Shares of the time; the line is the bar of the gate.");
  page->list(next);
}

void add_categories(Page* page, const PhaseProfile& phase) {
  page->subheading("Categories");
  std::vector<StackPart> parts;
  Page::Table table = parts_table("category", phase, phase.categories);
  for (size_t c = 0; c < phase.categories.size(); ++c) {
    const LimitedPart& part = phase.categories[c];
    parts.push_back({part.name, c, part.share_of_time,
                     fmt::format("{} us a {}", figure(part.us), phase.unit())});
    if (part.us != 0 || part.launches != 0) table.colours.push_back(c);
  }
  page->picture(stack_svg("Shares of the time by category", parts),
                fmt::format("The time of a {} by category, under the recorder.", phase.unit()));
  page->table(table);
}

void add_kernels(Page* page, const PhaseProfile& phase) {
  page->subheading("Steps");
  page->table(parts_table("step", phase, phase.steps));
  page->subheading("Kernels");
  Page::Table table{.head = {"kernel", "step", "category", fmt::format("#us a {}", phase.unit()),
                             "#of time", "#launches"}};
  for (const KernelPart& kernel : phase.kernels) {
    table.colours.push_back(static_cast<size_t>(kernel.place.category));
    table.rows.push_back({kernel.name, kernel.place.step, category_name(kernel.place.category),
                          figure(kernel.us), share_text(kernel.share_of_time),
                          figure(kernel.launches)});
  }
  page->table(table);
  page->subheading("Rows");
  Page::Table rows{.head = {"step", "row", "#launches"}};
  for (const auto& count : phase.rows) {
    rows.rows.push_back({count.op->name, count.name, figure(static_cast<double>(count.launches))});
  }
  page->table(rows);
}

void add_phase(Page* page, const PhaseProfile& phase) {
  page->heading(phase_title(phase));
  page->paragraph(
      fmt::format("{} us a {} under the recorder, which makes it {} times as long. {} gaps a {}, "
                  "the longest {} "
                  "us; kernels overlap for {} us. Memory was read at {} GB/s beside these runs.",
                  figure(phase.window_us), phase.unit(), figure(phase.slow_down()),
                  figure(phase.gaps), phase.unit(), figure(phase.longest_gap_us),
                  figure(phase.overlap_us), figure(phase.limits.read_gb_s)));
  add_gates(page, phase);
  add_categories(page, phase);
  page->subheading("Timeline");
  const Timeline timeline = timeline_of(phase);
  if (timeline.bars.empty()) {
    page->paragraph("Nothing was recorded.");
  } else {
    page->picture(timeline_svg(timeline),
                  timeline.label + ". Rest on a bar for its name and time.");
  }
  if (!phase.by_drafts.empty()) {
    page->subheading("Drafts");
    Page::Table table{
        .head = {"part", fmt::format("#us a {}", phase.unit()), "#of time", "#launches"}};
    for (const TimePart& part : phase.by_drafts) {
      table.rows.push_back(
          {part.name, figure(part.us), share_text(part.share_of_time), figure(part.launches)});
    }
    page->table(table);
  }
  add_kernels(page, phase);
}

}  // namespace

Timeline timeline_of(const PhaseProfile& phase) {
  const Excerpt excerpt = excerpt_of(phase);
  std::vector<Activity> activities = inside(phase, excerpt);
  Timeline timeline;
  const auto us = [&](int64_t ns) { return static_cast<double>(ns - excerpt.begin_ns) * 1e-3; };
  timeline.length_us = us(excerpt.end_ns);
  timeline.label = fmt::format("One {}: {}", phase.unit(), excerpt.what);
  if (activities.size() > kMostBars) {
    timeline.label += fmt::format("; the first {} of {} kernels", kMostBars, activities.size());
    activities.resize(kMostBars);
    timeline.length_us = us(activities.back().end_ns);
  }
  int64_t covered = excerpt.begin_ns;
  const auto gap_until = [&](int64_t to) {
    if (to > covered) timeline.gaps.push_back({us(covered), us(to)});
    covered = std::max(covered, to);
  };
  for (const Activity& a : activities) {
    const ActivityLog::Symbol& symbol = phase.last.symbols[static_cast<size_t>(a.symbol)];
    const KernelPlace place = place_of(symbol.name, symbol.op);
    const auto lane = std::find(timeline.lanes.begin(), timeline.lanes.end(), place.step);
    const auto lane_idx = static_cast<size_t>(lane - timeline.lanes.begin());
    if (lane == timeline.lanes.end()) timeline.lanes.emplace_back(place.step);
    timeline.bars.push_back({lane_idx, static_cast<size_t>(place.category), us(a.start_ns),
                             us(a.end_ns), short_kernel_name(symbol.name)});
    gap_until(a.start_ns);
    covered = std::max(covered, a.end_ns);
  }
  gap_until(activities.size() < kMostBars ? excerpt.end_ns : covered);
  return timeline;
}

Page profile_page(std::span<const PhaseProfile> phases, const MachineLimits& limits,
                  const nlohmann::ordered_json& document) {
  Page page = begin_page("profile", limits, document);
  if (phases.empty()) page.paragraph("No phase was profiled.");
  page.heading("Steps against the limits");
  Roofline roofline = roofline_of(limits);
  std::vector<Strip> strips;
  for (const PhaseProfile& phase : phases) {
    for (const LimitedPart& step : phase.steps) {
      roofline.points.push_back(
          {step.name, roofline.groups.size(), step.work.flops, step.work.bytes, step.us * 1e-6});
    }
    roofline.groups.push_back(phase_title(phase));
    strips.push_back({phase.test.name(), "tok/s", phase.plain_tok_s});
    strips.push_back({phase.test.name() + " profiled", "tok/s", phase.profiled_tok_s});
  }
  page.picture(roofline_svg(roofline),
               "The least operations and bytes of each step over its time, and the rates that this "
               "machine reached in this run: a point on a line is at the limit.");
  for (const PhaseProfile& phase : phases) add_phase(&page, phase);
  add_samples(&page, strips);
  end_page(&page, document);
  return page;
}

}  // namespace moxie
