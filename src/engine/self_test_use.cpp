// Which chains there are to prove, and what follows from a fault.
#include "engine/self_test_use.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <map>

#include "core/clock.h"
#include "core/device_cpu.h"
#include "engine/tuning.h"
#include "kernels/gemm/mma_tiles.h"

namespace moxie {
namespace {

constexpr const char* kReport = "please report it with the output of `moxie doctor --self-test`";

std::string hash_of(const std::string& text) {
  const XXH128_hash_t hash = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

// Rows of a plan in their order, without taps, a layer of each kind.
template <typename Visit>
void for_each_row(const PassPlan& plan, const std::vector<size_t>& kinds, Visit&& visit) {
  visit(plan.embed);
  for (const size_t kind : kinds) {
    for (const PlannedRow& row : plan.layer(kind))
      if (&row.row.op() != &Op<TapParams>::info) visit(row);
  }
  visit(plan.unembed);
}

// A chain in a launch in which it is proven.
struct Place {
  SelfTestLaunch launch;
  Bracket bracket;
  std::string hash;
  std::vector<std::string> rows;
};

class Prover {
 public:
  explicit Prover(const SelfTestRequest& request)
      : request_(request),
        kinds_(kinds_of_layers(request.config, request.formats)),
        shapes_(self_test_shapes(request.config, request.formats)),
        choice_(request.kernels.choice()) {}

  Result<SelfTestResult> run() {
    read();
    for (const KeptFault& fault : kept_.faults) {
      if (fault.shapes != hash_of(shapes_)) continue;
      const bool is_out = put_out(fault.row);
      use_.faults.push_back({fault, !is_out, true});
    }
    while (true) {
      auto again = prove();
      if (!again) return fail(std::move(again.error()));
      if (!*again) break;
    }
    write();
    say();
    if (auto sound = strict(); !sound) return fail(std::move(sound.error()));
    return SelfTestResult{std::move(use_), choice_};
  }

 private:
  bool only_shows() const { return request_.device == nullptr; }

  void read() {
    use_.is_on = true;
    use_.file = request_.options.file.empty() ? default_self_test_path() : request_.options.file;
    kept_.key = {.device = request_.properties.name,
                 .driver = device_driver(request_.kernels.device()),
                 .features = feature_names(request_.kernels.features()),
                 .binary = this_binary(request_.options.commit)};
    if (use_.file.empty()) return;
    auto tests = read_self_tests(use_.file);
    if (!tests)
      return log_warn("what earlier self-tests found is lost: " + tests.error().message());
    if (*tests) others_ = std::move(**tests);
    for (const KeptSelfTest& test : others_)
      if (test.key == kept_.key) kept_ = test;
    proven_.insert(kept_.proven.begin(), kept_.proven.end());
  }

  void write() {
    if (use_.num_tested == 0 || use_.file.empty()) return;
    replace_self_test(&others_, kept_);
    if (auto written = write_self_tests(use_.file, others_); !written)
      log_warn("the next start tests again: " + written.error().message());
  }

  // A model that plans with a choice of rows.
  struct Plans {
    KernelChooser kernels;
    GptOss model;
    Plans(const SelfTestRequest& r, KernelChoice choice)
        : kernels(r.kernels.device(), r.kernels.features(), std::move(choice), r.kernels.rates()),
          model(r.config, r.formats, {}, kernels, r.use_sinks, r.taps) {
      if (r.costs) model.set_row_costs(r.costs, r.workspace_bytes);
    }
  };

  bool can_plan(const KernelChoice& choice) const {
    return Plans(request_, choice)
        .model.check_rows(request_.kv_dtype, request_.max_tokens)
        .has_value();
  }
  // Whether there are plans without the row; then none has it from now on.
  bool put_out(const std::string& row) {
    KernelChoice without = choice_;
    without.exclude(row);
    if (!can_plan(without)) return false;
    choice_ = std::move(without);
    return true;
  }

  std::string chain_text(const PassPlan& plan) const {
    std::string text;
    for_each_row(plan, kinds_, [&](const PlannedRow& row) {
      text += fmt::format("{} {} {}\n", row.row.name, forms_text(row.forms), row.tile_columns);
    });
    return text;
  }

  // What sequences share a launch.
  enum class Kind : uint8_t { kOne, kStreams, kMixed };
  static int32_t seqs_of(Kind kind, int32_t n) {
    return kind == Kind::kOne ? 1 : kind == Kind::kStreams ? n : std::min(3, n);
  }
  static constexpr int32_t kMixedSeqs[] = {4, 32};

  // Every chain of the plans, once for a token, for 2 to 16 (5 where they have it), and for more;
  // in launches of one sequence, of one token a sequence, and of both where that is another chain.
  std::vector<Place> places(const GptOss& model) const {
    const bool is_cpu = request_.kernels.device() == DeviceKind::kCpu;
    std::vector<Place> list;
    std::map<std::pair<Kind, std::string>, int> greatest;  // class of launches
    const auto add = [&](int32_t n, int32_t seqs, Kind kind) {
      const int of_class = n == 1 ? 0 : n <= 16 ? 1 : 2;
      const Bracket bracket = bracket_of(n, seqs, seqs);
      const auto plan = model.plan_for(bracket, request_.kv_dtype);
      if (!plan) return;  // only of mixed launches: can_plan() made the others
      const std::string chain = chain_text(**plan);
      for (const Kind known : {Kind::kOne, Kind::kStreams})
        if (kind == Kind::kMixed && greatest.contains({known, chain})) return;
      const auto [at, is_new] = greatest.try_emplace({kind, chain}, -1);
      if (at->second >= of_class) return;
      at->second = of_class;
      int32_t tokens = n < 5 && has_chain(model, 5, kind, chain) ? 5 : n;
      if (of_class == 0) tokens = 1;
      if (of_class == 2) tokens = is_cpu ? kSelfTestTokens : kSelfTestCudaTokens;
      list.push_back(place({tokens, seqs_of(kind, tokens)}, bracket, **plan));
    };
    for (int32_t n = 1; n <= request_.max_tokens; ++n) {
      if (n != bracket_floor(n)) continue;
      add(n, 1, Kind::kOne);
      if (n > 1) add(n, n, Kind::kStreams);
    }
    for (int32_t n = 1; n <= request_.max_tokens; ++n)
      for (const int32_t seqs : kMixedSeqs)
        if (n == bracket_floor(n) && seqs < n) add(n, seqs, Kind::kMixed);
    return list;
  }
  bool has_chain(const GptOss& model, int32_t n, Kind kind, const std::string& chain) const {
    if (n > request_.max_tokens || kind == Kind::kMixed) return false;
    const int32_t seqs = seqs_of(kind, n);
    const auto plan = model.plan_for(bracket_of(n, seqs, seqs), request_.kv_dtype);
    return plan && chain_text(**plan) == chain;
  }
  Place place(const SelfTestLaunch& launch, const Bracket& bracket, const PassPlan& plan) const {
    Place one{.launch = launch, .bracket = bracket};
    one.hash = hash_of(fmt::format("{}\n{}\ncache {} sinks {} {}\n{}", shapes_, launch.text(),
                                   dtype_name(request_.kv_dtype), request_.use_sinks,
                                   dtype_name(request_.kernels.activation()), chain_text(plan)));
    for_each_row(plan, kinds_, [&](const PlannedRow& row) { one.rows.push_back(row.row.name); });
    return one;
  }

  // One round: proves what is not proven yet. True if a row was put out, so that plans changed.
  Result<bool> prove() {
    const Plans plans(request_, choice_);
    use_.planned.clear(), use_.unproven.clear(), use_.untested.clear();
    const std::vector<Place> list = places(plans.model);
    use_.num_chains = list.size();
    for (const Place& place : list) {
      use_.planned.insert(place.rows.begin(), place.rows.end());
      if (proven_.contains(place.hash)) continue;
      const bool is_known = std::ranges::find(failed_, place.hash) != failed_.end();
      Result<Tried> tried = Tried{.is_proven = false, .is_known = true};
      if (!is_known && !only_shows()) {
        tried = try_place(plans.model, place);
        if (!tried) return fail(std::move(tried.error()));
      }
      if (tried->is_proven) continue;
      if (tried->is_out) return true;
      if (tried->is_known && only_shows())
        use_.untested.push_back(place.launch.text() + ": not run on this machine yet");
      use_.unproven.insert(place.rows.begin(), place.rows.end());
    }
    return prove_draw(plans.kernels);
  }

  struct Tried {
    bool is_proven = false, is_out = false, is_known = false;
  };

  // Runs a chain, and finds what is at fault if it fails.
  Result<Tried> try_place(const GptOss& model, const Place& place) {
    const auto plan = model.plan_for(place.bracket, request_.kv_dtype);
    CHECK(plan.has_value());
    auto outcome = run_chain(**plan, place);
    if (!outcome) return fail(std::move(outcome.error()));
    if (outcome->fault) return take_fault(*outcome->fault, place);
    if (!outcome->refusal.empty()) {
      use_.untested.push_back(place.launch.text() + ": " + outcome->refusal);
      return Tried{};
    }
    keep_proven(place.hash);
    return Tried{.is_proven = true};
  }

  void keep_proven(const std::string& hash) {
    if (proven_.insert(hash).second) kept_.proven.push_back(hash);
  }

  // The tiles of the real launch. The test's few tokens would have others, which rows may refuse.
  PassPlan with_tiles(PassPlan plan, const Bracket& bracket) const {
    const GptOssConfig& c = request_.config;
    const double mean = gemm::mean_pairs(bracket.num_tokens, c.top_k, c.num_experts);
    for (auto& chain : plan.chains)
      for (PlannedRow& row : chain)
        if (row.row.tile_rows != 0 && row.tile_columns == 0 && request_.kernels.tile().columns == 0)
          row.tile_columns =
              gemm::choose_tile_of(row.row.tile_rows, mean, row.row.is_batch_invariant,
                                   tile_device_of(request_.kernels.rates()))
                  .columns;
    return plan;
  }

  // In the first test model that its rows take.
  Result<SelfTestOutcome> run_chain(const PassPlan& planned, const Place& place) {
    const PassPlan plan = with_tiles(planned, place.bracket);
    const auto start = Clock::now();
    ++use_.num_tested;
    SelfTestOutcome outcome;
    for (const TestSizes sizes : {TestSizes::kNarrow, TestSizes::kWide}) {
      auto test = test_of(sizes);
      if (!test) return fail(std::move(test.error()));
      std::vector<SelfTestLaunch> launches{place.launch};
      // Some rows want many tokens an expert.
      if (const auto [tokens, seqs] = place.launch; tokens == kSelfTestCudaTokens)
        launches.push_back({kSelfTestGroupTokens, seqs == tokens ? kSelfTestGroupTokens : seqs});
      for (const SelfTestLaunch& launch : launches) {
        auto found = (*test)->run(plan, launch);
        if (!found) return fail(std::move(found.error()));
        if (outcome.refusal.empty() || found->refusal.empty()) outcome = std::move(*found);
        if (outcome.refusal.empty()) break;
      }
      if (outcome.refusal.empty()) break;
    }
    use_.seconds += seconds_since(start);
    return outcome;
  }

  Result<SelfTest*> test_of(TestSizes sizes) {
    auto& test = tests_[static_cast<size_t>(sizes)];
    if (test == nullptr) {
      const bool is_cpu = request_.kernels.device() == DeviceKind::kCpu;
      // The reference's. A CPU waits for the test, and runs both.
      if (!is_cpu && host_ == nullptr) host_ = make_cpu_device();
      auto made = SelfTest::create({.device = *request_.device,
                                    .features = request_.kernels.features(),
                                    .choice = request_.kernels.choice(),
                                    .config = request_.config,
                                    .formats = request_.formats,
                                    .kv_dtype = request_.kv_dtype,
                                    .use_sinks = request_.use_sinks,
                                    .sizes = sizes,
                                    .max_tokens = is_cpu ? kSelfTestTokens : kSelfTestGroupTokens,
                                    .compares_once = true},
                                   is_cpu ? *request_.device : *host_);
      if (!made) return fail(std::move(made.error()));
      test = std::move(*made);
    }
    return test.get();
  }

  // Puts the row at fault out. Of several that answer together it is the one without which the
  // launch is proven, the last of them first.
  Result<Tried> take_fault(const SelfTestFault& fault, const Place& place) {
    SelfTestUse::Fault found;
    found.launch = place.launch.text();
    found.what = fault.times < 1e9
                     ? fmt::format("{}: {:.3g} times the tolerance", fault.what, fault.times)
                     : fault.what;
    found.shapes = hash_of(shapes_);
    found.row = fault.rows.back();
    if (fault.breaks_device) {
      // Only a new process has a device again. It must not meet the row.
      found.beside.assign(fault.rows.begin(), fault.rows.end() - 1);
      kept_.faults.push_back(found);
      write();
      return fail(fmt::format("{} has broken the device: {}", found.row, found.what), "--self-test",
                  use_.file.empty() ? "force another row with --kernel"
                                    : "start again: the next start leaves the row out (" +
                                          use_.file + "); " + kReport);
    }
    for (auto row = fault.rows.rbegin(); fault.rows.size() > 1 && row != fault.rows.rend(); ++row) {
      KernelChoice without = choice_;
      without.exclude(*row);
      if (!can_plan(without)) continue;
      const Plans plans(request_, without);
      const auto plan = plans.model.plan_for(place.bracket, request_.kv_dtype);
      if (!plan) continue;
      const auto outcome = run_chain(**plan, place);
      if (!outcome) return fail(outcome.error());
      if (outcome->fault || !outcome->refusal.empty()) continue;
      found.row = *row;
      break;
    }
    for (const std::string& row : fault.rows)
      if (row != found.row) found.beside.push_back(row);
    const bool is_out = put_out(found.row);
    found.stays = !is_out;
    if (is_out) kept_.faults.push_back(found);
    failed_.push_back(place.hash);
    const auto is_it = [&](const SelfTestUse::Fault& fault) { return fault.row == found.row; };
    if (std::ranges::none_of(use_.faults, is_it)) use_.faults.push_back(std::move(found));
    if (auto sound = strict(); !sound) {
      write();
      say();
      return fail(std::move(sound.error()));
    }
    return Tried{.is_out = is_out};
  }

  // The row that draws, in both kinds of launches.
  Result<bool> prove_draw(const KernelChooser& kernels) {
    for (const bool all_plain : {false, true}) {
      const SampleParams params{.launch = kernels.launch(),
                                .num_rows = 8,
                                .vocab = request_.config.vocab,
                                .all_plain = all_plain};
      const auto row = kernels.select(params);
      if (!row) return fail(row.error());
      Place place{.launch = {.num_tokens = 8, .num_seqs = 8}};
      place.rows = {(*row)->name};
      place.hash = hash_of(fmt::format("{} {}", (*row)->name, all_plain));
      ++use_.num_chains;
      use_.planned.insert((*row)->name);
      if (proven_.contains(place.hash)) continue;
      if (only_shows() || std::ranges::find(failed_, place.hash) != failed_.end()) {
        use_.unproven.insert((*row)->name);
        continue;
      }
      const auto start = Clock::now();
      auto test = test_of(TestSizes::kNarrow);
      if (!test) return fail(std::move(test.error()));
      ++use_.num_tested;
      auto outcome = (*test)->draw(**row, std::min(request_.config.vocab, 1003), all_plain);
      use_.seconds += seconds_since(start);
      if (!outcome) return fail(std::move(outcome.error()));
      if (outcome->fault) {
        auto tried = take_fault(*outcome->fault, place);
        if (!tried) return fail(std::move(tried.error()));
        if (tried->is_out) return true;
        use_.unproven.insert((*row)->name);
      } else if (!outcome->refusal.empty()) {
        use_.untested.push_back("draws: " + outcome->refusal);
        use_.unproven.insert((*row)->name);
      } else {
        keep_proven(place.hash);
      }
    }
    return false;
  }

  void say() const {
    for (const SelfTestUse::Fault& fault : use_.faults) {
      std::string beside;
      if (!fault.beside.empty())
        beside = fmt::format(" (or {}, which stands beside it)", fmt::join(fault.beside, ", "));
      log_error(fmt::format(
          "self-test: {}{} gives wrong results on this machine{}: in a launch of {}, {}. {}; {}",
          fault.row, beside, fault.is_kept ? ", as an earlier start found" : "", fault.launch,
          fault.what,
          fault.stays ? "NO OTHER CHAIN CAN RUN, so that it stays in the plan: answers are not to "
                        "be trusted"
                      : "It is out of the plan, and the next best chain is taken",
          kReport));
    }
    for (const std::string& what : use_.untested)
      if (!only_shows()) log_warn("self-test: not proven on this machine: " + what);
  }

  Status strict() const {
    if (request_.options.mode != "strict" || only_shows()) return {};
    if (!use_.faults.empty())
      return fail(fmt::format("{} failed on this machine", use_.faults.front().row),
                  "--self-test strict", "--self-test auto runs without it");
    if (!use_.all_proven())
      return fail("not every chain is proven on this machine: " +
                      (use_.untested.empty() ? *use_.unproven.begin() : use_.untested.front()),
                  "--self-test strict", "--self-test auto runs them all the same");
    return {};
  }

  const SelfTestRequest& request_;
  std::vector<size_t> kinds_;
  std::string shapes_;
  KernelChoice choice_;
  SelfTestUse use_;
  std::vector<KeptSelfTest> others_;  // all of the file
  KeptSelfTest kept_;
  std::set<std::string> proven_;
  std::vector<std::string> failed_;  // hashes of places whose row stays
  std::unique_ptr<Device> host_;     // beside a GPU
  std::unique_ptr<SelfTest> tests_[2];
};

}  // namespace

std::optional<bool> SelfTestUse::proven(const std::string& row) const {
  if (!is_on) return std::nullopt;
  return planned.contains(row) && !unproven.contains(row);
}

std::string SelfTestUse::text() const {
  if (!is_on) return "off";
  std::string line;
  if (all_proven())
    line = fmt::format("all {} chains proven on this machine", num_chains);
  else
    line = fmt::format("NOT PROVEN ON THIS MACHINE: {}", fmt::join(unproven, ", "));
  line += num_tested > 0 ? fmt::format(", {} tested in {:.2f} s", num_tested, seconds)
                         : ", by earlier starts";
  std::set<std::string> out;
  for (const Fault& fault : faults)
    if (!fault.stays) out.insert(fault.row);
  if (!out.empty()) line += fmt::format("; failed and left out: {}", fmt::join(out, ", "));
  return line;
}

Result<SelfTestResult> run_self_test(const SelfTestRequest& request) {
  if (request.options.mode == "off") return SelfTestResult{{}, request.kernels.choice()};
  if (request.options.mode != "auto" && request.options.mode != "strict")
    return fail("unknown value '" + request.options.mode + "'", "--self-test", "auto, off, strict");
  return Prover(request).run();
}

}  // namespace moxie
