// Every pair of rows that can meet at a border of a pass, once, against the reference chain.
//
// A pair is a row, a row that can stand directly behind it, and the forms in which all is handed
// over between them. Pairs come from the tables (rows_for_plan, can_meet of model/pass_plan.h), so
// that a new row is tested once it is listed. For each pair a small model runs a whole pass in
// which both rows stand, and in all other places the rows that round the least.
#pragma once

#include "core/device.h"
#include "kernels/features.h"

namespace moxie::testing {

/// Tests the pairs of rows for `device`, which has these features, against the reference rows on
/// the CPU; prints how many met. Fails for a pair that is off or never met, and for a row that this
/// device can run and that stands in no pair.
void test_row_pairs(Device& device, Features features);

}  // namespace moxie::testing
