// SVG text, built without a library: a dozen kinds of element, each escaped here.
#include "lab/report_svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base.h"
#include "text/utf8.h"

namespace moxie {
namespace {

// Whether XML 1.0 may hold the character.
bool is_xml_char(char32_t c) {
  return c == '\t' || c == '\n' || (c >= 0x20 && c != 0xFFFE && c != 0xFFFF);
}

// A coordinate: a tenth of a unit is less than anyone sees.
std::string number(double value) {
  CHECK(std::isfinite(value), "a coordinate of a picture is not finite");
  std::string text = fmt::format("{:.2f}", value);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

bool is_usable(double from, double to) {
  return std::isfinite(from) && std::isfinite(to) && from < to;
}

}  // namespace

std::string escape_xml(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char one = decode_utf8(text, at);
    switch (one.code_point) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        append_utf8(is_xml_char(one.code_point) ? one.code_point : U'\uFFFD', &out);
    }
    at += one.size_bytes;
  }
  return out;
}

std::string figure(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size >= 1e9) return fmt::format("{:.4g}", value);
  if (size < 999.95) return fmt::format("{:.4g}", value);
  std::string text = fmt::format("{:.0f}", value);
  const size_t first = text.front() == '-' ? 1 : 0;
  for (size_t at = text.size(); at > first + 3;) text.insert(at -= 3, ",");
  return text;
}

Scale::Scale(bool is_log, double from, double to, double at_from, double at_to)
    : is_log_(is_log), from_(from), to_(to), at_from_(at_from), at_to_(at_to) {}

Scale Scale::linear(double from, double to, double at_from, double at_to) {
  if (!is_usable(from, to)) {
    if (!std::isfinite(from)) from = 0;
    from -= 0.5;
    to = from + 1;
  }
  // A range so far from 0 that adding 1 is lost in rounding.
  if (from >= to) from = 0, to = 1;
  return {false, from, to, at_from, at_to};
}

Scale Scale::log10(double from, double to, double at_from, double at_to) {
  if (!std::isfinite(from) || from <= 0) from = std::isfinite(to) && to > 0 ? to / 10 : 1;
  if (!is_usable(from, to)) to = 10 * from;
  if (from <= 0 || !std::isfinite(to)) from = 1, to = 10;
  return {true, from, to, at_from, at_to};
}

double Scale::at(double value) const {
  const double inside = std::isnan(value) ? from_ : std::clamp(value, from_, to_);
  const double share =
      is_log_ ? (std::log(inside) - std::log(from_)) / (std::log(to_) - std::log(from_))
              : (inside - from_) / (to_ - from_);
  return at_from_ + share * (at_to_ - at_from_);
}

std::vector<double> Scale::ticks(int count) const {
  std::vector<double> ticks;
  if (is_log_) {
    const int first = static_cast<int>(std::ceil(std::log10(from_) - 1e-9));
    const int last = static_cast<int>(std::floor(std::log10(to_) + 1e-9));
    const int step = std::max(1, (last - first + count) / std::max(count, 1));
    if (last - first >= 2) {
      for (int power = first; power <= last; power += step) ticks.push_back(std::pow(10.0, power));
      return ticks;
    }
    for (int power = first - 1; power <= last; ++power) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = digit * std::pow(10.0, power);
        if (tick >= from_ && tick <= to_) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const double rough = (to_ - from_) / std::max(count, 1);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double ratio = rough / power;
  const double step = power * (ratio > 5 ? 10 : ratio > 2 ? 5 : ratio > 1 ? 2 : 1);
  const double first = std::ceil(from_ / step - 1e-9);
  for (int i = 0; i <= 2 * count + 2; ++i) {
    const double tick = (first + i) * step;
    if (tick > to_ + 1e-9 * step) break;
    ticks.push_back(std::abs(tick) < 1e-9 * step ? 0 : tick);
  }
  return ticks;
}

Svg::Svg(double width, double height, std::string_view label)
    : width_(width), height_(height), label_(label) {}

void Svg::element(std::string open, std::string_view tooltip) {
  body_ += open;
  const std::string_view name = std::string_view(open).substr(1, open.find(' ') - 1);
  body_ += tooltip.empty() ? "/>\n"
                           : fmt::format("><title>{}</title></{}>\n", escape_xml(tooltip), name);
}

void Svg::rect(double x, double y, double width, double height, std::string_view css,
               std::string_view tooltip) {
  element(fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{}\"", number(x),
                      number(y), number(std::max(0.0, width)), number(std::max(0.0, height)), css),
          tooltip);
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css,
               std::string_view tooltip) {
  element(fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" class=\"{}\"", number(x1),
                      number(y1), number(x2), number(y2), css),
          tooltip);
}

void Svg::path(const std::vector<double>& xy, std::string_view css, std::string_view tooltip) {
  std::string points;
  for (size_t i = 0; i + 1 < xy.size(); i += 2) {
    points += fmt::format("{}{},{}", i == 0 ? "" : " ", number(xy[i]), number(xy[i + 1]));
  }
  element(fmt::format("<polyline points=\"{}\" class=\"{}\"", points, css), tooltip);
}

void Svg::mark(double x, double y, double radius, size_t shape, std::string_view css,
               std::string_view tooltip) {
  const double r = radius;
  const auto polygon = [&](std::initializer_list<std::pair<double, double>> corners) {
    std::string points;
    for (const auto& [dx, dy] : corners) {
      points += fmt::format("{}{},{}", points.empty() ? "" : " ", number(x + dx), number(y + dy));
    }
    element(fmt::format("<polygon points=\"{}\" class=\"{}\"", points, css), tooltip);
  };
  switch (shape % 4) {
    case 0:
      element(fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" class=\"{}\"", number(x), number(y),
                          number(r), css),
              tooltip);
      break;
    case 1:
      polygon({{-r, -r}, {r, -r}, {r, r}, {-r, r}});
      break;
    case 2:
      polygon({{0, -1.3 * r}, {1.2 * r, r}, {-1.2 * r, r}});
      break;
    default:
      polygon({{0, -1.4 * r}, {1.4 * r, 0}, {0, 1.4 * r}, {-1.4 * r, 0}});
      break;
  }
}

void Svg::text(double x, double y, Anchor anchor, std::string_view css, std::string_view text) {
  constexpr const char* kAnchors[] = {"start", "middle", "end"};
  body_ +=
      fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\" class=\"{}\">{}</text>\n", number(x),
                  number(y), kAnchors[static_cast<size_t>(anchor)], css, escape_xml(text));
}

std::string Svg::str() const {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" "
      "aria-label=\"{}\">\n{}</svg>\n",
      number(width_), number(height_), escape_xml(label_), body_);
}

double text_width(std::string_view text, double size) {
  const auto starts_character = [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  };
  const auto count = std::count_if(text.begin(), text.end(), starts_character);
  return 0.66 * size * static_cast<double>(count);
}

bool LabelPlaces::Box::meets(const Box& other) const {
  return x < other.x + other.width && other.x < x + width && y < other.y + other.height &&
         other.y < y + height;
}

bool LabelPlaces::find(double x, double y, std::string_view text, Box* box) {
  constexpr double kHeight = 14, kAway = 7;
  const double width = text_width(text);
  // Right, left, above, below, then the same further away.
  for (const double away : {kAway, 2.2 * kAway, 3.6 * kAway}) {
    const double middle = y - kHeight / 2, diagonal = 0.7 * away;
    for (const auto& [left, top] : {std::pair{x + away, middle},
                                    {x - away - width, middle},
                                    {x - width / 2, y - away - kHeight},
                                    {x - width / 2, y + away},
                                    {x + diagonal, y - diagonal - kHeight},
                                    {x + diagonal, y + diagonal},
                                    {x - diagonal - width, y - diagonal - kHeight},
                                    {x - diagonal - width, y + diagonal}}) {
      const Box candidate{left, top, width, kHeight};
      const bool is_inside = left >= area_.x && top >= area_.y &&
                             left + width <= area_.x + area_.width &&
                             top + kHeight <= area_.y + area_.height;
      const bool is_free = std::none_of(taken_.begin(), taken_.end(),
                                        [&](const Box& other) { return candidate.meets(other); });
      if (!is_inside || !is_free) continue;
      take(candidate);
      *box = candidate;
      return true;
    }
  }
  return false;
}

}  // namespace moxie
