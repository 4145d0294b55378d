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

// Calls visit(first, second) for all rows of both that this machine has and that pass `first_has`
// and `second_has`, the reference among them or not.
template <typename P, typename Q, typename FirstHas, typename SecondHas, typename Visit>
int for_each_pair(FirstHas first_has, SecondHas second_has, Visit visit) {
  int num_pairs = 0;
  for (const Row<P>& first : table_of<P>()) {
    if (first.device != DeviceKind::kCpu || (first.needs & cpu_features()) != first.needs) continue;
    if (!first_has(first)) continue;
    for (const Row<Q>& second : table_of<Q>()) {
      if (second.device != DeviceKind::kCpu || (second.needs & cpu_features()) != second.needs)
        continue;
      if (second_has(second)) visit(first, second), ++num_pairs;
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
  for (const QkvCase& base : cases) {
    for (const DType weights : {DType::kBF16, DType::kMXFP4}) {
      for (const int32_t window : {0, 128}) {
        QkvCase c = base;
        c.weights = weights;
        QkvAttend test(c, window);
        const int num_pairs = for_each_pair<QkvParams, AttendParams>(
            [&](const auto& row) {
              return row.joint.run_with != nullptr && row.refuses(test.qkv.params) == nullptr;
            },
            [&](const auto& row) {
              return row.joint.run_after != nullptr && row.refuses(test.attend) == nullptr;
            },
            [&](const auto& qkv_row, const auto& attend_row) {
              KernelChooser kernels = chooser_of(qkv_row, attend_row);
              const auto [alone, alone_cache] =
                  test.run([&](const QkvParams& qkv, const AttendParams& attend) {
                    qkv_row.run(qkv);
                    attend_row.run(attend);
                  });
              const auto [joined, joined_cache] =
                  test.run([&](const QkvParams& qkv, const AttendParams& attend) {
                    run_joined(kernels, qkv, attend);
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
  for (const int32_t tokens : {1, 2, 3, 5, 8}) {
    for (const DType weights : {DType::kBF16, DType::kMXFP4}) {
      for (const auto& [experts, router] : {std::pair(32, DType::kBF16), std::pair(21, DType::kF32),
                                            std::pair(128, DType::kQ8_0)}) {
        OutRoute test({.tokens = tokens, .rows = 2112, .cols = 160, .weights = weights},
                      {.tokens = tokens, .hidden = 2112, .experts = experts, .weights = router});
        const auto& reference = row_named<RouteParams>("route_reference");
        const int num_pairs = for_each_pair<OutParams, RouteParams>(
            [&](const auto& row) {
              return row.joint.run_with != nullptr && row.refuses(test.out.params) == nullptr;
            },
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
                    run_joined(kernels, out, route);
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

TEST(Joined, RowsThatCannotRunTogetherRunOneAfterTheOther) {
  QkvAttend test({.tokens = 2, .hidden = 96}, 0);
  for (const char* reference : {"qkv", "attend"}) {
    KernelChoice choice;
    ASSERT_TRUE(choice.add(std::string(reference) + "=reference").has_value());
    KernelChooser kernels(DeviceKind::kCpu, cpu_features(), choice);
    const auto [a, cache] = test.run([&](const QkvParams& qkv, const AttendParams& attend) {
      run_joined(kernels, qkv, attend);
    });
    for (const float value : a) EXPECT_FALSE(std::isnan(value));
    EXPECT_EQ(kernels.counts().size(), 2u);
  }
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
    for (int i = 0; i < 50; ++i) run_joined(kernels, qkv, attend);
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
