// Divides windows among kernels, and sums by kernel, step and category.
#include "lab/profile.h"

#include <algorithm>
#include <map>

#include "kernels/sample/sample.h"
#include "lab/bench_runner.h"
#include "lab/limits_beside.h"
#include "lab/stats.h"

namespace moxie {
namespace {

constexpr double kUsPerNs = 1e-3;

// Sums over several windows, by symbol.
struct Sums {
  WindowShares shares;
  int64_t window_ns = 0;

  void add(const WindowShares& more, int64_t ns) {
    shares.symbol_ns.resize(more.symbol_ns.size());
    shares.symbol_launches.resize(more.symbol_ns.size());
    for (size_t i = 0; i < more.symbol_ns.size(); ++i) {
      shares.symbol_ns[i] += more.symbol_ns[i];
      shares.symbol_launches[i] += more.symbol_launches[i];
    }
    shares.gap_ns += more.gap_ns;
    shares.longest_gap_ns = std::max(shares.longest_gap_ns, more.longest_gap_ns);
    shares.num_gaps += more.num_gaps;
    shares.overlap_ns += more.overlap_ns;
    window_ns += ns;
  }
};

// Compares the time of a unit with the limit of its work.
void hold_against_limit(LimitedPart* part, const MachineLimits& limits) {
  const double read_us =
      limits.read_gb_s > 0 ? part->work.bytes / (limits.read_gb_s * 1e9) * 1e6 : 0;
  const double limit_us = std::max(read_us, part->products_us);
  if (limit_us == 0 || part->us == 0) return;
  part->share_of_limit = limit_us / part->us;
  part->is_by_flops = part->products_us > read_us;
  part->above_limit_us = std::max(0.0, part->us - limit_us);
}

// The least work of a unit, including drawing.
WorkByOp work_of_unit(const Engine& engine, const BenchTest& test) {
  WorkByOp works = least_work(engine, test);
  if (test.n_gen > 0) {
    const SampleParams draw{.num_rows = test.streams, .vocab = engine.config().vocab};
    works.scale(1.0 / test.n_gen);
    works[Op<SampleParams>::info] += Op<SampleParams>::work(draw);
  }
  return works;
}

template <typename Part>
void longest_first(std::vector<Part>& parts) {
  std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.us != b.us ? a.us > b.us : a.name < b.name;
  });
}

// `num_units`: in all windows of the sums.
void add_up(const Sums& sums, const std::vector<ActivityLog::Symbol>& symbols, double num_units,
            const WorkByOp& works, PhaseProfile* phase) {
  const auto us = [&](int64_t ns) { return static_cast<double>(ns) * kUsPerNs / num_units; };
  const auto share = [&](int64_t ns) {
    return sums.window_ns > 0 ? static_cast<double>(ns) / static_cast<double>(sums.window_ns) : 0;
  };
  phase->window_us = us(sums.window_ns);
  phase->gaps = static_cast<double>(sums.shares.num_gaps) / num_units;
  phase->longest_gap_us = static_cast<double>(sums.shares.longest_gap_ns) * kUsPerNs;
  phase->overlap_us = us(sums.shares.overlap_ns);
  for (int c = 0; c < kNumCategories; ++c) {
    phase->categories.push_back({{.name = category_name(static_cast<Category>(c))}});
  }
  std::map<std::string, size_t> step_idx;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (sums.shares.symbol_launches[i] == 0 && sums.shares.symbol_ns[i] == 0) continue;
    KernelPart kernel;
    kernel.symbol = symbols[i].name;
    kernel.name = short_kernel_name(kernel.symbol);
    kernel.place = place_of(kernel.symbol, symbols[i].op);
    kernel.us = us(sums.shares.symbol_ns[i]);
    kernel.launches = static_cast<double>(sums.shares.symbol_launches[i]) / num_units;
    kernel.share_of_time = share(sums.shares.symbol_ns[i]);
    const auto [step, is_new] = step_idx.try_emplace(kernel.place.step, phase->steps.size());
    if (is_new) phase->steps.push_back({{.name = kernel.place.step}});
    for (TimePart* sum :
         {static_cast<TimePart*>(&phase->steps[step->second]),
          static_cast<TimePart*>(&phase->categories[static_cast<size_t>(kernel.place.category)])}) {
      sum->us += kernel.us;
      sum->launches += kernel.launches;
      sum->share_of_time += kernel.share_of_time;
    }
    phase->kernels.push_back(std::move(kernel));
  }
  LimitedPart& gap = phase->categories[static_cast<size_t>(Category::kGap)];
  gap.us = us(sums.shares.gap_ns);
  gap.share_of_time = share(sums.shares.gap_ns);
  for (const auto& [op, work] : works) {
    const Peak& peak = peak_of_row(phase->limits, row_of(phase->rows, *op));
    const double products_us = peak.rate > 0 ? work.flops / (peak.rate * 1e9) * 1e6 : 0;
    LimitedPart& category = phase->categories[static_cast<size_t>(category_of(*op))];
    category.work += work;
    category.products_us += products_us;
    const auto step = step_idx.find(op->name);
    if (step == step_idx.end()) continue;
    phase->steps[step->second].work = work;
    phase->steps[step->second].products_us = products_us;
  }
  for (std::vector<LimitedPart>* parts : {&phase->categories, &phase->steps})
    for (LimitedPart& part : *parts) hold_against_limit(&part, phase->limits);
  longest_first(phase->steps);
  longest_first(phase->kernels);
}

Status measure_plain(Engine& engine, int32_t repetitions, PhaseProfile* phase) {
  auto speculation = make_speculation(engine);
  if (!speculation) return fail(std::move(speculation.error()));
  BenchRunner runner(engine, phase->test, speculation->drafting);
  if (auto status = runner.fill_depth(); !status) return status;
  if (auto warm = runner.repeat(); !warm) return fail(std::move(warm.error()));
  for (int32_t r = 0; r < repetitions; ++r) {
    const auto window = runner.repeat();
    if (!window) return fail(window.error());
    phase->plain_tok_s.push_back(tokens_of(phase->test) / window->seconds());
  }
  return {};
}

void add_drafts(const DraftShares& shares, int64_t window_ns, double num_units,
                PhaseProfile* phase) {
  const auto part = [&](const char* name, int64_t ns, int64_t launches) {
    phase->by_drafts.push_back(
        {.name = name,
         .us = static_cast<double>(ns) * kUsPerNs / num_units,
         .launches = static_cast<double>(launches) / num_units,
         .share_of_time = static_cast<double>(ns) / static_cast<double>(window_ns)});
  };
  part("draft", shares.draft_ns, shares.num_proposals);
  part("verify", shares.verify_ns, shares.num_verify);
  part("plain decode", shares.plain_ns, shares.num_plain);
  part("between launches", shares.other_ns, 0);
}

Status measure_profiled(Engine& engine, int32_t repetitions, const MachineLimits& limits,
                        ActivityRecorder& recorder, PhaseProfile* phase) {
  // Before the warm-up, which then also pays for the recorder's first buffers.
  if (auto status = recorder.start(); !status) return status;
  auto speculation = make_speculation(engine);
  if (!speculation) return fail(std::move(speculation.error()));
  LaunchMarks marks;
  BenchRunner runner(engine, phase->test, speculation->drafting, &marks);
  if (auto status = runner.fill_depth(); !status) return status;
  const auto warm = runner.repeat();
  if (!warm) return fail(warm.error());
  LimitsBeside beside(engine.device(), limits);
  if (auto first = beside.of(warm->seconds()); !first) return fail(std::move(first.error()));
  engine.kernels().reset_counts();
  std::vector<BenchRunner::Window> windows;
  std::vector<MachineLimits> of_windows;
  for (int32_t r = 0; r < repetitions; ++r) {
    const auto window = runner.repeat();
    if (!window) return fail(window.error());
    phase->profiled_tok_s.push_back(tokens_of(phase->test) / window->seconds());
    windows.push_back(*window);
    auto limits_now = beside.of(window->seconds());
    if (!limits_now) return fail(std::move(limits_now.error()));
    of_windows.push_back(std::move(*limits_now));
  }
  phase->rows = engine.kernels().counts();
  auto log = recorder.stop();
  if (!log) return fail(std::move(log.error()));
  Sums sums;
  DraftShares by_drafts;
  for (const auto& window : windows) {
    const int64_t begin = clock_ns(window.start), end = clock_ns(window.end);
    sums.add(share_window(log->activities, log->symbols.size(), begin, end), end - begin);
    by_drafts.add(share_by_drafts(marks, *log, begin, end));
  }
  if (sums.shares.gap_ns == sums.window_ns) {
    return fail("nothing was seen to run", "profile of " + phase->test.name(),
                "on a GPU: is the driver older than libcupti?");
  }
  phase->limits = mean_of(of_windows);
  const double units_a_window = phase->is_decode() ? phase->test.n_gen : 1;
  add_up(sums, log->symbols, units_a_window * repetitions, work_of_unit(engine, phase->test),
         phase);
  if (!marks.empty()) add_drafts(by_drafts, sums.window_ns, units_a_window * repetitions, phase);
  phase->gates = gates_of(*phase, recorder.sees_kernels());
  phase->last_begin_ns = clock_ns(windows.back().start);
  phase->last_end_ns = clock_ns(windows.back().end);
  std::erase_if(log->activities, [&](const Activity& a) {
    return a.start_ns < phase->last_begin_ns || a.start_ns >= phase->last_end_ns;
  });
  phase->last = std::move(*log);
  return {};
}

}  // namespace

WindowShares share_window(std::span<const Activity> activities, size_t num_symbols,
                          int64_t begin_ns, int64_t end_ns) {
  WindowShares shares;
  shares.symbol_ns.resize(num_symbols);
  shares.symbol_launches.resize(num_symbols);
  std::vector<const Activity*> in_order;
  for (const Activity& a : activities) {
    if (a.end_ns > begin_ns && a.start_ns < end_ns) in_order.push_back(&a);
  }
  // Of two that started at the same time, the first in the list comes first.
  std::sort(in_order.begin(), in_order.end(), [](const Activity* a, const Activity* b) {
    return a->start_ns != b->start_ns ? a->start_ns < b->start_ns : a < b;
  });
  const auto gap_until = [&](int64_t from, int64_t to) {
    if (to <= from) return;
    shares.gap_ns += to - from;
    shares.longest_gap_ns = std::max(shares.longest_gap_ns, to - from);
    ++shares.num_gaps;
  };
  // Time before `covered` is assigned to a symbol or a gap; overlaps before `twice` are counted.
  int64_t covered = begin_ns, twice = begin_ns;
  for (const Activity* one : in_order) {
    const Activity& a = *one;
    const int64_t start = std::max(a.start_ns, begin_ns), end = std::min(a.end_ns, end_ns);
    const auto symbol = static_cast<size_t>(a.symbol);
    if (a.start_ns >= begin_ns) ++shares.symbol_launches[symbol];
    gap_until(covered, start);
    const int64_t shared_until = std::min(covered, end);
    if (shared_until > std::max(start, twice)) {
      shares.overlap_ns += shared_until - std::max(start, twice);
      twice = shared_until;
    }
    if (end > covered) {
      shares.symbol_ns[symbol] += end - std::max(start, covered);
      covered = end;
    }
  }
  gap_until(covered, end_ns);
  return shares;
}

double PhaseProfile::slow_down() const {
  const double profiled = median(profiled_tok_s);
  return profiled > 0 ? median(plain_tok_s) / profiled : 0;
}

Result<std::vector<PhaseProfile>> run_profile(Engine& engine, const std::vector<BenchTest>& tests,
                                              int32_t repetitions, const MachineLimits& limits,
                                              ActivityRecorder& recorder) {
  std::vector<PhaseProfile> phases;
  for (const BenchTest& test : tests) {
    phases.push_back({.test = test});
    if (auto status = measure_plain(engine, repetitions, &phases.back()); !status) {
      return fail(std::move(status.error()));
    }
  }
  // Only after the plain runs: once started, a recorder slows later runs too. It sees only graphs
  // recorded after its start.
  if (engine.num_ranks() > 1 && engine.device().kind() == DeviceKind::kCuda)
    recorder.watch_only(engine.stream());
  if (auto status = recorder.start(); !status) return fail(std::move(status.error()));
  engine.decode_loop().forget_graphs();
  if (engine.graphs() != nullptr) engine.graphs()->forget();
  for (PhaseProfile& phase : phases) {
    auto status = measure_profiled(engine, repetitions, limits, recorder, &phase);
    if (!status) return fail(std::move(status.error()));
  }
  return phases;
}

}  // namespace moxie
