// How fast the CPU rows of every operation are on a layer of gpt-oss-20b: GB/s and GFLOP/s of the
// least work (Op<P>::work) on the timed cases of testing/op_testers.h. A case runs again and again,
// so that what fits into a cache comes from there; Read, Product, Experts and Attend read memory.
//
//   moxie_kernels_bench --benchmark_filter=^Op/             # Op/<op>/<row>/<case>
//   moxie_kernels_bench --benchmark_filter=^Op/.*/mxfp4_8_  # <case>: format, tokens, other sizes
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>

#include "core/device.h"
#include "kernels/testing/op_testers.h"

namespace moxie {
namespace {

class OpBench {
 public:
  template <typename Tester>
  void add(const Tester&) {
    testing::for_each_timed_row<Tester>([this](const auto& row, const auto& c) {
      const std::string op = Op<typename Tester::Params>::info.name;
      std::string sizes = c.name().substr(op.size() + 1);
      std::replace(sizes.begin(), sizes.end(), ' ', '_');
      benchmark::RegisterBenchmark(
          ("Op/" + op + "/" + row.name + "/" + sizes).c_str(),
          [this, &row, c](benchmark::State& state) { time_row(state, row, c); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    });
  }

 private:
  template <typename P, typename Case>
  void time_row(benchmark::State& state, const Row<P>& row, const Case& c) {
    if (case_ != c.name()) {
      built_.reset();
      built_ = std::make_shared<testing::Built<P>>(build(c));
      case_ = c.name();
    }
    auto& built = *static_cast<testing::Built<P>*>(built_.get());
    built.reset();
    P params = built.params;
    const Buffer workspace = device_->allocate(row.workspace(params)).value();
    params.launch = {.stream = stream_.get(),
                     .workspace = workspace.data(),
                     .workspace_bytes = workspace.bytes()};
    for (auto _ : state) row.run(params);
    const Work work = Op<P>::work(params);
    const double runs = 1e-9 * static_cast<double>(state.iterations());
    state.counters["GB/s"] = benchmark::Counter(work.bytes * runs, benchmark::Counter::kIsRate);
    state.counters["GFLOP/s"] = benchmark::Counter(work.flops * runs, benchmark::Counter::kIsRate);
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = device_->make_stream().value();
  // The case that ran last, with its memory for the rows that come next.
  std::string case_;
  std::shared_ptr<void> built_;
};

}  // namespace
}  // namespace moxie

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  moxie::OpBench ops;
  std::apply([&](const auto&... testers) { (ops.add(testers), ...); },
             moxie::testing::all_op_testers());
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
