// HTML with one style sheet. Categories and groups have colours k0 to k10, chosen to differ in
// brightness too, so that they can be told apart on grey paper.
#include "lab/report_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base.h"
#include "core/whole_file.h"
#include "lab/report_svg.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5b6168; --paper: #ffffff; --line: #d9dce0;
  --band: #f4f5f7; --good: #2e8540; --bad: #c22f2f; --on: #ffffff; --roof: #1c1e21;
  --k0: #2f5d9e; --k1: #c26a12; --k2: #2e8060; --k3: #7d4fa0; --k4: #8a5a3c; --k5: #b8447e;
  --k6: #6d7a1f; --k7: #1f7f92; --k8: #77808a; --k9: #4a4f57; --k10: #d3482f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a2a8b0; --paper: #16181b;
  --line: #363a40; --band: #202327; --good: #56b870; --bad: #ef6a63; --on: #101214; --roof: #e6e8eb;
  --k0: #76a7e8; --k1: #f0a050; --k2: #5fc09a; --k3: #bb90dd; --k4: #c79a7c; --k5: #ee86b7;
  --k6: #b5c455; --k7: #5fc4d6; --k8: #a8b0b9; --k9: #c9ced5; --k10: #ff8168; } }
@media print { :root { --ink: #000000; --paper: #ffffff; --line: #bbbbbb; --band: #f2f2f2;
  --soft: #444444; --on: #ffffff; --roof: #000000; --k0: #2f5d9e; --k1: #c26a12; --k2: #2e8060;
  --k3: #7d4fa0; --k4: #8a5a3c; --k5: #b8447e; --k6: #6d7a1f; --k7: #1f7f92; --k8: #77808a;
  --k9: #4a4f57; --k10: #d3482f; --good: #2e8540; --bad: #c22f2f; }
  details { display: none; } figure, tr, h2, h3 { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; } }
body { margin: 0 auto; padding: 24px; max-width: 960px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "Noto Sans", sans-serif; }
h1 { font-size: 24px; margin: 0 0 8px; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 36px 0 8px; padding-top: 10px; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
h3 { font-size: 15px; margin: 22px 0 4px; }
p, ul { margin: 6px 0; overflow-wrap: anywhere; }
figure { margin: 12px 0; } svg { display: block; width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 8px 0; }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
th { text-align: left; border-bottom: 1px solid var(--soft); padding: 3px 8px; vertical-align: bottom; }
td { border-bottom: 1px solid var(--line); padding: 3px 8px; vertical-align: top; }
.w { overflow-wrap: anywhere; min-width: 9em; }
tr:nth-child(even) td { background: var(--band); }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.swatch { display: inline-block; width: 10px; height: 10px; margin-right: 6px; }
pre { overflow-x: auto; font-size: 12px; background: var(--band); padding: 8px; }
text { font-family: system-ui, "Segoe UI", "Noto Sans", sans-serif; paint-order: stroke;
  stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round; }
.t { font-size: 12px; fill: var(--ink); } .s { font-size: 11px; fill: var(--soft); }
.on { font-size: 12px; fill: var(--on); stroke: none; }
.grid { stroke: var(--line); stroke-width: 1; } .axis { stroke: var(--soft); stroke-width: 1; }
.roof { stroke: var(--roof); stroke-width: 1.5; fill: none; }
.bar { stroke: var(--ink); stroke-width: 2; } .good { fill: var(--good); } .bad { fill: var(--bad); }
.gap { fill: var(--k10); } .none { fill: var(--line); } .dot { fill: var(--k0); fill-opacity: 0.55; }
@page { margin: 12mm; }
@media print { body { font-size: 12px; padding: 0; max-width: none; } .scroll { overflow: visible; }
  table { font-size: 9px; } th, td { padding: 1px 4px; } .n { white-space: normal; }
  .w { min-width: 5em; } }
)";

std::string style() {
  std::string css = kStyle;
  for (int k = 0; k <= 10; ++k) {
    css += fmt::format(
        ".k{0} {{ fill: var(--k{0}); }} .swatch.k{0} {{ background: var(--k{0}); }}\n", k);
  }
  return css;
}

bool is_figure(const std::string& head) { return head.starts_with("#"); }

// One line for a value of the conditions.
std::string value_text(const Json& value) {
  if (value.is_null()) return "not known";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return figure(value.get<double>());
  if (value.is_array()) {
    std::string text;
    for (const Json& one : value) text += (text.empty() ? "" : ", ") + value_text(one);
    return text.empty() ? "none" : text;
  }
  if (value.is_object()) {
    std::string text;
    for (const auto& [key, one] : value.items()) {
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", key, value_text(one));
    }
    return text;
  }
  return value.dump();
}

}  // namespace

void Page::heading(std::string_view text) {
  body_ += fmt::format("<h2>{}</h2>\n", escape_xml(text));
}
void Page::subheading(std::string_view text) {
  body_ += fmt::format("<h3>{}</h3>\n", escape_xml(text));
}
void Page::paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", escape_xml(text));
}

void Page::list(const std::vector<std::string>& items) {
  if (items.empty()) return;
  body_ += "<ul>\n";
  for (const std::string& item : items) body_ += fmt::format("<li>{}</li>\n", escape_xml(item));
  body_ += "</ul>\n";
}

void Page::picture(const std::string& svg, std::string_view caption) {
  body_ +=
      fmt::format("<figure>\n{}<figcaption>{}</figcaption>\n</figure>\n", svg, escape_xml(caption));
}

void Page::table(const Table& table) {
  // Long texts may break anywhere, so that a page keeps its width.
  constexpr size_t kLongText = 24;
  const auto cell = [&](const char* tag, size_t column, const std::string& inner,
                        size_t num_bytes) {
    const char* css = is_figure(table.head[column]) ? " class=\"n\""
                      : num_bytes > kLongText       ? " class=\"w\""
                                                    : "";
    body_ += fmt::format("<{0}{1}>{2}</{0}>", tag, css, inner);
  };
  body_ += "<div class=\"scroll\"><table>\n<thead><tr>";
  for (size_t c = 0; c < table.head.size(); ++c) {
    cell("th", c, escape_xml(table.head[c].substr(is_figure(table.head[c]) ? 1 : 0)), 0);
  }
  body_ += "</tr></thead>\n<tbody>\n";
  for (size_t r = 0; r < table.rows.size(); ++r) {
    CHECK(table.rows[r].size() == table.head.size(), "a row of a table has other columns");
    body_ += "<tr>";
    for (size_t c = 0; c < table.rows[r].size(); ++c) {
      const bool has_colour = c == 0 && r < table.colours.size();
      cell("td", c,
           (has_colour ? fmt::format("<span class=\"swatch k{}\"></span>", table.colours[r]) : "") +
               escape_xml(table.rows[r][c]),
           table.rows[r][c].size());
    }
    body_ += "</tr>\n";
  }
  body_ += "</tbody>\n</table></div>\n";
}

void Page::folded(std::string_view summary, std::string_view text) {
  body_ += fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n",
                       escape_xml(summary), escape_xml(text));
}

std::string Page::html() const {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\"/>\n<title>{0}</title>\n<style>{1}</style>\n</head>\n<body>\n<h1>{0}</h1>\n"
      "{2}</body>\n</html>\n",
      escape_xml(title_), style(), body_);
}

void add_conditions(Page* page, const Json& record) {
  page->heading("Conditions");
  Page::Table facts{.head = {"of", "what", "value"}};
  for (const char* part : {"environment", "machine", "weights", "workload"}) {
    const auto found = record.find(part);
    if (found == record.end() || !found->is_object()) continue;
    for (const auto& [key, value] : found->items()) {
      if (value.is_object()) {
        for (const auto& [inner, one] : value.items()) {
          facts.rows.push_back({part, fmt::format("{} {}", key, inner), value_text(one)});
        }
        continue;
      }
      facts.rows.push_back({part, key, value_text(value)});
    }
  }
  for (const char* key : {"memory_peak_bytes", "energy_joules"}) {
    if (record.contains(key)) facts.rows.push_back({"run", key, value_text(record[key])});
  }
  page->table(facts);
  page->subheading("Switches");
  Page::Table switches{.head = {"switch", "value", "source"}}, defaults;
  const auto configuration = record.find("configuration");
  if (configuration != record.end() && configuration->is_object()) {
    for (const auto& [name, setting] : configuration->items()) {
      const std::string source = value_text(setting.value("source", Json()));
      (source != "default" ? switches : defaults)
          .rows.push_back({name, value_text(setting.value("value", Json())), source});
    }
  }
  switches.rows.insert(switches.rows.end(), defaults.rows.begin(), defaults.rows.end());
  page->table(switches);
}

Status write_page(const Page& page, const std::string& path) {
  return write_whole_file(path, page.html(), "report");
}

}  // namespace moxie
