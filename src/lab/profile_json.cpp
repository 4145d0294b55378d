// A profile as JSON, and as a trace.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "core/whole_file.h"
#include "lab/profile.h"
#include "lab/stats.h"

namespace moxie {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const TimePart& part) {
  return {{"name", part.name},
          {"us", part.us},
          {"share_of_time", part.share_of_time},
          {"launches", part.launches}};
}

Json to_json(const LimitedPart& part) {
  Json json = to_json(static_cast<const TimePart&>(part));
  json["bytes"] = part.work.bytes;
  json["flops"] = part.work.flops;
  json["share_of_limit"] = part.share_of_limit ? Json(*part.share_of_limit) : Json();
  json["limited_by"] = part.share_of_limit ? Json(part.is_by_flops ? "flops" : "bytes") : Json();
  json["above_limit_us"] = part.above_limit_us;
  return json;
}

Json to_json(const KernelPart& part) {
  Json json = to_json(static_cast<const TimePart&>(part));
  json["step"] = part.place.step;
  json["category"] = category_name(part.place.category);
  json["symbol"] = part.symbol;
  return json;
}

Json to_json(const Gate& gate) {
  return {{"name", gate.name},
          {"question", gate.question},
          {"threshold", gate.threshold},
          {"share_of_time", gate.share ? Json(*gate.share) : Json()},
          {"answer", !gate.share ? Json() : Json(gate.is_over() ? "yes" : "no")},
          {"passed", gate.share ? Json(gate.passed()) : Json()},
          {"next", gate.next}};
}

template <typename Part>
Json list_of(const std::vector<Part>& parts) {
  Json list = Json::array();
  for (const Part& part : parts) list.push_back(to_json(part));
  return list;
}

Json speed(const std::vector<double>& samples) {
  return {{"median", median(samples)}, {"samples", samples}};
}

}  // namespace

nlohmann::ordered_json to_json(const PhaseProfile& phase) {
  const BenchTest& test = phase.test;
  Json json = {{"name", test.name()},
               {"phase", phase.is_decode() ? "decode" : "prefill"},
               {"n_prompt", test.n_prompt},
               {"n_gen", test.n_gen},
               {"depth", test.depth},
               {"streams", test.streams},
               {"unit", phase.unit()},
               {"window_us", phase.window_us},
               {"tok_s",
                {{"without_profiling", speed(phase.plain_tok_s)},
                 {"with_profiling", speed(phase.profiled_tok_s)},
                 {"slow_down", phase.slow_down()}}},
               {"read_gb_s", phase.limits.read_gb_s},
               {"categories", list_of(phase.categories)},
               {"steps", list_of(phase.steps)},
               {"kernels", list_of(phase.kernels)},
               {"gaps", {{"count", phase.gaps}, {"longest_us", phase.longest_gap_us}}},
               {"overlap_us", phase.overlap_us},
               {"gates", list_of(phase.gates)}};
  if (!phase.by_drafts.empty()) json["by_drafts"] = list_of(phase.by_drafts);
  return json;
}

Status write_trace(std::span<const PhaseProfile> phases, const std::string& path) {
  WholeFile whole(path, "trace");
  std::ostream& file = whole.out();
  file << "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
  const char* separator = "\n";
  const auto write = [&](const Json& event) {
    file << separator << event.dump();
    separator = ",\n";
  };
  for (size_t p = 0; p < phases.size(); ++p) {
    const PhaseProfile& phase = phases[p];
    write({{"name", "process_name"},
           {"ph", "M"},
           {"pid", p},
           {"args", {{"name", phase.test.name() + (phase.is_decode() ? " decode" : " prefill")}}}});
    std::vector<KernelPlace> places;
    std::vector<std::string> names;
    for (const ActivityLog::Symbol& symbol : phase.last.symbols) {
      places.push_back(place_of(symbol.name, symbol.op));
      names.push_back(short_kernel_name(symbol.name));
    }
    for (const Activity& a : phase.last.activities) {
      const auto i = static_cast<size_t>(a.symbol);
      write({{"name", names[i]},
             {"cat", category_name(places[i].category)},
             {"ph", "X"},
             {"ts", static_cast<double>(a.start_ns - phase.last_begin_ns) * 1e-3},
             {"dur", static_cast<double>(a.end_ns - a.start_ns) * 1e-3},
             {"pid", p},
             {"tid", a.stream},
             {"args", {{"step", places[i].step}}}});
    }
  }
  file << "\n]}\n";
  return whole.close();
}

}  // namespace moxie
