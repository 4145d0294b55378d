// Primitives of the pictures in a report: escaped text, numbers, scales, and an SVG that is put
// together from shapes. Colours are CSS classes of the page (report_page.cpp), so that one picture
// serves a light and a dark page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moxie {

/// Text for XML content and attributes: & < > " ' as entities, broken UTF-8 and control characters
/// that XML forbids replaced by U+FFFD.
std::string escape_xml(std::string_view text);

/// A figure as a reader wants it: four significant digits, "1,234" from 1,000 on, "1.2e+12" from
/// 1e9 on; "-" if it is not finite.
std::string figure(double value);

/// Maps values to coordinates along one axis.
class Scale {
 public:
  /// Values `from`..`to` to coordinates `at_from`..`at_to`. An empty or broken range becomes one of
  /// width 1 around `from`, so that every coordinate is finite.
  static Scale linear(double from, double to, double at_from, double at_to);
  /// The same for logarithms. Bounds that are not positive become 1 and ten times the other.
  static Scale log10(double from, double to, double at_from, double at_to);

  /// Values outside the range are moved to its nearer end.
  double at(double value) const;
  /// Round values inside the range: 1, 2 or 5 times a power of ten, about `count` of them; of a
  /// logarithmic scale the powers of ten, with fewer than three of them 2 and 5 times these too.
  std::vector<double> ticks(int count) const;
  double from() const { return from_; }
  double to() const { return to_; }

 private:
  Scale(bool is_log, double from, double to, double at_from, double at_to);
  bool is_log_;
  double from_, to_, at_from_, at_to_;
};

enum class Anchor { kStart, kMiddle, kEnd };

/// A picture of fixed proportions that fills the width of its page. Coordinates are in units of
/// which a line of text is 14 high; each must be finite.
class Svg {
 public:
  /// `label`: what the picture shows, for those who cannot see it.
  Svg(double width, double height, std::string_view label);

  /// `css`: class names. `tooltip`: shown where a pointer rests; empty: none.
  void rect(double x, double y, double width, double height, std::string_view css,
            std::string_view tooltip = {});
  void line(double x1, double y1, double x2, double y2, std::string_view css,
            std::string_view tooltip = {});
  /// A line through points, x and y in turn.
  void path(const std::vector<double>& xy, std::string_view css, std::string_view tooltip = {});
  /// Marks differ by shape as well as by colour: circle, square, triangle, diamond, in turn.
  void mark(double x, double y, double radius, size_t shape, std::string_view css,
            std::string_view tooltip = {});
  void text(double x, double y, Anchor anchor, std::string_view css, std::string_view text);

  double width() const { return width_; }
  /// The whole element.
  std::string str() const;

 private:
  void element(std::string open, std::string_view tooltip);
  double width_, height_;
  std::string label_, body_;
};

/// The width of a text of this many characters in an Svg's units, on the generous side.
double text_width(std::string_view text, double size = 12);

/// Where labels may stand: keeps them off each other and off marks.
class LabelPlaces {
 public:
  struct Box {
    double x = 0, y = 0, width = 0, height = 0;
    bool meets(const Box& other) const;
  };
  explicit LabelPlaces(Box area) : area_(area) {}
  void take(Box box) { taken_.push_back(box); }
  /// A place for a text beside (x, y), inside the area and free; taken afterwards. False if there
  /// is none. `*box` receives it: the text starts at box.x, its base line is at box.y + 11.
  bool find(double x, double y, std::string_view text, Box* box);

 private:
  Box area_;
  std::vector<Box> taken_;
};

}  // namespace moxie
