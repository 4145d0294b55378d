#include "lab/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "engine/tuning.h"
#include "kernels/gemm/tile_model.h"
#include "lab/row_times.h"

namespace moxie {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Of a row's predicted time, where plans are made that hold rows not timed yet.
constexpr double kPull = 1e-6;
constexpr int kMostPlans = 32;

bool is_same(const PlannedRow& a, const PlannedRow& b) {
  return a.layer == b.layer && a.entry == b.entry && a.forms == b.forms &&
         a.tile_columns == b.tile_columns;
}

bool does(const PlannedRow& row, const std::string& step) {
  return std::any_of(row.row.ops.begin(), row.row.ops.end(),
                     [&](const OpInfo* op) { return op->name == step; });
}

bool shares_step(const PlannedRow& a, const PlannedRow& b) {
  return std::any_of(a.row.ops.begin(), a.row.ops.end(), [&](const OpInfo* op) {
    return std::find(b.row.ops.begin(), b.row.ops.end(), op) != b.row.ops.end();
  });
}

// The rows of a plan, each once: before the layers, of each kind of layers, behind them.
std::vector<const PlannedRow*> rows_of(const PassPlan& plan) {
  std::vector<const PlannedRow*> rows = {&plan.embed};
  for (const auto& chain : plan.chains)
    for (const PlannedRow& row : chain) rows.push_back(&row);
  rows.push_back(&plan.unembed);
  for (const PlannedRow& row : plan.behind) rows.push_back(&row);
  return rows;
}

// The rows of a launch in the order in which they run.
std::vector<const PlannedRow*> rows_in_order(const PassPlan& plan) {
  std::vector<const PlannedRow*> rows = {&plan.embed};
  for (size_t l = 0; l < plan.chain_of_layer.size(); ++l)
    for (const PlannedRow& row : plan.layer(l)) rows.push_back(&row);
  rows.push_back(&plan.unembed);
  for (const PlannedRow& row : plan.behind) rows.push_back(&row);
  return rows;
}

// Runs one launch again and again on sequences of the same depth.
class Launcher {
 public:
  Launcher(Engine& engine, const TuneLaunch& launch, int32_t depth)
      : engine_(engine), launch_(launch), depth_(depth) {}
  ~Launcher() {
    for (const SeqId seq : seqs_) engine_.kv().free_sequence(seq);
  }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  Status fill() {
    const std::vector<int32_t> tokens = random_tokens(depth_);
    for (int32_t s = 0; s < launch_.num_seqs(); ++s) {
      seqs_.push_back(engine_.kv().add_sequence());
      const auto chunk = static_cast<size_t>(engine_.options().max_batch_tokens);
      for (size_t at = 0; at < tokens.size(); at += chunk) {
        const Chunk part{seqs_.back(),
                         std::span(tokens).subspan(at, std::min(chunk, tokens.size() - at)),
                         Logits::kNone};
        if (auto rows = engine_.step({&part, 1}); !rows) return fail(std::move(rows.error()));
      }
    }
    return engine_.synchronize();
  }

  /// On forks of the filled sequences, so that every launch has the same depth.
  Status run() {
    std::vector<SeqId> forks;
    for (const SeqId seq : seqs_) {
      auto fork = engine_.kv().fork(seq);
      if (!fork) return fail(std::move(fork.error()));
      forks.push_back(*fork);
    }
    const std::vector<int32_t> tokens = random_tokens(launch_.num_tokens);
    std::vector<Chunk> chunks;
    const size_t of_each = tokens.size() / forks.size();
    for (size_t s = 0; s < forks.size(); ++s)
      chunks.push_back({forks[s], std::span(tokens).subspan(s * of_each, of_each)});
    auto rows = engine_.step(chunks);
    Status status = engine_.synchronize();
    for (const SeqId fork : forks) engine_.kv().free_sequence(fork);
    if (!rows) return fail(std::move(rows.error()));
    return status;
  }

 private:
  std::vector<int32_t> random_tokens(int32_t count) {
    std::uniform_int_distribution<int32_t> any(0, engine_.config().vocab - 1);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = any(random_);
    return tokens;
  }

  Engine& engine_;
  const TuneLaunch launch_;
  const int32_t depth_;
  std::vector<SeqId> seqs_;
  std::mt19937 random_{7};
};

class Tuner {
 public:
  Tuner(Engine& engine, const TuneLaunch& launch, const TuneOptions& options,
        const OnTuneProgress& progress)
      : engine_(engine), options_(options), progress_(progress) {
    found_.launch = launch;
    found_.bracket = bracket_of(launch.num_tokens, launch.num_seqs(), launch.num_seqs());
  }

  Result<TunedPlans> run() {
    auto planned = plan_by({});
    if (!planned) return fail(std::move(planned.error()));
    planned_ = std::move(*planned);
    find_candidates();
    if (auto status = make_plans(); !status) return fail(std::move(status.error()));
    if (auto status = measure(); !status) return fail(std::move(status.error()));
    weigh();
    if (auto status = choose(); !status) return fail(std::move(status.error()));
    return std::move(found_);
  }

 private:
  Result<PassPlan> plan_by(const PlanChoice& choice) const {
    return engine_.model().plan_by(found_.bracket, engine_.kv_dtype(), choice);
  }
  TimedRow* find(const PlannedRow& row) {
    for (TimedRow& timed : found_.rows)
      if (is_same(timed.row, row)) return &timed;
    return nullptr;
  }

  // The plan's own rows, and those that are predicted to take not much longer for their steps.
  void find_candidates() {
    for (const PlannedRow* row : rows_of(planned_))
      found_.rows.push_back({.row = *row, .is_planned = true, .us = {}, .summary = {}});
    for (const auto& chain : planned_.chains) {
      for (const PlannedRow& row :
           engine_.model().candidates(found_.bracket, engine_.kv_dtype(), chain.front().layer)) {
        const bool is_outside = row.row.op().name == std::string_view("embed") ||
                                row.row.op().name == std::string_view("unembed");
        if (is_outside && chain.front().layer > 0) continue;  // once is enough
        if (find(row) != nullptr || !(row.predicted_us < kNeverUs)) continue;
        if (!options_.step.empty() && !does(row, options_.step)) continue;
        double own_us = 0;
        for (const PlannedRow* own : rows_of(planned_))
          if (own->layer == row.layer && shares_step(*own, row)) own_us += own->predicted_us;
        if (row.predicted_us <= options_.filter * own_us)
          found_.rows.push_back({.row = row, .is_planned = false, .us = {}, .summary = {}});
      }
    }
  }

  // Plans that together hold every candidate that a chain can have. The first is the plan itself.
  Status make_plans() {
    plans_.push_back(planned_);
    std::vector<const TimedRow*> left, tiles;
    for (const TimedRow& timed : found_.rows)
      if (!timed.is_planned) (timed.row.tile_columns == 0 ? left : tiles).push_back(&timed);
    const auto is_left = [&](const PlannedRow& row) {
      return std::find_if(left.begin(), left.end(), [&](const TimedRow* timed) {
               return is_same(timed->row, row);
             }) != left.end();
    };
    while (!left.empty() && plans_.size() < kMostPlans) {
      auto plan = plan_by({.cost = [&](const PlannedRow& row) {
        if (is_left(row)) return kPull * row.predicted_us;
        return find(row) != nullptr ? row.predicted_us : kInfinity;
      }});
      if (!plan) return fail(std::move(plan.error()));
      const size_t before = left.size();
      for (const PlannedRow* row : rows_of(*plan))
        std::erase_if(left, [&](const TimedRow* timed) { return is_same(timed->row, *row); });
      if (left.size() == before) break;  // the others fit into no chain of candidates
      plans_.push_back(std::move(*plan));
    }
    // A row with a tile stands where it stands without.
    for (size_t i = 0; i < plans_.size() && !tiles.empty(); ++i) {
      for (const gemm::Tile& tile : gemm::all_tiles()) {
        PassPlan plan = plans_[i];
        if (plans_.size() < kMostPlans && set_tile(tile.columns, &tiles, &plan))
          plans_.push_back(std::move(plan));
      }
    }
    found_.num_unreached = static_cast<int>(left.size() + tiles.size());
    return {};
  }

  // Sets the tile of the plan's rows that are among `left` with it, and takes them from there;
  // whether there was one.
  static bool set_tile(int32_t columns, std::vector<const TimedRow*>* left, PassPlan* plan) {
    const size_t before = left->size();
    for (auto& chain : plan->chains) {
      for (PlannedRow& row : chain) {
        PlannedRow with_tile = row;
        with_tile.tile_columns = columns;
        if (row.tile_columns == 0 && std::erase_if(*left, [&](const TimedRow* timed) {
                                       return is_same(timed->row, with_tile);
                                     }) > 0)
          row.tile_columns = columns;
      }
    }
    return left->size() < before;
  }

  Status measure() {
    auto timer = RowTimer::make(engine_);
    if (!timer) return fail(std::move(timer.error()));
    Launcher launcher(engine_, found_.launch, options_.depth);
    if (auto status = launcher.fill(); !status) return status;
    for (int32_t r = 0; r <= options_.repetitions; ++r) {
      for (size_t i = 0; i < plans_.size(); ++i) {
        // There and back, so that no plan always follows the same one.
        const PassPlan& plan = plans_[r % 2 == 0 ? i : plans_.size() - 1 - i];
        engine_.model().keep_plan(found_.bracket, engine_.kv_dtype(), plan);
        auto times = (*timer)->time([&] { return launcher.run(); });
        if (!times) return fail(std::move(times.error()));
        if (r > 0) take(plan, *times, static_cast<size_t>(r));
      }
      if (progress_)
        progress_(fmt::format("{}: {} of {} repetitions of {} plans", found_.launch.name(), r,
                              options_.repetitions, plans_.size()));
    }
    return {};
  }

  // A row's sample of a repetition is its mean over layers, and over the plans that have it.
  void take(const PassPlan& plan, const std::vector<RowTime>& times, size_t repetition) {
    const auto rows = rows_in_order(plan);
    CHECK(rows.size() == times.size(),
          fmt::format("{} rows ran of a plan of {}", times.size(), rows.size()));
    struct Sum {
      double us = 0;
      int count = 0;
    };
    std::vector<Sum> sums(found_.rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      CHECK(rows[i]->row.name == times[i].row, times[i].row);
      const auto idx = static_cast<size_t>(find(*rows[i]) - found_.rows.data());
      sums[idx].us += times[i].us;
      ++sums[idx].count;
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      std::vector<double>& us = found_.rows[i].us;
      if (sums[i].count == 0 || us.size() == repetition) continue;  // the first plan that has it
      us.push_back(sums[i].us / sums[i].count);
    }
  }

  void weigh() {
    std::erase_if(found_.rows, [](const TimedRow& timed) { return timed.us.empty(); });
    for (TimedRow& timed : found_.rows) {
      timed.summary = summarize(timed.us);
      if (timed.is_planned) continue;
      std::vector<double> own(timed.us.size(), 0);
      for (const TimedRow& other : found_.rows) {
        if (!other.is_planned || other.row.layer != timed.row.layer ||
            !shares_step(other.row, timed.row))
          continue;
        for (size_t i = 0; i < own.size(); ++i) own[i] += other.us[i];
      }
      timed.noise_us = noise_of(timed.us, own);
    }
  }

  Status choose() {
    const auto measured_rows = row_costs(std::make_shared<const Tuning>(
        Tuning{.key = {}, .launches = {to_tuned(found_)}}))(found_.bracket);
    auto chosen = plan_by({.cost = measured_rows.cost});
    if (!chosen) return fail(std::move(chosen.error()));
    for (auto& chain : chosen->chains)
      for (PlannedRow& row : chain)
        if (row.row.tile_rows != 0) row.tile_columns = measured_rows.tile_columns(row);
    for (const PlannedRow* row : rows_of(*chosen))
      if (TimedRow* timed = find(*row)) timed->is_chosen = true;
    found_.differs = !same_rows(*chosen, planned_);
    const auto measured = [&](const PassPlan& plan) {
      double us = 0;
      for (const PlannedRow* row : rows_in_order(plan)) us += find(*row)->summary.median;
      return us;
    };
    found_.planned_us = measured(planned_);
    found_.chosen_us = measured(*chosen);
    return {};
  }

  Engine& engine_;
  const TuneOptions& options_;
  const OnTuneProgress& progress_;
  PassPlan planned_;
  std::vector<PassPlan> plans_;
  TunedPlans found_;
};

}  // namespace

std::string TuneLaunch::name() const {
  return fmt::format("{} of {}", is_decode ? "decode" : "prompt", num_tokens);
}

double noise_of(const std::vector<double>& us, const std::vector<double>& planned_us) {
  CHECK(us.size() == planned_us.size() && !us.empty());
  std::vector<double> differences;
  for (size_t i = 0; i < us.size(); ++i) differences.push_back(us[i] - planned_us[i]);
  // 1.4826 MAD estimates the deviation; a median's error is 1.2533 times a mean's.
  const double error = 1.2533 * 1.4826 * summarize(differences).mad /
                       std::sqrt(static_cast<double>(differences.size()));
  return std::max(3 * error, 0.01 * median(planned_us));
}

Result<TunedPlans> tune_launch(Engine& engine, const TuneLaunch& launch, const TuneOptions& options,
                               const OnTuneProgress& progress) {
  CHECK(engine.model().taps().empty());
  engine.model().set_row_costs({}, engine.workspace_bytes());
  auto found = Tuner(engine, launch, options, progress).run();
  engine.model().set_row_costs({},
                               engine.workspace_bytes());  // forgets the plans that were measured
  return found;
}

TunedLaunch to_tuned(const TunedPlans& plans) {
  TunedLaunch tuned{.num_tokens = plans.bracket.num_tokens,
                    .num_seqs = plans.bracket.num_seqs,
                    .num_logit_rows = plans.bracket.num_logit_rows,
                    .rows = {}};
  for (const TimedRow& timed : plans.rows) {
    tuned.rows.push_back({.layer = static_cast<int32_t>(timed.row.layer),
                          .name = timed.row.row.name,
                          .forms = forms_text(timed.row.forms),
                          .tile_columns = timed.row.tile_columns,
                          .predicted_us = timed.row.predicted_us,
                          .measured_us = timed.summary.median,
                          .noise_us = timed.noise_us,
                          .is_planned = timed.is_planned});
  }
  return tuned;
}

}  // namespace moxie
