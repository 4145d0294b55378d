// A runner and a drafter that note the time around another's, and windows divided by their marks.
#include "lab/launch_marks.h"

#include <algorithm>
#include <deque>
#include <string_view>

#include "kernels/sample/sample.h"
#include "kernels/unembed/unembed.h"
#include "lab/kernel_table.h"

namespace moxie {
namespace {

int64_t now_ns() { return clock_ns(Clock::now()); }

class MarkedRunner : public StepRunner {
 public:
  MarkedRunner(std::unique_ptr<StepRunner> runner, LaunchMarks* marks)
      : runner_(std::move(runner)), marks_(marks) {}

  const Limits& limits() const override { return runner_->limits(); }
  KvCache& kv() override { return runner_->kv(); }
  void build(std::span<const Chunk> chunks, InLoop in_loop, HostArrays* arrays) override {
    runner_->build(chunks, in_loop, arrays);
  }
  Status run(const HostArrays& arrays) override {
    // One row of logits a sequence, and one more a draft.
    const bool has_drafts = arrays.logit_rows.size() + 1 > arrays.row_offsets.size();
    begin({.kind = has_drafts ? MarkKind::kVerify : MarkKind::kPlain});
    Status status = runner_->run(arrays);
    if (!status) end();  // nothing is drawn
    return status;
  }
  Status sample(std::span<const SampleRequest> requests, std::span<SampleAnswer> answers) override {
    Status status = runner_->sample(requests, answers);
    end();
    return status;
  }
  Status launch(const HostArrays& arrays, InLoop in_loop,
                std::span<const SampleRequest> requests) override {
    begin({.in_loop = true});
    Status status = runner_->launch(arrays, in_loop, requests);
    if (!status) end();
    return status;
  }
  Result<bool> take(std::span<SampleAnswer> answers) override {
    auto taken = runner_->take(answers);
    if (taken && *taken) end();
    return taken;
  }
  void leave_loop() override {
    runner_->leave_loop();
    while (!open_.empty()) end();
  }
  Status synchronize() override { return runner_->synchronize(); }

 private:
  void begin(LaunchMark mark) {
    open_.push_back(marks_->size());
    mark.begin_ns = now_ns();
    marks_->push_back(mark);
  }
  void end() {
    (*marks_)[open_.front()].end_ns = now_ns();
    open_.pop_front();
  }

  const std::unique_ptr<StepRunner> runner_;
  LaunchMarks* const marks_;
  std::deque<size_t> open_;  // marks of launches under way, the oldest first
};

class MarkedDrafter : public Drafter {
 public:
  MarkedDrafter(Drafter& drafter, LaunchMarks* marks) : drafter_(drafter), marks_(marks) {}

  void propose(const Ask& ask) override { propose_all({&ask, 1}); }
  void propose_all(std::span<const Ask> asks) override {
    const int64_t begin = now_ns();
    drafter_.propose_all(asks);
    marks_->push_back({.kind = MarkKind::kDraft, .begin_ns = begin, .end_ns = now_ns()});
  }
  void observe(RequestId request, std::span<const int32_t> tokens, int32_t num_accepted) override {
    drafter_.observe(request, tokens, num_accepted);
  }
  bool shares_device() const override { return drafter_.shares_device(); }
  bool may_miss_launches() const override { return drafter_.may_miss_launches(); }
  void forget(RequestId request) override { drafter_.forget(request); }

 private:
  Drafter& drafter_;
  LaunchMarks* const marks_;
};

// Finds in a log where heads follow launches.
class Followings {
 public:
  explicit Followings(const ActivityLog& log) {
    for (const ActivityLog::Symbol& symbol : log.symbols) {
      const std::string_view step = place_of(symbol.name, symbol.op).step;
      is_unembed_.push_back(step == Op<UnembedParams>::info.name);
      is_sample_.push_back(step == Op<SampleParams>::info.name);
    }
    for (const Activity& a : log.activities) in_order_.push_back(&a);
    std::sort(in_order_.begin(), in_order_.end(),
              [](const Activity* a, const Activity* b) { return a->start_ns < b->start_ns; });
  }
  // Between a launch's unembed and its draw, of a launch that has [from, to) alone.
  int64_t ns(int64_t from, int64_t to) const {
    auto at = std::lower_bound(in_order_.begin(), in_order_.end(), from,
                               [](const Activity* a, int64_t t) { return a->start_ns < t; });
    const auto is_in = [&] { return at != in_order_.end() && (*at)->start_ns < to; };
    const auto symbol = [&] { return static_cast<size_t>((*at)->symbol); };
    while (is_in() && !is_unembed_[symbol()]) ++at;
    int64_t begin = to;
    for (; is_in() && is_unembed_[symbol()]; ++at) begin = std::min((*at)->end_ns, to);
    while (is_in() && !is_sample_[symbol()]) ++at;
    return std::max<int64_t>(0, (is_in() ? (*at)->start_ns : to) - begin);
  }

 private:
  std::vector<bool> is_unembed_, is_sample_;  // by symbol
  std::vector<const Activity*> in_order_;
};

}  // namespace

std::unique_ptr<StepRunner> mark_launches(std::unique_ptr<StepRunner> runner, LaunchMarks* marks) {
  return std::make_unique<MarkedRunner>(std::move(runner), marks);
}

std::unique_ptr<Drafter> mark_drafts(Drafter& drafter, LaunchMarks* marks) {
  return std::make_unique<MarkedDrafter>(drafter, marks);
}

void DraftShares::add(const DraftShares& more) {
  draft_ns += more.draft_ns;
  verify_ns += more.verify_ns;
  plain_ns += more.plain_ns;
  other_ns += more.other_ns;
  num_proposals += more.num_proposals;
  num_verify += more.num_verify;
  num_plain += more.num_plain;
}

DraftShares share_by_drafts(std::span<const LaunchMark> marks, const ActivityLog& log,
                            int64_t begin_ns, int64_t end_ns) {
  const Followings followings(log);
  DraftShares shares;
  int64_t covered = begin_ns;
  for (const LaunchMark& mark : marks) {
    if (mark.begin_ns < begin_ns || mark.begin_ns >= end_ns) continue;
    const int64_t start = std::max(mark.begin_ns, covered), end = std::min(mark.end_ns, end_ns);
    shares.other_ns += start - covered;
    const int64_t ns = std::max<int64_t>(0, end - start);
    covered = std::max(start, end);
    if (mark.kind == MarkKind::kDraft) {
      ++shares.num_proposals;
      shares.draft_ns += ns;
      continue;
    }
    const int64_t follows = mark.in_loop ? 0 : followings.ns(start, end);
    const bool verifies = mark.kind == MarkKind::kVerify;
    ++(verifies ? shares.num_verify : shares.num_plain);
    shares.draft_ns += follows;
    (verifies ? shares.verify_ns : shares.plain_ns) += ns - follows;
  }
  shares.other_ns += std::max<int64_t>(0, end_ns - covered);
  return shares;
}

}  // namespace moxie
