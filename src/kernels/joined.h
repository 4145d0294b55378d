// Steps of few tokens that share a run of the pool on the CPU: threads that are done with a step
// go on with the next one's tasks while others still work, and a layer has three barriers in place
// of five or six.
//
//   qkv + attend   a task of attend waits for the heads that it reads alone
//   out + route    who has made kRoutePartColumns of x multiplies them by the router's columns
//
// Rows say what they can do together (JointOf); each is chosen, forced, counted and timed as ever.
#pragma once

#include <atomic>
#include <latch>

#include "core/threads.h"
#include "kernels/attend/attend.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/route/route.h"

namespace moxie {

/// Launches of more tokens have work enough for each step by itself.
inline constexpr int32_t kMostJoinedTokens = 8;
/// The router's products by parts are rounded in another order than by themselves, which narrower
/// models would show: there, a token's answer must not depend on how many share its launch.
inline constexpr int32_t kLeastJoinedHidden = 2048;

/// How far the products of a launch of qkv are.
struct QkvProgress {
  /// Of a KV head: the heads of its group, queries, key and value, that are not done.
  struct alignas(64) Group {
    std::latch left;
  };
  Group* groups;                    // [kv_heads]
  std::atomic<int64_t> tasks_left;  // of all
  Clock::time_point finished;       // when none was left
};

/// The products of a launch of qkv, as tasks of the pool.
struct QkvTasks {
  int64_t num_tasks;
  TaskRef task;
  const QkvProgress& progress;
  /// For all that attend reads of a KV head.
  void wait_for_head(int32_t kv_head) const { wait_for(progress.groups[kv_head].left); }
};

/// Parts of route: products of all tokens' x with some columns of the router.
struct RoutePartOf {
  const RouteParams& params;
  const Row<RouteParams>& row;
  /// Asks for the router's columns, a few KiB, while x is made.
  void read_ahead(int32_t part) const {
    const PackedMatrix& router = params.weight;
    const int64_t bytes = router.tile_bytes() * kRoutePartColumns / router.cols;
    for (int32_t tile = 0; tile < router.num_tiles(); ++tile) {
      const std::byte* at = router.tile(0, tile) + part * bytes;
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
    }
  }
  void operator()(int32_t part, int32_t first_token, int32_t num_tokens) const {
    row.joint.part(params, part, first_token, num_tokens);
  }
};

/// Whether RouteParams::parts may be used.
constexpr bool has_route_parts(DeviceKind device, int32_t hidden) {
  return device == DeviceKind::kCpu && hidden >= kLeastJoinedHidden &&
         hidden % kRoutePartColumns == 0;
}
/// Whether the rows can run in one run of the pool, in launches of so many tokens of such a model.
bool can_join(const Row<QkvParams>& qkv, const Row<AttendParams>& attend, int32_t num_tokens);
bool can_join(const Row<OutParams>& out, const Row<RouteParams>& route, int32_t num_tokens,
              int32_t hidden);

/// Scratch of both.
uint64_t joined_workspace(const Row<QkvParams>& qkv_row, const QkvParams& qkv,
                          const Row<AttendParams>& attend_row, const AttendParams& attend);

/// Run a step and then the next in one run; only rows that can_join().
void run_joined(KernelChooser& kernels, const Row<QkvParams>& qkv_row, const QkvParams& qkv,
                const Row<AttendParams>& attend_row, const AttendParams& attend);
/// With `route.parts`.
void run_joined(KernelChooser& kernels, const Row<OutParams>& out_row, const OutParams& out,
                const Row<RouteParams>& route_row, const RouteParams& route);

}  // namespace moxie
