// The page of a report: one HTML file that needs nothing else, is well-formed XML too, is light or
// dark as its reader's system is, and prints. All text is escaped here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/base.h"

namespace moxie {

class Page {
 public:
  explicit Page(std::string_view title) : title_(title) {}

  void heading(std::string_view text);
  void subheading(std::string_view text);
  void paragraph(std::string_view text);
  void list(const std::vector<std::string>& items);
  /// `svg`: from report_charts.h, taken as it is.
  void picture(const std::string& svg, std::string_view caption);

  struct Table {
    /// Columns whose head begins with '#' hold figures and are set flush right; the '#' is not
    /// shown.
    std::vector<std::string> head;
    std::vector<std::vector<std::string>> rows = {};  ///< as many cells as `head`
    /// If not empty, one colour a row: the class k0, k1, ... of the mark before its first cell.
    std::vector<size_t> colours = {};
  };
  void table(const Table& table);
  /// A preformatted text that is hidden until asked for; not printed.
  void folded(std::string_view summary, std::string_view text);

  std::string html() const;

 private:
  std::string title_, body_;
};

/// The conditions of a run from its record's JSON: environment, machine, weights and workload as
/// one table, switches with their sources as another, those that were given first.
void add_conditions(Page* page, const nlohmann::ordered_json& record);

/// Writes the page, complete or not at all.
Status write_page(const Page& page, const std::string& path);

}  // namespace moxie
