// From the rows' tables to hops, and from the cheapest chains of hops to a plan.
#include "model/pass_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/joined.h"
#include "kernels/plan.h"
#include "model/gpt_oss.h"

namespace moxie {
namespace {

/// What two rows that run together spare: a barrier of the pool.
constexpr double kBarrierUs = 1.0;

/// Borders of a layer: before qkv, behind qkv, attend, out, route and experts.
template <typename P>
constexpr int32_t kBorderBehind = static_cast<int32_t>(StepOf<P>::value) -
                                  static_cast<int32_t>(StepKind::kQkv) + 1;
constexpr int32_t kLastBorder = kBorderBehind<ExpertsParams>;

template <typename Form>
int32_t state(Form form) {
  return static_cast<int32_t>(form);
}
/// The form of what step P hands over, in `forms`.
template <typename P>
int32_t state_behind(const Forms& forms) {
  if constexpr (std::is_same_v<P, QkvParams>) return state(forms.q);
  if constexpr (std::is_same_v<P, AttendParams>) return state(forms.a);
  if constexpr (std::is_same_v<P, OutParams>) return state(forms.router);
  if constexpr (std::is_same_v<P, RouteParams>) return state(forms.t);
  return 0;
}

/// Calls visit(forms) with each combination of the forms that the row takes and leaves, x and l1
/// given: the plan's.
template <typename P, typename Visit>
void for_each_forms(const Row<P>& row, XForm x, L1Form l1, Visit&& visit) {
  if (!row.forms.x.has(x) || !row.forms.l1.has(l1)) return;
  const auto each = [](const auto& set, auto zero, auto&& then) {
    using Form = decltype(zero);
    for (const Form form : {Form{0}, Form{1}})
      if (set.has(form)) then(form);
  };
  Forms forms{.x = x, .l1 = l1};
  each(row.forms.q, QForm{}, [&](QForm q) {
    forms.q = q;
    each(row.forms.a, AForm{}, [&](AForm a) {
      forms.a = a;
      each(row.forms.router, RouterForm{}, [&](RouterForm router) {
        forms.router = router;
        each(row.forms.t, TForm{}, [&](TForm t) {
          forms.t = t;
          visit(forms);
        });
      });
    });
  });
}

template <typename P>
Work work_of(const P& p) {
  if constexpr (std::is_same_v<P, EmbedParams>) return embed_work(p);
  if constexpr (std::is_same_v<P, QkvParams>) return qkv_work(p);
  if constexpr (std::is_same_v<P, AttendParams>) return attend_work(p);
  if constexpr (std::is_same_v<P, OutParams>) return out_work(p);
  if constexpr (std::is_same_v<P, RouteParams>) return route_work(p);
  if constexpr (std::is_same_v<P, ExpertsParams>)
    return experts_work(p, static_cast<int32_t>(std::lround(expected_distinct_experts(
                               p.gate_up.num_experts, p.top_k, p.num_tokens))));
  if constexpr (std::is_same_v<P, UnembedParams>) return unembed_work(p);
}

/// What the forms of the values that step P reads and writes add to plain F32 ones, in bytes.
template <typename P>
double more_bytes(const Pass& pass, const Forms& forms) {
  const double hidden = 4.0 * pass.batch.ragged.num_tokens * pass.config.hidden;
  const double heads = 4.0 * pass.batch.ragged.num_tokens * pass.config.q_width();
  const double pair = forms.x == XForm::kF32Pair ? hidden : 0;
  const double q = forms.q == QForm::kBf16Staged ? -0.5 * heads : 0;
  const double a = forms.a == AForm::kBf16Staged ? -0.5 * heads : 0;
  const bool has_t = forms.t == TForm::kF32 && forms.router == RouterForm::kNothing;
  if constexpr (std::is_same_v<P, QkvParams>) return pair + q;
  if constexpr (std::is_same_v<P, AttendParams>) return q + a;
  if constexpr (std::is_same_v<P, OutParams>) return 2 * pair + a;
  if constexpr (std::is_same_v<P, RouteParams>) return pair - (has_t ? 0 : hidden);
  if constexpr (std::is_same_v<P, ExpertsParams>) return 2 * pair + (has_t ? 0 : pair);
  return pair;
}

template <typename P>
void run_planned(KernelChooser& kernels, const Pass& pass, const PlannedRow& planned, size_t l) {
  kernels.run(*static_cast<const Row<P>*>(planned.entries[0]), pass.params<P>(l, planned.forms));
}
void run_qkv_attend(KernelChooser& kernels, const Pass& pass, const PlannedRow& planned, size_t l) {
  run_joined(kernels, *static_cast<const Row<QkvParams>*>(planned.entries[0]),
             pass.params<QkvParams>(l, planned.forms),
             *static_cast<const Row<AttendParams>*>(planned.entries[1]),
             pass.params<AttendParams>(l, planned.forms));
}
void run_out_route(KernelChooser& kernels, const Pass& pass, const PlannedRow& planned, size_t l) {
  RouteParams route = pass.params<RouteParams>(l, planned.forms);
  route.parts = pass.act.route_parts;
  run_joined(kernels, *static_cast<const Row<OutParams>*>(planned.entries[0]),
             pass.params<OutParams>(l, planned.forms),
             *static_cast<const Row<RouteParams>*>(planned.entries[1]), route);
}

// Makes the plan for one choice of the forms that rows pass on unchanged.
class Planner {
 public:
  Planner(const Pass& pass, const KernelChooser& kernels, XForm x, L1Form l1)
      : pass_(pass), kernels_(kernels), x_(x), l1_(l1) {}

  /// The cheapest row of a step with no neighbour but in x and l1.
  template <typename P>
  std::optional<PlannedRow> alone() {
    std::optional<PlannedRow> best;
    for_each_row<P>(0, [&](const Row<P>& row, const Forms& forms, double us) {
      if (!best || us < best->predicted_us) best = planned(row, forms, us);
    });
    return best;
  }

  /// The chain of layer `l`, and its time.
  std::optional<std::pair<std::vector<PlannedRow>, double>> layer(size_t l) {
    rows_.clear();
    hops_.clear();
    layer_ = l;
    for_each_layer_step([&]<typename P>() { add_hops<P>(); });
    if (kernels_.device() == DeviceKind::kCpu) add_joined();
    const auto chain = cheapest_chain(hops_, kLastBorder);
    if (!chain) return std::nullopt;
    std::vector<PlannedRow> rows;
    for (const size_t hop : chain->hops) rows.push_back(rows_[hop]);
    return std::pair(std::move(rows), chain->us);
  }

 private:
  template <typename P>
  bool may_run(const Row<P>& row) const {
    return row.device == kernels_.device() && (row.needs & kernels_.features()) == row.needs;
  }

  template <typename P, typename Visit>
  void for_each_row(size_t l, Visit&& visit) {
    for (const Row<P>& row : table_of<P>()) {
      if (!may_run(row)) continue;
      for_each_forms(row, x_, l1_, [&](const Forms& forms) {
        const P params = pass_.params<P>(l, forms);
        if (!kernels_.choice().permits(row, params) || row.refuses(params) != nullptr) return;
        const double more_us = 1e-3 * more_bytes<P>(pass_, forms) / kernels_.rates().read_gb_s;
        visit(row, forms, std::max(0.0, row.predict_us(params, kernels_.rates()) + more_us));
      });
    }
  }

  template <typename P>
  PlannedRow planned(const Row<P>& row, const Forms& forms, double us) const {
    Work work = work_of(pass_.params<P>(layer_, forms));
    if (first_covered(row) == StepKind::kRoute && StepOf<P>::value == StepKind::kExperts)
      work += work_of(pass_.params<RouteParams>(layer_, forms));
    const DeviceRates& rates = kernels_.rates();
    return {.row = row_info(row),
            .first = first_covered(row),
            .last = StepOf<P>::value,
            .forms = forms,
            .predicted_us = us,
            .limit_us = limit_us(work, rates.read_gb_s, rates.bf16_gflops),
            .run = run_planned<P>,
            .entries = {&row}};
  }

  template <typename P>
  void add_hops() {
    for_each_row<P>(layer_, [&](const Row<P>& row, const Forms& forms, double us) {
      const bool routes = first_covered(row) != StepOf<P>::value;
      const int32_t to = kBorderBehind<P>, from = routes ? to - 2 : to - 1;
      add({.from = from,
           .to = to,
           .from_state = state_before<P>(forms),
           .to_state = state_behind<P>(forms),
           .us = us},
          planned(row, forms, us));
    });
  }
  /// The form of what a row of step P finds.
  template <typename P>
  static int32_t state_before(const Forms& forms) {
    if constexpr (std::is_same_v<P, AttendParams>) return state_behind<QkvParams>(forms);
    if constexpr (std::is_same_v<P, OutParams>) return state_behind<AttendParams>(forms);
    if constexpr (std::is_same_v<P, RouteParams>) return state_behind<OutParams>(forms);
    if constexpr (std::is_same_v<P, ExpertsParams>)
      return forms.router == RouterForm::kSums ? state_behind<OutParams>(forms)
                                               : state_behind<RouteParams>(forms);
    return 0;
  }
  void add(Hop hop, PlannedRow planned) {
    hops_.push_back(hop);
    rows_.push_back(std::move(planned));
  }

  // Rows of two steps that run together are one hop over both.
  void add_joined() {
    const int32_t num_tokens = pass_.batch.ragged.num_tokens;
    const auto join = [&]<typename P, typename Q>(auto can, auto run) {
      for_each_row<P>(layer_, [&](const Row<P>& first, const Forms& forms, double first_us) {
        for_each_row<Q>(layer_, [&](const Row<Q>& second, const Forms& others, double second_us) {
          if (forms != others || !can(first, second)) return;
          PlannedRow both = planned(first, forms, first_us);
          both.last = StepOf<Q>::value;
          both.runs_with = second.name;
          both.predicted_us = std::max(0.0, first_us + second_us - kBarrierUs);
          both.limit_us += planned(second, forms, second_us).limit_us;
          both.run = run;
          both.entries[1] = &second;
          add({.from = kBorderBehind<P> - 1, .to = kBorderBehind<Q>, .us = both.predicted_us},
              both);
        });
      });
    };
    join.template operator()<QkvParams, AttendParams>(
        [&](const auto& qkv, const auto& attend) { return can_join(qkv, attend, num_tokens); },
        run_qkv_attend);
    join.template operator()<OutParams, RouteParams>(
        [&](const auto& out, const auto& route) {
          return can_join(out, route, num_tokens, pass_.config.hidden);
        },
        run_out_route);
  }

  const Pass& pass_;
  const KernelChooser& kernels_;
  XForm x_;
  L1Form l1_;
  size_t layer_ = 0;
  std::vector<Hop> hops_;
  std::vector<PlannedRow> rows_;
};

bool same_kind(const Pass& pass, size_t a, size_t b) {
  const auto alike = [](const PackedMatrix& x, const PackedMatrix& y) {
    return x.format == y.format && x.rows == y.rows && x.cols == y.cols &&
           x.num_experts == y.num_experts;
  };
  const LayerWeights &x = pass.weights.layers[a], &y = pass.weights.layers[b];
  return pass.config.is_window[a] == pass.config.is_window[b] && alike(x.qkv, y.qkv) &&
         alike(x.out, y.out) && alike(x.router, y.router) && alike(x.gate_up, y.gate_up) &&
         alike(x.down, y.down);
}

// Why there is no plan: the first step none of whose rows can run, or whose forms do not meet.
tl::unexpected<Error> no_plan(const Pass& pass, const KernelChooser& kernels) {
  std::optional<Error> error;
  const auto look = [&]<typename P>(size_t l) {
    if (error) return;
    const Row<P>* refused = nullptr;
    std::string why;
    for (const Row<P>& row : table_of<P>()) {
      const P params = pass.params<P>(l, first_forms(row));
      if (!kernels.choice().permits(row, params)) continue;
      if (row.device != kernels.device()) {
        if (refused == nullptr) refused = &row, why = "it is for another device";
      } else if ((row.needs & kernels.features()) != row.needs) {
        refused = &row, why = kernels.missing(row.needs);
      } else if (const char* reason = row.refuses(params)) {
        refused = &row, why = reason;
      } else {
        return;  // this one can run
      }
    }
    const bool is_forced = kernels.choice().forced(StepOf<P>::value).has_value();
    const std::string step = step_name(StepOf<P>::value);
    const std::string hint = "`moxie kernels` shows what this machine can run";
    error = is_forced && refused != nullptr
                ? Error{why, fmt::format("--kernel {}={}", step, refused->name), hint}
                : Error{"no row accepts these formats on this machine", "step " + step, hint};
  };
  look.template operator()<EmbedParams>(0);
  for (size_t l = 0; l < pass.weights.layers.size(); ++l)
    for_each_layer_step([&]<typename P>() { look.template operator()<P>(l); });
  look.template operator()<UnembedParams>(0);
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

Result<PassPlan> make_plan(const Pass& pass, const KernelChooser& kernels) {
  std::optional<PassPlan> best;
  const bool on_cuda = kernels.device() == DeviceKind::kCuda;
  for (const XForm x : {XForm::kF32, XForm::kF32Pair}) {
    for (const L1Form l1 : {L1Form::kShared, L1Form::kL1}) {
      if (!on_cuda && (x != XForm::kF32 || l1 != L1Form::kShared)) continue;
      Planner planner(pass, kernels, x, l1);
      auto embed = planner.alone<EmbedParams>();
      auto unembed = planner.alone<UnembedParams>();
      if (!embed || !unembed) continue;
      PassPlan plan{.embed = std::move(*embed), .unembed = std::move(*unembed)};
      plan.predicted_us = plan.embed.predicted_us + plan.unembed.predicted_us;
      std::vector<size_t> first_of_kind;
      std::vector<double> us_of_kind;
      bool is_whole = true;
      for (size_t l = 0; is_whole && l < pass.weights.layers.size(); ++l) {
        size_t kind = 0;
        while (kind < first_of_kind.size() && !same_kind(pass, first_of_kind[kind], l)) ++kind;
        if (kind == first_of_kind.size()) {
          auto chain = planner.layer(l);
          if (!chain) {
            is_whole = false;
            break;
          }
          first_of_kind.push_back(l);
          us_of_kind.push_back(chain->second);
          plan.chains.push_back(std::move(chain->first));
        }
        plan.chain_of_layer.push_back(static_cast<uint8_t>(kind));
        plan.predicted_us += us_of_kind[kind];
      }
      if (is_whole && (!best || plan.predicted_us < best->predicted_us)) best = std::move(plan);
    }
  }
  if (!best) return no_plan(pass, kernels);
  return std::move(*best);
}

}  // namespace moxie
