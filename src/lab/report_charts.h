// The charts of a report: plain data in, SVG text out. Data without a meaning on a chart (zero on a
// logarithmic axis, no samples) is left out of the picture, and the picture says so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace moxie {

/// Work per time against the machine's limits, both axes logarithmic.
struct Roofline {
  double read_gb_s = 0;  ///< measured; 0: no slope is drawn
  struct Peak {
    std::string name;  ///< "bf16"
    double rate = 0;   ///< 1e9 operations a second
  };
  std::vector<Peak> peaks = {};
  struct Point {
    std::string name;
    size_t group = 0;  ///< index of `groups`
    double operations = 0, bytes = 0, seconds = 0;
  };
  std::vector<std::string> groups = {};  ///< "tg32": points of a group share colour and shape
  std::vector<Point> points = {};
};
std::string roofline_svg(const Roofline& roofline);

/// What ran when. Times are microseconds since the beginning of the excerpt.
struct Timeline {
  std::string label;
  double length_us = 0;
  std::vector<std::string> lanes;
  struct Bar {
    size_t lane = 0, colour = 0;  ///< colour: the class k0, k1, ... of the page
    double start_us = 0, end_us = 0;
    std::string name;
  };
  std::vector<Bar> bars;
  struct Gap {
    double start_us = 0, end_us = 0;
  };
  std::vector<Gap> gaps;
};
std::string timeline_svg(const Timeline& timeline);

/// Parts of a whole as one bar.
struct StackPart {
  std::string name;
  size_t colour = 0;
  double share = 0;  ///< 0..1
  std::string tooltip;
};
std::string stack_svg(const std::string& label, const std::vector<StackPart>& parts);

/// A share against a bar that it should not pass.
struct BarToPass {
  std::string name;
  std::optional<double> share;  ///< empty: not seen
  double threshold = 0;
};
std::string bars_to_pass_svg(const std::vector<BarToPass>& bars);

/// Raw samples, as deviations from their median in percent on one axis for all strips.
struct Strip {
  std::string name, unit;
  std::vector<double> samples;
};
std::string strips_svg(const std::vector<Strip>& strips);

}  // namespace moxie
