// Lays the charts out. All are 920 units wide, the width of the page's column.
#include "lab/report_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/report_svg.h"
#include "lab/stats.h"

namespace moxie {
namespace {

constexpr double kWidth = 920;
constexpr size_t kNumGroupColours = 10;  // the classes k0..k9 of the page; k10 means a gap

std::string colour_class(size_t colour) { return fmt::format("k{}", colour); }

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f}%", 100 * share) : "-";
}

// A power of ten as a reader wants it: "0.1", "100", "1e6".
std::string power_text(double value) {
  return value >= 1e5 || value < 1e-3 ? fmt::format("{:.0e}", value) : fmt::format("{:g}", value);
}

std::string time_text(double us) {
  if (us >= 1e6) return figure(us / 1e6) + " s";
  return us >= 1e3 ? figure(us / 1e3) + " ms" : figure(us) + " us";
}

// The names of groups with their marks, in a row below a chart; returns the height it takes.
double draw_legend(Svg* svg, double left, double top, const std::vector<std::string>& names) {
  double x = left, y = top;
  for (size_t i = 0; i < names.size(); ++i) {
    const double width = text_width(names[i]) + 34;
    if (x + width > kWidth && x > left) x = left, y += 18;
    svg->mark(x + 6, y - 4, 4.5, i, colour_class(i % kNumGroupColours));
    svg->text(x + 16, y, Anchor::kStart, "t", names[i]);
    x += width;
  }
  return y - top + 18;
}

struct Plotted {
  const Roofline::Point* point;
  double intensity, gops;
};

// Points with a place on logarithmic axes.
std::vector<Plotted> plotted(const Roofline& roofline) {
  std::vector<Plotted> points;
  for (const Roofline::Point& point : roofline.points) {
    const double intensity = point.operations / point.bytes;
    const double gops = point.operations / point.seconds * 1e-9;
    if (std::isfinite(intensity) && std::isfinite(gops) && intensity > 0 && gops > 0) {
      points.push_back({&point, intensity, gops});
    }
  }
  return points;
}

struct RoofAxes {
  Scale x, y;
  double left, top, right, bottom;
};

RoofAxes axes_of(const Roofline& roofline, const std::vector<Plotted>& points) {
  double least_x = 1, most_x = 10, least_y = 0, most_y = 0;
  for (const Roofline::Peak& peak : roofline.peaks) {
    most_y = std::max(most_y, peak.rate);
    // The corner of each roof is shown.
    if (roofline.read_gb_s > 0) most_x = std::max(most_x, 3 * peak.rate / roofline.read_gb_s);
  }
  for (const Plotted& p : points) {
    least_x = std::min(least_x, p.intensity);
    most_x = std::max(most_x, 2 * p.intensity);
    most_y = std::max(most_y, p.gops);
    least_y = least_y == 0 ? p.gops : std::min(least_y, p.gops);
  }
  if (least_y == 0) least_y = most_y > 0 ? most_y / 1e4 : 1;
  constexpr double kLeft = 74, kTop = 14, kRight = kWidth - 14, kBottom = 380;
  return {.x = Scale::log10(least_x / 2, most_x, kLeft, kRight),
          .y = Scale::log10(least_y / 2, 2 * most_y, kBottom, kTop),
          .left = kLeft,
          .top = kTop,
          .right = kRight,
          .bottom = kBottom};
}

void draw_axes(Svg* svg, const RoofAxes& axes) {
  for (const double tick : axes.x.ticks(8)) {
    const double x = axes.x.at(tick);
    svg->line(x, axes.top, x, axes.bottom, "grid");
    svg->text(x, axes.bottom + 17, Anchor::kMiddle, "s", power_text(tick));
  }
  for (const double tick : axes.y.ticks(8)) {
    const double y = axes.y.at(tick);
    svg->line(axes.left, y, axes.right, y, "grid");
    svg->text(axes.left - 7, y + 4, Anchor::kEnd, "s", power_text(tick));
  }
  svg->line(axes.left, axes.bottom, axes.right, axes.bottom, "axis");
  svg->line(axes.left, axes.top, axes.left, axes.bottom, "axis");
  svg->text((axes.left + axes.right) / 2, axes.bottom + 36, Anchor::kMiddle, "s",
            "operations a byte");
  svg->text(4, axes.top - 3, Anchor::kStart, "s", "1e9 operations/s");
}

// A rate's line: the slope of memory up to the peak, and the peak from there on.
void draw_roofs(Svg* svg, const Roofline& roofline, const RoofAxes& axes, LabelPlaces* places) {
  double highest = 0;
  std::vector<Roofline::Peak> peaks = roofline.peaks;
  std::erase_if(peaks, [](const Roofline::Peak& peak) { return peak.rate <= 0; });
  std::sort(peaks.begin(), peaks.end(),
            [](const auto& a, const auto& b) { return a.rate > b.rate; });
  double label_y = -100, label_x = axes.right - 4;
  for (const Roofline::Peak& peak : peaks) {
    highest = std::max(highest, peak.rate);
    const double corner = roofline.read_gb_s > 0 ? peak.rate / roofline.read_gb_s : axes.x.from();
    const double y = axes.y.at(peak.rate);
    const std::string text = fmt::format("{} {}", peak.name, figure(peak.rate));
    const double width = text_width(text);
    svg->line(axes.x.at(corner), y, axes.right, y, "roof", text + "e9 operations/s, measured");
    // The name of a peak just below another one stands to the left of that one's name.
    if (y - 4 - label_y > 14) label_x = axes.right - 4;
    label_y = y - 4;
    svg->text(label_x, label_y, Anchor::kEnd, "s", text);
    places->take({label_x - width, label_y - 11, width, 14});
    label_x -= width + 6;
  }
  if (roofline.read_gb_s <= 0) return;
  const double top = highest > 0 ? highest : axes.y.to();
  const double first = std::max(axes.x.from(), axes.y.from() / roofline.read_gb_s);
  const double last = std::min(axes.x.to(), top / roofline.read_gb_s);
  if (first >= last) return;
  const std::string text = fmt::format("memory {} GB/s", figure(roofline.read_gb_s));
  svg->line(axes.x.at(first), axes.y.at(first * roofline.read_gb_s), axes.x.at(last),
            axes.y.at(last * roofline.read_gb_s), "roof", text + ", measured");
  // Beside the upper third of the slope.
  const double at = std::exp(std::log(first) / 3 + 2 * std::log(last) / 3);
  const double x = axes.x.at(at) - 8, y = axes.y.at(at * roofline.read_gb_s) - 4;
  svg->text(x, y, Anchor::kEnd, "s", text);
  places->take({x - text_width(text), y - 11, text_width(text), 14});
}

// Whole steps between marks of an axis of time.
void draw_time_axis(Svg* svg, const Scale& scale, double top, double bottom) {
  for (const double tick : scale.ticks(8)) {
    const double x = scale.at(tick);
    svg->line(x, top, x, bottom, "grid");
    svg->text(x, bottom + 16, Anchor::kMiddle, "s", time_text(tick));
  }
}

}  // namespace

std::string roofline_svg(const Roofline& roofline) {
  const std::vector<Plotted> points = plotted(roofline);
  const RoofAxes axes = axes_of(roofline, points);
  const size_t num_left_out = roofline.points.size() - points.size();
  const double legend_lines = 1 + std::floor(static_cast<double>(roofline.groups.size()) / 5);
  Svg svg(kWidth, axes.bottom + 50 + 18 * legend_lines,
          "Work per second against operations a byte, with the limits measured");
  LabelPlaces places({axes.left, axes.top, axes.right - axes.left, axes.bottom - axes.top});
  draw_axes(&svg, axes);
  draw_roofs(&svg, roofline, axes, &places);
  for (const Plotted& p : points) {
    places.take({axes.x.at(p.intensity) - 5, axes.y.at(p.gops) - 5, 10, 10});
  }
  for (const Plotted& p : points) {
    const double x = axes.x.at(p.intensity), y = axes.y.at(p.gops);
    const std::string& group =
        p.point->group < roofline.groups.size() ? roofline.groups[p.point->group] : p.point->name;
    svg.mark(x, y, 4.5, p.point->group, colour_class(p.point->group % kNumGroupColours),
             fmt::format("{} of {}: {}e9 operations/s at {} operations a byte", p.point->name,
                         group, figure(p.gops), figure(p.intensity)));
    LabelPlaces::Box box;
    if (places.find(x, y, p.point->name, &box)) {
      svg.text(box.x, box.y + 11, Anchor::kStart, "t", p.point->name);
    }
  }
  draw_legend(&svg, axes.left, axes.bottom + 58, roofline.groups);
  if (num_left_out > 0) {
    svg.text(axes.right, axes.bottom + 36, Anchor::kEnd, "s",
             fmt::format("{} without counted work are left out", num_left_out));
  }
  return svg.str();
}

std::string timeline_svg(const Timeline& timeline) {
  constexpr double kLeft = 92, kLane = 22, kTop = 6, kRight = kWidth - 24;
  const double bottom = kTop + kLane * static_cast<double>(timeline.lanes.size() + 1);
  Svg svg(kWidth, bottom + 24, timeline.label);
  const Scale scale = Scale::linear(0, timeline.length_us, kLeft, kRight);
  const auto y_of = [&](size_t lane) { return kTop + kLane * static_cast<double>(lane); };
  for (size_t i = 0; i < timeline.lanes.size(); ++i) {
    svg.text(kLeft - 8, y_of(i) + 15, Anchor::kEnd, "t", timeline.lanes[i]);
  }
  svg.text(kLeft - 8, y_of(timeline.lanes.size()) + 15, Anchor::kEnd, "t", "no kernel");
  draw_time_axis(&svg, scale, kTop, bottom);
  const auto draw = [&](size_t lane, double start_us, double end_us, const std::string& css,
                        const std::string& name) {
    const double x = scale.at(start_us);
    // A bar too short to see is still drawn.
    svg.rect(x, y_of(lane) + 3, std::max(0.4, scale.at(end_us) - x), kLane - 6, css,
             fmt::format("{}: {} at {}", name, time_text(end_us - start_us), time_text(start_us)));
  };
  for (const Timeline::Bar& bar : timeline.bars) {
    draw(bar.lane, bar.start_us, bar.end_us, colour_class(bar.colour), bar.name);
  }
  for (const Timeline::Gap& gap : timeline.gaps) {
    draw(timeline.lanes.size(), gap.start_us, gap.end_us, "gap", "no kernel");
  }
  svg.line(kLeft, bottom, kRight, bottom, "axis");
  return svg.str();
}

std::string stack_svg(const std::string& label, const std::vector<StackPart>& parts) {
  constexpr double kHeight = 34, kTop = 2;
  Svg svg(kWidth, kTop + kHeight + 4, label);
  double before = 0;
  const Scale scale = Scale::linear(0, 1, 0, kWidth);
  for (const StackPart& part : parts) {
    if (!(part.share > 0) || !std::isfinite(part.share)) continue;
    const double x = scale.at(before), width = scale.at(before + part.share) - x;
    svg.rect(x, kTop, width, kHeight, colour_class(part.colour),
             fmt::format("{}: {}{}{}", part.name, percent(part.share),
                         part.tooltip.empty() ? "" : ", ", part.tooltip));
    const std::string text = fmt::format("{} {}", part.name, percent(part.share));
    const std::string brief = percent(part.share);
    if (text_width(text) < width - 8) {
      svg.text(x + 6, kTop + 21, Anchor::kStart, "on", text);
    } else if (text_width(brief) < width - 8) {
      svg.text(x + 6, kTop + 21, Anchor::kStart, "on", brief);
    }
    before += part.share;
  }
  if (before == 0) svg.text(4, kTop + 21, Anchor::kStart, "s", "no time was measured");
  return svg.str();
}

std::string bars_to_pass_svg(const std::vector<BarToPass>& bars) {
  constexpr double kLeft = 110, kRow = 26, kTop = 4, kRight = kWidth - 220;
  const double bottom = kTop + kRow * static_cast<double>(bars.size());
  Svg svg(kWidth, bottom + 24, "Shares of time against the bars of the gates");
  const Scale scale = Scale::linear(0, 1, kLeft, kRight);
  for (const double tick : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    svg.line(scale.at(tick), kTop, scale.at(tick), bottom, "grid");
    svg.text(scale.at(tick), bottom + 16, Anchor::kMiddle, "s", fmt::format("{:.0f}%", 100 * tick));
  }
  for (size_t i = 0; i < bars.size(); ++i) {
    const BarToPass& bar = bars[i];
    const double y = kTop + kRow * static_cast<double>(i);
    const bool is_over = bar.share.value_or(0) > bar.threshold;
    svg.text(kLeft - 8, y + 17, Anchor::kEnd, "t", bar.name);
    if (bar.share) {
      svg.rect(kLeft, y + 5, scale.at(*bar.share) - kLeft, kRow - 10, is_over ? "bad" : "good");
    }
    svg.line(scale.at(bar.threshold), y + 1, scale.at(bar.threshold), y + kRow - 1, "bar",
             fmt::format("bar {}", percent(bar.threshold)));
    svg.text(kRight + 14, y + 17, Anchor::kStart, "t",
             bar.share ? fmt::format("{} of at most {}: {}", percent(*bar.share),
                                     percent(bar.threshold), is_over ? "over" : "passed")
                       : std::string("not seen here"));
  }
  return svg.str();
}

std::string strips_svg(const std::vector<Strip>& strips) {
  constexpr double kRow = 24, kTop = 4, kRight = kWidth - 200;
  double left = 60, most = 0.01;
  for (const Strip& strip : strips) {
    left = std::clamp(text_width(strip.name) + 16, left, 300.0);
    const double middle = median(strip.samples);
    if (middle == 0) continue;
    for (const double sample : strip.samples) {
      if (std::isfinite(sample)) most = std::max(most, std::abs(sample / middle - 1));
    }
  }
  const double bottom = kTop + kRow * static_cast<double>(strips.size());
  Svg svg(kWidth, bottom + 24, "Samples as deviations from their median");
  const Scale scale = Scale::linear(-most, most, left + 6, kRight - 6);
  for (const double tick : scale.ticks(6)) {
    svg.line(scale.at(tick), kTop, scale.at(tick), bottom, "grid");
    svg.text(scale.at(tick), bottom + 16, Anchor::kMiddle, "s",
             tick == 0 ? std::string("0%") : fmt::format("{:+g}%", 100 * tick));
  }
  for (size_t i = 0; i < strips.size(); ++i) {
    const Strip& strip = strips[i];
    const double y = kTop + kRow * static_cast<double>(i), middle = median(strip.samples);
    svg.text(left - 8, y + 16, Anchor::kEnd, "t", strip.name);
    svg.line(left, y + 12, kRight, y + 12, "axis");
    for (const double sample : strip.samples) {
      if (middle == 0 || !std::isfinite(sample)) continue;
      svg.mark(scale.at(sample / middle - 1), y + 12, 4, 0, "dot",
               fmt::format("{} {}", figure(sample), strip.unit));
    }
    svg.text(kRight + 10, y + 16, Anchor::kStart, "t",
             strip.samples.empty()
                 ? std::string("no samples")
                 : fmt::format("{} {}, n = {}", figure(middle), strip.unit, strip.samples.size()));
  }
  return svg.str();
}

}  // namespace moxie
