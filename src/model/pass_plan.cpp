// Makes hops from the rows' tables, and a plan from the cheapest chains of hops.
#include "model/pass_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>

#include "kernels/plan.h"
#include "kernels/row_products.h"
#include "model/gpt_oss.h"

namespace moxie {
namespace {

/// The steps of a layer in order. Border b of a layer is before step b.
constexpr const OpInfo* kLayerOps[] = {&Op<QkvParams>::info, &Op<AttendParams>::info,
                                       &Op<OutParams>::info, &Op<RouteParams>::info,
                                       &Op<ExpertsParams>::info};
constexpr int32_t kLastBorder = std::size(kLayerOps);

int32_t border_before(const OpInfo& op) {
  return static_cast<int32_t>(std::ranges::find(kLayerOps, &op) - std::begin(kLayerOps));
}

/// The borders before and behind a row. There is none before embed and none behind unembed.
constexpr int32_t kNoBorder = -1;
struct Borders {
  int32_t from, to;
};
const OpInfo& first_layer_op(const RowInfo& row) {
  for (const OpInfo* op : row.ops)
    if (border_before(*op) != kLastBorder) return *op;  // reduce is before it, and no step
  return row.op();
}
Borders borders_of(const RowInfo& row) {
  if (&row.op() == &Op<EmbedParams>::info) return {kNoBorder, 0};
  if (&row.op() == &Op<UnembedParams>::info) return {kLastBorder, kNoBorder};
  return {border_before(first_layer_op(row)), border_before(row.op()) + 1};
}

template <typename Form>
int32_t state(Form form) {
  return static_cast<int32_t>(form);
}
/// The form of the value, besides x, that is handed over at a border.
int32_t state_at(int32_t border, const Forms& forms) {
  const int32_t states[] = {0, state(forms.q), state(forms.a), state(forms.router), state(forms.t)};
  return border < kLastBorder ? states[border] : 0;
}

/// The forms that are the same in a whole plan: x and l1, which every row passes on, whether route
/// is folded, since the previous layer clears the sums of a layer, and whether reduce is.
struct SharedForms {
  XForm x;
  L1Form l1;
  RouterForm router;
  ReduceForm reduce;
};
template <typename Visit>
void for_each_shared(Visit&& visit) {
  for (const XForm x : {XForm::kF32, XForm::kF32Pair})
    for (const L1Form l1 : {L1Form::kShared, L1Form::kL1})
      for (const RouterForm router : {RouterForm::kNothing, RouterForm::kSums})
        visit(SharedForms{x, l1, router, ReduceForm::kStep});
}
template <typename P>
inline constexpr bool kReadsOrWritesRouter =
    std::is_same_v<P, OutParams> || std::is_same_v<P, RouteParams> ||
    std::is_same_v<P, ExpertsParams>;
/// The form of a step in a plan with `reduce`: where that makes no difference, kStep.
template <typename P>
ReduceForm reduce_form_of(ReduceForm reduce) {
  constexpr bool is_out = std::is_same_v<P, OutParams>,
                 is_experts = std::is_same_v<P, ExpertsParams>;
  constexpr bool knows_folded = std::is_same_v<P, QkvParams> || kReadsOrWritesRouter<P>;
  constexpr bool knows_sent = is_out || std::is_same_v<P, ReduceParams>;
  constexpr bool knows_rounded = knows_sent || is_experts;
  const bool knows = reduce == ReduceForm::kFolded    ? knows_folded
                     : reduce == ReduceForm::kRounded ? knows_rounded
                                                      : knows_sent;
  return knows ? reduce : ReduceForm::kStep;
}

/// Calls visit(forms) with each combination of the forms that the row takes and leaves.
template <typename P, typename Visit>
void for_each_forms(const Row<P>& row, const SharedForms& shared, Visit&& visit) {
  const RouterForm router = kReadsOrWritesRouter<P> ? shared.router : RouterForm::kNothing;
  const ReduceForm reduce = reduce_form_of<P>(shared.reduce);
  if (!row.forms.x.has(shared.x) || !row.forms.l1.has(shared.l1) || !row.forms.router.has(router) ||
      !row.forms.reduce.has(reduce))
    return;
  const auto each = [](const auto& set, auto zero, auto&& then) {
    using Form = decltype(zero);
    for (const Form form : {Form{0}, Form{1}})
      if (set.has(form)) then(form);
  };
  Forms forms{.x = shared.x, .router = router, .l1 = shared.l1, .reduce = reduce};
  each(row.forms.q, QForm{}, [&](QForm q) {
    forms.q = q;
    each(row.forms.a, AForm{}, [&](AForm a) {
      forms.a = a;
      each(row.forms.t, TForm{}, [&](TForm t) {
        forms.t = t;
        visit(forms);
      });
    });
  });
}

/// Bytes that the forms of step P's inputs and outputs add to those of plain F32 forms.
template <typename P>
double more_bytes(const Pass& pass, const Forms& forms) {
  const double hidden = 4.0 * pass.batch.ragged.num_tokens * pass.config.hidden;
  const double heads = 4.0 * pass.batch.ragged.num_tokens * pass.config.q_width();
  const double pair = forms.x == XForm::kF32Pair ? hidden : 0;
  const double q = forms.q == QForm::kBf16Staged ? -0.5 * heads : 0;
  const double a = forms.a == AForm::kBf16Staged ? -0.5 * heads : 0;
  const bool has_t = forms.t == TForm::kF32 && forms.router == RouterForm::kNothing;
  // Sums are written in two bytes; outputs of pairs are not read, and no sums are written.
  const bool leaves_pairs = forms.reduce == ReduceForm::kRounded;
  const double of_out = leaves_rounded(forms.reduce) ? -0.5 * hidden : 2 * pair;
  const double of_pairs = leaves_pairs ? -(1 + 0.5 * pass.config.top_k) * hidden : 0;
  if constexpr (std::is_same_v<P, QkvParams>) return pair + q;
  if constexpr (std::is_same_v<P, AttendParams>) return q + a;
  if constexpr (std::is_same_v<P, OutParams>) return a + of_out;
  if constexpr (std::is_same_v<P, RouteParams>) return pair - (has_t ? 0 : hidden);
  if constexpr (std::is_same_v<P, ExpertsParams>) return 2 * pair + (has_t ? 0 : pair) + of_pairs;
  return pair;
}

template <typename P>
P planned_params(const Pass& pass, const PlannedRow& planned, size_t l) {
  constexpr bool is_numbered = std::is_same_v<P, TapParams> || std::is_same_v<P, ReduceParams>;
  P params = pass.params<P>(is_numbered ? planned.number : l, planned.forms);
  if constexpr (std::is_same_v<P, ReduceParams>) {
    // The next launch may add to the part that it begins with.
    const bool is_last = l + 1 == pass.weights.layers.size() && planned.number == kBehindExperts;
    const bool is_overwritten = planned.forms.reduce == ReduceForm::kSent
                                    ? planned.number == kBehindExperts
                                    : pass.overwrites_parts(planned.forms);
    if (is_overwritten && !is_last) params.next_part = nullptr;
  }
  if constexpr (requires { params.tile; })
    if (planned.tile_columns != 0) params.tile = planned.tile();
  return params;
}
template <typename P>
void run_planned(KernelChooser& kernels, const Pass& pass, const PlannedRow& planned, size_t l) {
  kernels.run(*static_cast<const Row<P>*>(planned.entry), planned_params<P>(pass, planned, l));
}
template <typename P>
const char* refuses_planned(const Pass& pass, const PlannedRow& planned, size_t l) {
  return why_not(*static_cast<const Row<P>*>(planned.entry), planned_params<P>(pass, planned, l));
}

/// The time of a row that the other launches of its chain can run and this launch cannot.
constexpr double kRefusedUs = std::numeric_limits<double>::infinity();

// Makes the plan for one choice of the forms that rows pass on unchanged.
class Planner {
 public:
  Planner(const Pass& pass, const KernelChooser& kernels, const PlanChoice& choice,
          const SharedForms& shared)
      : pass_(pass), kernels_(kernels), choice_(choice), shared_(shared) {}

  /// Rows, and their cost in the choice.
  struct Costed {
    std::vector<PlannedRow> rows;
    double cost = 0;
  };

  /// The cheapest row of a step that shares only x and l1 with other rows.
  template <typename P>
  std::optional<Costed> alone() {
    std::optional<Costed> best;
    layer_ = 0;
    for_each_row<P>(0, [&](const Row<P>& row, const Forms& forms, double cost) {
      if (!best || cost < best->cost) best = {{planned(row, forms)}, cost};
    });
    return best;
  }

  /// The chain of layer `l`.
  std::optional<Costed> layer(size_t l) {
    rows_.clear();
    hops_.clear();
    layer_ = l;
    for_each_layer_step([&]<typename P>() { add_hops<P>(); });
    const auto chain = cheapest_chain(hops_, kLastBorder);
    if (!chain) return std::nullopt;
    Costed found{.rows = {}, .cost = chain->us};
    for (const size_t hop : chain->hops) found.rows.push_back(rows_[hop]);
    return found;
  }

  /// The rows of a step in layer `l`.
  template <typename P>
  void list(size_t l, std::vector<PlannedRow>* rows) {
    layer_ = l;
    for_each_row<P>(l, [&](const Row<P>& row, const Forms& forms, double) {
      rows->push_back(planned(row, forms));
    });
  }

 private:
  template <typename P>
  bool may_run(const Row<P>& row) const {
    return row.device == kernels_.device() && (row.needs & kernels_.features()) == row.needs &&
           !(pass_.has_ranks() && adds_before_its_end(row));
  }
  // With ranks x is not whole behind out until reduce has run: no row covers both sides of it.
  template <typename P>
  static bool adds_before_its_end(const Row<P>& row) {
    return std::ranges::find(row.covers, &Op<OutParams>::info) != row.covers.end();
  }
  // The router's products are of a part only, which rows that fold reduce exchange, too.
  template <typename P>
  bool suits_ranks(const Forms& forms) const {
    if (!pass_.has_ranks() || !kReadsOrWritesRouter<P>) return true;
    return (forms.router == RouterForm::kSums) == (shared_.reduce == ReduceForm::kFolded);
  }

  // The time of one launch; nothing if the row cannot run.
  template <typename P>
  std::optional<double> predicted_us_of(const Pass& pass, size_t l, const Row<P>& row,
                                        const Forms& forms) const {
    const P params = pass.params<P>(l, forms);
    if (!kernels_.choice().permits(row, params) || row.refuses(params) != nullptr) return {};
    const double more_us = 1e-3 * more_bytes<P>(pass, forms) / kernels_.rates().read_gb_s;
    return std::max(0.0, row.predict_us(params, kernels_.rates()) + more_us);
  }
  template <typename P>
  std::optional<double> cost_of(size_t l, const Row<P>& row, const Forms& forms) const {
    if (choice_.weighed.empty()) {
      const auto us = predicted_us_of(pass_, l, row, forms);
      if (!us || !choice_.cost) return us;
      const double cost = choice_.cost(planned(row, forms));
      return cost < std::numeric_limits<double>::infinity() ? std::optional(cost) : std::nullopt;
    }
    double cost = 0;
    for (const WeighedPass& one : choice_.weighed) {
      const auto us = predicted_us_of(*one.pass, l, row, forms);
      if (!us) return {};
      cost += one.weight * *us;
    }
    return cost;
  }

  template <typename P, typename Visit>
  void for_each_row(size_t l, Visit&& visit) {
    for (const Row<P>& row : Op<P>::rows()) {
      if (!may_run(row)) continue;
      for_each_forms(row, shared_, [&](const Forms& forms) {
        if (!suits_ranks<P>(forms)) return;
        if (const auto cost = cost_of(l, row, forms)) visit(row, forms, *cost);
      });
    }
  }

  template <typename P>
  PlannedRow planned(const Row<P>& row, const Forms& forms) const {
    Work work = Op<P>::work(pass_.params<P>(layer_, forms));
    for_each_layer_step([&]<typename Q>() {  // the steps that it covers
      if (std::ranges::find(row.covers, &Op<Q>::info) != row.covers.end())
        work += Op<Q>::work(pass_.params<Q>(layer_, forms));
    });
    const DeviceRates& rates = kernels_.rates();
    return {.row = row_info(row),
            .forms = forms,
            .predicted_us = predicted_us_of(pass_, layer_, row, forms).value_or(kRefusedUs),
            .limit_us = limit_us(work, rates.read_gb_s, greatest_gflops(kernels_, row.name)),
            .run = run_planned<P>,
            .refuses = refuses_planned<P>,
            .entry = &row,
            .layer = layer_};
  }

  template <typename P>
  void add_hops() {
    for_each_row<P>(layer_, [&](const Row<P>& row, const Forms& forms, double cost) {
      PlannedRow hop = planned(row, forms);
      const auto [from, to] = borders_of(hop.row);
      hops_.push_back({.from = from,
                       .to = to,
                       .from_state = state_at(from, forms),
                       .to_state = state_at(to, forms),
                       .us = cost});
      rows_.push_back(std::move(hop));
    });
  }

  const Pass& pass_;
  const KernelChooser& kernels_;
  const PlanChoice& choice_;
  SharedForms shared_;
  size_t layer_ = 0;
  std::vector<Hop> hops_;
  std::vector<PlannedRow> rows_;
};

bool same_kind(const GptOssConfig& config, const ModelWeights& weights, size_t a, size_t b) {
  const auto alike = [](const PackedMatrix& x, const PackedMatrix& y) {
    return x.format == y.format && x.rows == y.rows && x.cols == y.cols &&
           x.num_experts == y.num_experts;
  };
  const LayerWeights &x = weights.layers[a], &y = weights.layers[b];
  return config.is_window[a] == config.is_window[b] && alike(x.qkv, y.qkv) && alike(x.out, y.out) &&
         alike(x.router, y.router) && alike(x.gate_up, y.gate_up) && alike(x.down, y.down);
}

// Why there is no plan: the first step that no row can run, or whose forms do not meet.
tl::unexpected<Error> no_plan(const Pass& pass, const KernelChooser& kernels) {
  std::optional<Error> error;
  const auto look = [&]<typename P>(size_t l) {
    if (error) return;
    const Row<P>* refused = nullptr;
    std::string why;
    for (const Row<P>& row : Op<P>::rows()) {
      const P params = pass.params<P>(l, first_forms(row));
      if (!kernels.choice().allows(row)) continue;
      if (row.device != kernels.device()) {
        if (refused == nullptr) refused = &row, why = "it is for another device";
      } else if (const char* not_permitted = kernels.choice().why_not_permitted(row, params)) {
        if (refused == nullptr) refused = &row, why = not_permitted;
      } else if ((row.needs & kernels.features()) != row.needs) {
        refused = &row, why = kernels.missing(row.needs);
      } else if (const char* refuses = row.refuses(params)) {
        refused = &row, why = refuses;
      } else {
        return;  // a row of the step can run
      }
    }
    const bool is_forced = kernels.choice().forced(Op<P>::info) != nullptr;
    const std::string step = Op<P>::info.name;
    const std::string hint = "`moxie kernels` shows what this machine can run";
    error = is_forced && refused != nullptr
                ? Error{why, fmt::format("--kernel {}={}", step, refused->name), hint}
                : Error{kNoRow[kernels.choice().batch_invariant() ? 1 : 0], "step " + step, hint};
  };
  look.template operator()<EmbedParams>(0);
  for (size_t l = 0; l < pass.weights.layers.size(); ++l)
    for_each_layer_step([&]<typename P>() { look.template operator()<P>(l); });
  look.template operator()<UnembedParams>(0);
  look.template operator()<TapParams>(0);
  if (pass.has_ranks()) {
    look.template operator()<ReduceParams>(kBehindOut);
    look.template operator()<GatherParams>(0);
  }
  if (!error) {
    error = Error{"no rows of neighbouring steps hand values over in the same form", "--kernel",
                  "force fewer rows; `moxie kernels` shows them"};
  }
  return tl::unexpected(std::move(*error));
}

}  // namespace

int32_t bracket_floor(int32_t count) {
  if (count <= 16) return std::max(count, 0);
  const auto quarter = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(count)) / 4);
  return count / quarter * quarter;
}

Bracket bracket_of(int32_t num_tokens, int32_t num_seqs, int32_t num_logit_rows) {
  return {bracket_floor(num_tokens), bracket_floor(num_seqs), bracket_floor(num_logit_rows)};
}

NamedForms forms_at(const PlannedRow& row, bool reads) {
  const Forms& f = row.forms;
  const auto name = [](const auto& names, auto form) { return names[state(form)]; };
  const OpInfo& op = reads ? first_layer_op(row.row) : row.row.op();
  NamedForms found;
  const int32_t border = border_before(op) + (reads ? 0 : 1);  // beyond the last: of no layer
  if (border == 1) found.emplace_back("q", name(kQFormNames, f.q));
  if (border == 2) found.emplace_back("a", name(kAFormNames, f.a));
  if (border == 3) found.emplace_back("router", name(kRouterFormNames, f.router));
  if (border == 4) found.emplace_back("t", name(kTFormNames, f.t));
  if (&op == &Op<UnembedParams>::info && !reads) return {{"logits", "f32"}};
  const bool makes_x = &op == &Op<EmbedParams>::info;
  const bool adds_to_x = &op == &Op<OutParams>::info || &op == &Op<ExpertsParams>::info;
  if (!reads && adds_to_x && leaves_rounded(f.reduce)) {
    found.emplace_back("part", &op == &Op<OutParams>::info ? "bf16" : "pairs");
    return found;
  }
  const bool has_x = reads ? !makes_x && &op != &Op<AttendParams>::info : makes_x || adds_to_x;
  if (has_x) found.emplace_back("x", name(kXFormNames, f.x));
  return found;
}

namespace {

// Makes x whole behind the last layer, where reduce is folded into rows of layers.
void add_last_reduce(const PlannedRow& reduce, PassPlan* plan) {
  auto chain = plan->chains[plan->chain_of_layer.back()];
  PlannedRow& last = chain.emplace_back(reduce);
  last.number = kBehindExperts;
  last.forms.reduce = ReduceForm::kFolded;
  plan->chain_of_layer.back() = static_cast<uint16_t>(plan->chains.size());
  plan->chains.push_back(std::move(chain));
}

// Makes x whole behind out and behind experts.
void add_reduces(const PlannedRow& reduce, PassPlan* plan) {
  for (auto& chain : plan->chains) {
    for (size_t i = 0; i < chain.size(); ++i) {
      const OpInfo& op = chain[i].row.op();
      if (&op != &Op<OutParams>::info && &op != &Op<ExpertsParams>::info) continue;
      PlannedRow whole = reduce;
      whole.number = &op == &Op<OutParams>::info ? kBehindOut : kBehindExperts;
      chain.insert(chain.begin() + static_cast<std::ptrdiff_t>(++i), std::move(whole));
    }
  }
}

// Inserts the rows of tap before and behind layers, into a plan with the same form of x.
void add_taps(std::span<const int32_t> taps, const PlannedRow& tap, PassPlan* plan) {
  const auto num_layers = static_cast<int32_t>(plan->chain_of_layer.size());
  for (int32_t l = 0; l < num_layers; ++l) {
    const auto& plain = plan->chains[plan->chain_of_layer[static_cast<size_t>(l)]];
    std::vector<PlannedRow> before, behind;
    for (size_t i = 0; i < taps.size(); ++i) {
      const bool is_behind = taps[i] == num_layers && l + 1 == num_layers;
      if (taps[i] != l && !is_behind) continue;
      (is_behind ? behind : before).emplace_back(tap).number = i;
    }
    if (before.empty() && behind.empty()) continue;
    before.insert(before.end(), plain.begin(), plain.end());
    before.insert(before.end(), behind.begin(), behind.end());
    plan->chain_of_layer[static_cast<size_t>(l)] = static_cast<uint16_t>(plan->chains.size());
    plan->chains.push_back(std::move(before));
  }
}

}  // namespace

std::vector<PlannedRow> rows_for_plan(const Pass& pass, const KernelChooser& kernels, size_t l) {
  std::vector<PlannedRow> rows;
  const PlanChoice by_times;
  for_each_shared([&](const SharedForms& shared) {
    Planner planner(pass, kernels, by_times, shared);
    const auto list = [&]<typename P>() {
      if (kReadsOrWritesRouter<P> || shared.router == RouterForm::kNothing)
        planner.list<P>(l, &rows);
    };
    list.template operator()<EmbedParams>();
    for_each_layer_step(list);
    list.template operator()<UnembedParams>();
  });
  return rows;
}

std::vector<size_t> kinds_of_layers(const GptOssConfig& config, const ModelWeights& formats) {
  std::vector<size_t> kinds;
  for (size_t l = 0; l < formats.layers.size(); ++l) {
    const auto is_like_l = [&](size_t kind) { return same_kind(config, formats, kind, l); };
    if (std::ranges::none_of(kinds, is_like_l)) kinds.push_back(l);
  }
  return kinds;
}

bool can_meet(const PlannedRow& a, const PlannedRow& b) {
  const int32_t left = borders_of(a.row).to, right = borders_of(b.row).from;
  const bool is_same = left != kNoBorder && left == right;
  const bool is_next_layer = left == kLastBorder && right == 0;
  return (is_same || is_next_layer) && a.forms.x == b.forms.x && a.forms.l1 == b.forms.l1 &&
         state_at(left, a.forms) == state_at(right, b.forms);
}

namespace {

// The cheapest plan with these forms, and its cost in the choice.
std::optional<std::pair<PassPlan, double>> plan_with(const Pass& pass, const KernelChooser& kernels,
                                                     std::span<const int32_t> taps,
                                                     const PlanChoice& choice,
                                                     const SharedForms& shared) {
  const bool is_folded = shared.reduce == ReduceForm::kFolded;
  if (is_folded && !pass.may_fold_reduce()) return std::nullopt;
  if (shared.reduce == ReduceForm::kRounded && !pass.may_round_parts()) return std::nullopt;
  if (shared.reduce == ReduceForm::kSent && !pass.may_send_parts()) return std::nullopt;
  Planner planner(pass, kernels, choice, shared);
  const auto embed = planner.alone<EmbedParams>();
  const auto unembed = planner.alone<UnembedParams>();
  const auto tap = taps.empty() ? embed : planner.alone<TapParams>();
  if (!embed || !unembed || !tap) return std::nullopt;
  const bool has_ranks = pass.has_ranks();
  const auto reduce = has_ranks ? planner.alone<ReduceParams>() : embed;
  const auto gather = has_ranks ? planner.alone<GatherParams>() : embed;
  if (!reduce || !gather) return std::nullopt;
  PassPlan plan{.embed = embed->rows.front(), .unembed = unembed->rows.front()};
  double cost = embed->cost + unembed->cost;
  std::vector<size_t> first_of_kind;
  std::vector<double> cost_of_kind;
  for (size_t l = 0; l < pass.weights.layers.size(); ++l) {
    size_t kind = 0;
    while (kind < first_of_kind.size() &&
           !same_kind(pass.config, pass.weights, first_of_kind[kind], l))
      ++kind;
    if (kind == first_of_kind.size()) {
      auto chain = planner.layer(l);
      if (!chain) return std::nullopt;
      first_of_kind.push_back(l);
      cost_of_kind.push_back(chain->cost);
      plan.chains.push_back(std::move(chain->rows));
    }
    plan.chain_of_layer.push_back(static_cast<uint16_t>(kind));
    cost += cost_of_kind[kind];
  }
  if (has_ranks) {
    const auto num_reduces =
        is_folded ? 1.0 : 2.0 * static_cast<double>(plan.chain_of_layer.size());
    cost += num_reduces * reduce->cost;
    is_folded ? add_last_reduce(reduce->rows.front(), &plan)
              : add_reduces(reduce->rows.front(), &plan);
    plan.behind = gather->rows;
  }
  if (!taps.empty()) add_taps(taps, tap->rows.front(), &plan);
  plan.predicted_us = plan.embed.predicted_us + plan.unembed.predicted_us;
  for (const PlannedRow& row : plan.behind) plan.predicted_us += row.predicted_us;
  for (size_t l = 0; l < plan.chain_of_layer.size(); ++l)
    for (const PlannedRow& row : plan.layer(l)) plan.predicted_us += row.predicted_us;
  return std::pair(std::move(plan), cost);
}

}  // namespace

Result<PassPlan> make_plan(const Pass& pass, const KernelChooser& kernels,
                           std::span<const int32_t> taps, const PlanChoice& choice) {
  std::optional<std::pair<PassPlan, double>> best;
  const auto try_plan = [&](const SharedForms& shared) {
    auto found = plan_with(pass, kernels, taps, choice, shared);
    if (found && (!best || found->second < best->second)) best = std::move(found);
  };
  for_each_shared(try_plan);
  for (const L1Form l1 : {L1Form::kShared, L1Form::kL1}) {
    try_plan({XForm::kF32Pair, l1, RouterForm::kSums, ReduceForm::kFolded});
    try_plan({XForm::kF32, l1, RouterForm::kNothing, ReduceForm::kRounded});
    try_plan({XForm::kF32Pair, l1, RouterForm::kNothing, ReduceForm::kSent});
  }
  if (!best) return no_plan(pass, kernels);
  if (best->first.predicted_us == kRefusedUs)
    return fail(fmt::format("launches of {} tokens cannot run the rows of all others",
                            pass.batch.ragged.num_tokens),
                "--batch-invariant", "fewer tokens a launch (--max-num-batched-tokens), or off");
  return std::move(best->first);
}

bool same_rows(const PassPlan& a, const PassPlan& b) {
  const auto same = [](const PlannedRow& x, const PlannedRow& y) {
    return x.entry == y.entry && x.forms == y.forms && x.tile_columns == y.tile_columns;
  };
  return same(a.embed, b.embed) && same(a.unembed, b.unembed) &&
         a.chain_of_layer == b.chain_of_layer &&
         std::ranges::equal(a.chains, b.chains, [&](const auto& x, const auto& y) {
           return std::ranges::equal(x, y, same);
         });
}

}  // namespace moxie
