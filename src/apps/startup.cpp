// Prints how long each stage of a start took.
#include "apps/startup.h"

#include <fmt/format.h>

#include <cstdio>

namespace moxie {

nlohmann::ordered_json startup_json(const StartupTimeline& t) {
  return {{"open_s", t.open_s},           {"plan_s", t.plan_s},
          {"read_s", t.read_s},           {"copy_s", t.copy_s},
          {"repack_s", t.repack_s},       {"weights_s", t.weights_s},
          {"self_test_s", t.self_test_s}, {"self_test_wait_s", t.self_test_wait_s},
          {"graphs_s", t.graphs_s},       {"ready_s", t.ready_s},
          {"read_bytes", t.read_bytes}};
}

void print_startup(const StartupTimeline& t) {
  fmt::print(stderr,
             "start: open {:.3f} s, plan {:.3f}, read {:.3f}, copy {:.3f}, repack {:.3f} "
             "(weights {:.3f}), self-test {:.3f} (waited {:.3f}), graphs {:.3f}, ready {:.3f}; "
             "{:.2f} GB read\n",
             t.open_s, t.plan_s, t.read_s, t.copy_s, t.repack_s, t.weights_s, t.self_test_s,
             t.self_test_wait_s, t.graphs_s, t.ready_s, static_cast<double>(t.read_bytes) * 1e-9);
}

}  // namespace moxie
