// The scale goes from the least value to the greatest; one value alone lies in the middle.
#include "lab/text_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/base.h"

namespace moxie {

std::string text_plot(std::span<const double> values, const PlotSize& size) {
  CHECK(size.width >= 2 && size.height >= 2);
  if (values.empty()) return "";
  auto [low, high] = std::minmax_element(values.begin(), values.end());
  double bottom = *low, top = *high;
  if (bottom == top) {
    const double around = bottom == 0 ? 1 : 0.05 * std::fabs(bottom);
    bottom -= around;
    top += around;
  }
  const auto width = static_cast<size_t>(size.width), height = static_cast<size_t>(size.height);
  std::vector<std::string> lines(height, std::string(width, ' '));
  for (size_t i = 0; i < values.size(); ++i) {
    const double across =
        values.size() > 1 ? static_cast<double>(i) / static_cast<double>(values.size() - 1) : 0.5;
    const double up = (values[i] - bottom) / (top - bottom);
    const auto column = static_cast<size_t>(std::lround(across * static_cast<double>(width - 1)));
    const auto row = static_cast<size_t>(std::lround((1 - up) * static_cast<double>(height - 1)));
    lines[row][column] = '*';
  }
  std::string text;
  for (size_t row = 0; row < height; ++row) {
    const double value =
        top - (top - bottom) * static_cast<double>(row) / static_cast<double>(height - 1);
    const bool has_label = row == 0 || row + 1 == height || row == height / 2;
    const size_t end = lines[row].find_last_not_of(' ') + 1;  // 0: an empty line
    text += fmt::format("{:>12} |{}\n", has_label ? fmt::format("{:.5g}", value) : "",
                        lines[row].substr(0, end));
  }
  return text + fmt::format("{:>12} +{:-<{}}\n", "", "", size.width);
}

}  // namespace moxie
