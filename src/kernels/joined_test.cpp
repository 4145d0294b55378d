// Steps that run together against the same steps one after another.
#include "kernels/joined.h"

#include <cstring>

#include "kernels/testing/row_tester.h"

namespace moxie::testing {
namespace {

// Threads, and scratch that nothing else has written.
struct Workplace {
  TestMachine machine{4};
  std::vector<std::byte> workspace = std::vector<std::byte>(1 << 24);

  Launch launch() {
    std::fill(workspace.begin(), workspace.end(), std::byte{0xFF});
    const auto at = reinterpret_cast<uintptr_t>(workspace.data());
    return {.stream = machine.stream.get(),
            .workspace = workspace.data() + round_up<uintptr_t>(at, 256) - at,
            .workspace_bytes = workspace.size() - 256};
  }
};

// The chooser that takes these rows for the first and the second step.
template <typename P, typename Q>
KernelChooser chooser_of(const Row<P>& first, const Row<Q>& second) {
  KernelChoice choice;
  for (const auto& [step, name] :
       {std::pair(StepOf<P>::value, first.name), std::pair(StepOf<Q>::value, second.name)}) {
    const Status added = choice.add(std::string(step_name(step)) + "=" + name);
    CHECK(added.has_value(), name);
  }
  return KernelChooser(DeviceKind::kCpu, cpu_features(), choice);
}

// Calls visit(first, second) for all rows of both that this machine has, that pass `first_joins`
// and `second_joins` and that take the params. `runs` counts them; returns the number of pairs.
template <typename P, typename Q, typename FirstJoins, typename SecondJoins, typename Visit>
int for_each_pair(const P& p, const Q& q, RowRuns& runs, FirstJoins first_joins,
                  SecondJoins second_joins, Visit visit) {
  const auto rows_of = [&](const auto& params, const auto& joins) {
    using Params = std::decay_t<decltype(params)>;
    std::vector<const Row<Params>*> rows;
    for (const Row<Params>& row : table_of<Params>()) {
      if (row.device != DeviceKind::kCpu || !joins(row)) continue;
      if (const Features missing = row.needs & ~cpu_features(); missing != 0) {
        runs.cannot_run(row.name, missing);
      } else if (const char* why = row.refuses(params)) {
        runs.refused(row.name, why);
      } else {
        rows.push_back(&row);
      }
    }
    return rows;
  };
  int num_pairs = 0;
  const auto seconds = rows_of(q, second_joins);
  for (const Row<P>* first : rows_of(p, first_joins)) {
    for (const Row<Q>* second : seconds) {
      runs.ran(first->name), runs.ran(second->name);
      visit(*first, *second), ++num_pairs;
    }
  }
  return num_pairs;
}

// ---- qkv + attend -------------------------------------------------------------------------------

struct QkvAttend {
  Built<QkvParams> qkv;
  AttendParams attend;
  std::vector<float> a;
  Workplace workplace;

  QkvAttend(const QkvCase& c, int32_t window) : qkv(build(c)) {
    const QkvParams& p = qkv.params;
    a.resize(static_cast<size_t>(c.tokens) * c.heads * c.head_dim);
    attend = {.batch = p.batch,
              .num_heads = p.num_heads,
              .num_kv_heads = p.num_kv_heads,
              .head_dim = p.head_dim,
              .window = window,
              .q = p.q,
              .kv = p.kv,
              .a = a.data()};
  }

  // What is in `a` and in the cache after a run that starts from an empty cache.
  template <typename Run>
  std::pair<std::vector<float>, std::vector<std::vector<std::byte>>> run(Run run) {
    qkv.reset();
    std::fill(a.begin(), a.end(), NAN);
    qkv.params.launch = attend.launch = workplace.launch();
    run(qkv.params, attend);
    return {a, qkv.bytes};
  }
};

TEST(Joined, QkvWithAttendIsTheSameToTheBit) {
  const QkvCase cases[] = {
      {.tokens = 1, .hidden = 96},  // too little for more than one thread
      {.tokens = 1, .hidden = 1024, .heads = 8, .kv_heads = 2, .head_dim = 64},
      {.tokens = 5, .hidden = 512, .heads = 8, .kv_heads = 4, .head_dim = 64},
      {.tokens = 1,
       .hidden = 512,
       .heads = 8,
       .kv_heads = 2,
       .head_dim = 64,
       .first_position = 900},
      {.tokens = 3,
       .hidden = 512,
       .heads = 8,
       .kv_heads = 2,
       .head_dim = 64,
       .first_position = 700},
  };
  RowRuns runs;
  for (const QkvCase& base : cases) {
    for (const DType weights : {DType::kBF16, DType::kMXFP4}) {
      for (const int32_t window : {0, 128}) {
        QkvCase c = base;
        c.weights = weights;
        QkvAttend test(c, window);
        const int num_pairs = for_each_pair(
            test.qkv.params, test.attend, runs,
            [](const auto& row) { return row.joint.run_with != nullptr; },
            [](const auto& row) { return row.joint.run_after != nullptr; },
            [&](const auto& qkv_row, const auto& attend_row) {
              KernelChooser kernels = chooser_of(qkv_row, attend_row);
              const auto [alone, alone_cache] =
                  test.run([&](const QkvParams& qkv, const AttendParams& attend) {
                    qkv_row.run(qkv);
                    attend_row.run(attend);
                  });
              const auto [joined, joined_cache] =
                  test.run([&](const QkvParams& qkv, const AttendParams& attend) {
                    run_joined(kernels, qkv_row, qkv, attend_row, attend);
                  });
              EXPECT_EQ(std::memcmp(alone.data(), joined.data(), alone.size() * 4), 0)
                  << qkv_row.name << " " << attend_row.name << " " << c.name() << " window "
                  << window;
              EXPECT_EQ(alone_cache, joined_cache) << qkv_row.name;
              EXPECT_FALSE(std::isnan(joined[0]));
            });
        EXPECT_GT(num_pairs, 0);
      }
    }
  }
}

// ---- out + route --------------------------------------------------------------------------------

struct OutRoute {
  Built<OutParams> out;
  Built<RouteParams> route;
  std::vector<float> parts;
  Workplace workplace;

  OutRoute(const OutCase& out_case, const RouteCase& route_case)
      : out(build(out_case)), route(build(route_case)) {
    CHECK(out_case.rows == route_case.hidden && out_case.tokens == route_case.tokens);
    route.params.x = out.params.x;
    parts.resize(static_cast<size_t>(
        route_parts_size(route_case.tokens, route_case.hidden, route_case.experts)));
  }

  template <typename Run>
  std::pair<std::vector<Output>, std::vector<Output>> run(Run run) {
    out.reset();
    route.reset();
    std::fill(parts.begin(), parts.end(), NAN);
    out.params.launch = route.params.launch = workplace.launch();
    run(out.params, route.params);
    return {out.outputs(), route.outputs()};
  }
};

TEST(Joined, OutWithRouteAgreesWithTheReference) {
  RowRuns runs;
  for (const int32_t tokens : {1, 2, 3, 5, 8}) {
    for (const DType weights : {DType::kBF16, DType::kMXFP4}) {
      for (const auto& [experts, router] : {std::pair(32, DType::kBF16), std::pair(21, DType::kF32),
                                            std::pair(128, DType::kQ8_0)}) {
        OutRoute test({.tokens = tokens, .rows = 2112, .cols = 160, .weights = weights},
                      {.tokens = tokens, .hidden = 2112, .experts = experts, .weights = router});
        const auto& reference = row_named<RouteParams>("route_reference");
        const int num_pairs = for_each_pair(
            test.out.params, test.route.params, runs,
            [](const auto& row) { return row.joint.run_with != nullptr; },
            [](const auto& row) { return row.joint.part != nullptr; },
            [&](const auto& out_row, const auto& route_row) {
              KernelChooser kernels = chooser_of(out_row, route_row);
              const auto [x, choice] =
                  test.run([&](const OutParams& out, const RouteParams& route) {
                    out_row.run(out);
                    reference.run(route);
                  });
              const auto [joined_x, joined_choice] =
                  test.run([&](const OutParams& out, RouteParams route) {
                    route.parts = test.parts.data();
                    run_joined(kernels, out_row, out, route_row, route);
                  });
              const std::string what = std::string(out_row.name) + " " + route_row.name + " of " +
                                       std::to_string(tokens) + " tokens";
              EXPECT_EQ(x[0].values, joined_x[0].values) << what;
              expect_near(choice, joined_choice, what);
              EXPECT_FALSE(std::isnan(test.parts[0])) << what << " did not run together";
            });
        EXPECT_GT(num_pairs, 0);
      }
    }
  }
}

// ---- What is counted ----------------------------------------------------------------------------

TEST(Joined, ReferencesAndManyTokensCannot) {
  const auto& qkv = row_named<QkvParams>("qkv_any_f32_gemv_portable");
  const auto& attend = row_named<AttendParams>("attend_any_f32_flash_portable");
  EXPECT_TRUE(can_join(qkv, attend, kMostJoinedTokens));
  EXPECT_FALSE(can_join(qkv, attend, kMostJoinedTokens + 1));
  EXPECT_FALSE(can_join(row_named<QkvParams>("qkv_reference"), attend, 1));
  EXPECT_FALSE(can_join(qkv, row_named<AttendParams>("attend_reference"), 1));
  const auto& out = row_named<OutParams>("out_any_f32_gemv_portable");
  const auto& route = row_named<RouteParams>("route_any_f32_gemv_portable");
  EXPECT_TRUE(can_join(out, route, 1, kLeastJoinedHidden));
  EXPECT_FALSE(can_join(out, route, 1, kLeastJoinedHidden - kRoutePartColumns));
  EXPECT_FALSE(can_join(out, row_named<RouteParams>("route_reference"), 1, kLeastJoinedHidden));
}

TEST(Joined, BothAreCountedAndTheirTimesDoNotOverlap) {
  QkvAttend test({.tokens = 1, .hidden = 2048, .heads = 16, .kv_heads = 2, .head_dim = 64}, 0);
  KernelChooser kernels(DeviceKind::kCpu, cpu_features(), KernelChoice());
  std::vector<std::pair<Clock::time_point, Clock::time_point>> times;
  std::vector<StepKind> steps;
  kernels.set_on_run([&](StepKind step, const char*, auto start, auto end) {
    steps.push_back(step);
    times.emplace_back(start, end);
  });
  test.run([&](const QkvParams& qkv, const AttendParams& attend) {
    const auto& qkv_row = kernels.row_for(qkv);
    const auto& attend_row = kernels.row_for(attend);
    for (int i = 0; i < 50; ++i) run_joined(kernels, qkv_row, qkv, attend_row, attend);
  });
  ASSERT_EQ(steps.size(), 100u);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i], i % 2 == 0 ? StepKind::kQkv : StepKind::kAttend);
    EXPECT_LT(times[i].first, times[i].second);
    if (i > 0) {
      EXPECT_LE(times[i - 1].second, times[i].first);
    }
  }
  const auto counts = kernels.counts();
  ASSERT_EQ(counts.size(), 2u);
  for (const auto& count : counts) EXPECT_EQ(count.launches, 50u);
}

}  // namespace
}  // namespace moxie::testing
