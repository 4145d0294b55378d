// Copies of the tables whose functions look for a planted fault.
#include "kernels/testing/planted_rows.h"

#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/experts/experts.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/route/route.h"
#include "kernels/sample/sample.h"
#include "kernels/unembed/unembed.h"

namespace moxie::testing {
namespace {

constexpr size_t kMostRows = 64;

template <typename P>
using Run = void (*)(const P&);

template <typename P>
std::array<Run<P>, kMostRows> own_runs{};

template <typename P, size_t I>
void run_or_fault(const P& params) {
  if (!Planted<P>::fault) return own_runs<P>[I](params);
  Planted<P>::fault(own_runs<P>[I], params);
}

template <typename P, size_t... I>
constexpr std::array<Run<P>, kMostRows> planted_runs(std::index_sequence<I...>) {
  return {run_or_fault<P, I>...};
}

template <typename P>
std::vector<Row<P>> planted_table(std::span<const Row<P>> real) {
  CHECK(real.size() <= kMostRows);
  constexpr auto kRuns = planted_runs<P>(std::make_index_sequence<kMostRows>());
  std::vector<Row<P>> rows(real.begin(), real.end());
  for (size_t i = 0; i < rows.size(); ++i) {
    own_runs<P>[i] = rows[i].run;
    Planted<P>::own_runs[rows[i].name] = rows[i].run;
    if (!std::string_view(rows[i].name).ends_with("_reference")) rows[i].run = kRuns[i];
  }
  return rows;
}

}  // namespace

// The real table of an operation, and the one that the linker puts before it.
#define PLANT(P, symbol)                                                       \
  std::span<const Row<P>> real_rows_of_##P() asm("__real_" symbol);            \
  std::span<const Row<P>> planted_rows_of_##P() asm("__wrap_" symbol);         \
  std::span<const Row<P>> planted_rows_of_##P() {                              \
    static const std::vector<Row<P>> rows = planted_table(real_rows_of_##P()); \
    return rows;                                                               \
  }
PLANT(EmbedParams, "_ZN5moxie2OpINS_11EmbedParamsEE4rowsEv")
PLANT(QkvParams, "_ZN5moxie2OpINS_9QkvParamsEE4rowsEv")
PLANT(AttendParams, "_ZN5moxie2OpINS_12AttendParamsEE4rowsEv")
PLANT(OutParams, "_ZN5moxie2OpINS_9OutParamsEE4rowsEv")
PLANT(RouteParams, "_ZN5moxie2OpINS_11RouteParamsEE4rowsEv")
PLANT(ExpertsParams, "_ZN5moxie2OpINS_13ExpertsParamsEE4rowsEv")
PLANT(UnembedParams, "_ZN5moxie2OpINS_13UnembedParamsEE4rowsEv")
PLANT(SampleParams, "_ZN5moxie2OpINS_12SampleParamsEE4rowsEv")

void clear_planted() {
  Planted<EmbedParams>::fault = nullptr;
  Planted<QkvParams>::fault = nullptr;
  Planted<AttendParams>::fault = nullptr;
  Planted<OutParams>::fault = nullptr;
  Planted<RouteParams>::fault = nullptr;
  Planted<ExpertsParams>::fault = nullptr;
  Planted<UnembedParams>::fault = nullptr;
  Planted<SampleParams>::fault = nullptr;
}

}  // namespace moxie::testing
