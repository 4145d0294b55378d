// What the reports have in common.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "lab/machine.h"
#include "lab/report_charts.h"
#include "lab/report_page.h"

namespace moxie {

/// A page with a title, and a line on the model and the machine.
Page begin_page(const char* command, const MachineLimits& limits,
                const nlohmann::ordered_json& document);
/// The limits of a machine, without points.
Roofline roofline_of(const MachineLimits& limits);
/// The picture of raw samples and the table of their figures.
void add_samples(Page* page, const std::vector<Strip>& strips);
/// The conditions and the document itself.
void end_page(Page* page, const nlohmann::ordered_json& document);

/// "54.1%"; "-" if empty.
std::string share_text(std::optional<double> share);

}  // namespace moxie
