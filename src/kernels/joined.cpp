// Which rows run together, and how.
#include "kernels/joined.h"

namespace moxie {

bool can_join(const Row<QkvParams>& qkv, const Row<AttendParams>& attend, int32_t num_tokens) {
  return qkv.joint.run_with != nullptr && attend.joint.run_after != nullptr &&
         num_tokens <= kMostJoinedTokens;
}

bool can_join(const Row<OutParams>& out, const Row<RouteParams>& route, int32_t num_tokens,
              int32_t hidden) {
  return out.joint.run_with != nullptr && route.joint.part != nullptr &&
         num_tokens <= kMostJoinedTokens && has_route_parts(out.device, hidden);
}

uint64_t joined_workspace(const Row<QkvParams>& qkv_row, const QkvParams& qkv,
                          const Row<AttendParams>& attend_row, const AttendParams& attend) {
  return round_up<uint64_t>(qkv_row.workspace(qkv), 256) + attend_row.workspace(attend);
}

void run_joined(KernelChooser& kernels, const Row<QkvParams>& qkv_row, const QkvParams& qkv,
                const Row<AttendParams>& attend_row, const AttendParams& attend) {
  CHECK(attend.launch.workspace_bytes >= joined_workspace(qkv_row, qkv, attend_row, attend),
        attend_row.name);
  const uint64_t before = round_up<uint64_t>(qkv_row.workspace(qkv), 256);
  AttendParams behind = attend;
  behind.launch.workspace += before;
  behind.launch.workspace_bytes -= before;
  kernels.run_counted(qkv_row, attend_row, [&] {
    Clock::time_point border;
    qkv_row.joint.run_with(qkv, [&](const QkvTasks& tasks) {
      attend_row.joint.run_after(behind, tasks);
      border = tasks.progress.finished;
    });
    return border;
  });
}

void run_joined(KernelChooser& kernels, const Row<OutParams>& out_row, const OutParams& out,
                const Row<RouteParams>& route_row, const RouteParams& route) {
  kernels.run_counted(out_row, [&] { out_row.joint.run_with(out, {route, route_row}); });
  kernels.run(route_row, route);
}

}  // namespace moxie
