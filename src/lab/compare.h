// Two records side by side: the difference of every series that both have, with a verdict, and
// what was not alike when they were made.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "lab/record.h"
#include "lab/verdict.h"

namespace moxie {

struct SeriesDifference {
  std::string name, unit;
  Better better = Better::kHigher;
  bool is_exact = false;
  double median_a = 0, median_b = 0;  ///< means, if exact or answers
  Difference difference;
  bool are_answers() const { return unit == kAnswerUnit; }
  bool is_timed() const { return !is_exact && !are_answers(); }
  /// verdict_name(); of an exact series and of answers "better" and "worse" instead of "faster" and
  /// "slower".
  std::string verdict() const;
};

/// A condition that was not the same.
struct ChangedCondition {
  std::string what, a, b;
};

struct Comparison {
  std::vector<SeriesDifference> series;     ///< in the order of the first record
  std::vector<std::string> only_a, only_b;  ///< names that one record lacks
  std::vector<ChangedCondition> changed;
  bool has_regression() const;
};

/// Fails if the records cannot be compared: other kinds, units, directions or workloads under one
/// name, no series in both, or one that says of itself that it is invalid. The names stand in
/// faults.
Result<Comparison> compare_records(const Record& a, const Record& b, const std::string& name_a,
                                   const std::string& name_b);

/// One series of two records: `of_a` is of `a`, and `of_b` of `b`, with one unit and workload.
SeriesDifference difference_of(const Record& a, const Record& b, const Series& of_a,
                               const Series& of_b);

/// The two sides of a record of `bench --vs`, whose samples were taken in turn, judged in pairs.
/// Fails if the record says of itself that it is invalid, or has no sides. The name stands in
/// faults.
Result<Comparison> compare_sides(const Record& record, const std::string& name);
/// The switches of the second side of a record of `bench --vs`; empty: another record.
std::string switches_of_second(const Record& record);
/// The series that holds the second side's samples of `name`.
std::string name_of_second(const std::string& name, const std::string& switches);

/// What differs of machine, build, model, switches and kernels.
std::vector<ChangedCondition> changed_conditions(const Record& a, const Record& b);

/// {"difference", "low", "high", "p", "units", "verdict", "because", "regression"}.
nlohmann::ordered_json to_json(const Difference& difference);
/// {"series": [...], "only_a", "only_b", "changed", "regression"}.
nlohmann::ordered_json to_json(const Comparison& comparison);

}  // namespace moxie
