// When drafting and which launches ran, as the host sees it: from giving work to the device to
// having its results. With drafts the host waits for both, so that what the device does between the
// two belongs to the mark, and a window of a profile can be divided by what drafts have to do with
// it. A head follows a launch behind the launch's last kernel of `unembed`, until the tokens are
// drawn: that is drafting, too.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/drafter.h"
#include "engine/step_runner.h"
#include "lab/activity.h"

namespace moxie {

enum class MarkKind : uint8_t {
  kDraft,   ///< a drafter proposes for all requests of a launch
  kVerify,  ///< a launch in which a request has drafts
  kPlain,   ///< a launch without drafts
};

struct LaunchMark {
  MarkKind kind = MarkKind::kPlain;
  bool in_loop = false;              ///< a launch of the decode loop, which no head follows
  int64_t begin_ns = 0, end_ns = 0;  ///< of Clock
};
using LaunchMarks = std::vector<LaunchMark>;

/// Runs launches by `runner` and appends a mark for each to `marks`, in the order of their begins.
/// Launches must run one after another, but in the decode loop.
std::unique_ptr<StepRunner> mark_launches(std::unique_ptr<StepRunner> runner, LaunchMarks* marks);

/// Drafts by `drafter`, and appends a mark each time.
std::unique_ptr<Drafter> mark_drafts(Drafter& drafter, LaunchMarks* marks);

/// A window divided; nanoseconds, waiting included.
struct DraftShares {
  int64_t draft_ns = 0, verify_ns = 0, plain_ns = 0;
  int64_t other_ns = 0;  ///< the host between launches
  int64_t num_proposals = 0, num_verify = 0, num_plain = 0;
  void add(const DraftShares& more);
};
/// `marks` in the order of their begins; where they overlap, a moment belongs to the first.
DraftShares share_by_drafts(std::span<const LaunchMark> marks, const ActivityLog& log,
                            int64_t begin_ns, int64_t end_ns);

}  // namespace moxie
