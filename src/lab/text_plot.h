// A small plot of a series in letters, for terminals.
#pragma once

#include <span>
#include <string>

namespace moxie {

struct PlotSize {
  int width = 64, height = 10;  ///< of the field with the points; 2 or more
};

/// Values from left to right in equal steps, a `*` each, with the scale on the left; several values
/// of one column are drawn each. Empty for no values. Values are finite.
std::string text_plot(std::span<const double> values, const PlotSize& size = {});

}  // namespace moxie
