// What a matrix becomes: JSON that `--resume` reads again, a table in Markdown that says when it is
// stale, and a report.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "lab/matrix.h"
#include "lab/report_page.h"

namespace moxie {

/// What results depend on beside the switches: only cells with an equal key are taken over.
struct MatrixKey {
  std::string commit, device, model, level;
  bool dirty = false;  ///< sources that differed from the commit
  bool quick = false;
  std::vector<std::string> common;  ///< switches of all cells
  bool operator==(const MatrixKey&) const = default;
};

struct Matrix {
  MatrixKey key;
  std::vector<MatrixSwitch> switches;
  std::vector<CellResult> cells;
  size_t num_cells = 0;  ///< of the whole product; more than `cells`: it did not end

  size_t count(CellVerdict verdict) const;
  /// Every cell ran or cannot run here, none failed, and at least one passed.
  bool passed() const;
};

/// {"complete", "passed", "key": {...}, "switches": [{"name", "values", "default"}], "counts":
/// {"passed", ...}, "cells": [{"settings", "verdict", "why", "levels": [{"level", "passed",
/// "why"}], "orthogonality": [{"name", "passed", "value"}], "figures": [{"name", "unit",
/// "samples"}], "seconds"}]}.
nlohmann::ordered_json to_json(const Matrix& matrix);

/// Reads the same, which is the `details` of a record; `where` is for the message of a fault. Every
/// field is checked.
Result<Matrix> parse_matrix(const nlohmann::json& json, const std::string& where);

/// docs/feature-matrix.md: the switches with all values that the program knows, the cells, and the
/// reasons. `known`: for each switch the values of the program's table of switches.
std::string matrix_markdown(const Matrix& matrix, std::span<const MatrixSwitch> known);

/// Why a text that matrix_markdown() wrote is stale: a feature that it has no line for, or whose
/// values or default are others now, and cells that are not the product of the values that it
/// names. `features`: the switches that should be in it, with the program's values. Empty: it is
/// not stale.
std::vector<std::string> stale_lines(const std::string& markdown,
                                     std::span<const MatrixSwitch> features);

/// `document`: as of the other reports, with the record.
Page matrix_page(const Matrix& matrix, const nlohmann::ordered_json& document);

}  // namespace moxie
