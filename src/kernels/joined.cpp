// Which rows run together, and how.
#include "kernels/joined.h"

namespace moxie {
namespace {

bool is_small(const KernelChooser& kernels, int32_t num_tokens) {
  return kernels.device() == DeviceKind::kCpu && num_tokens <= kMostJoinedTokens;
}

bool can_join(const Row<OutParams>& out, const Row<RouteParams>& route) {
  return out.joint.run_with != nullptr && route.joint.part != nullptr;
}

}  // namespace

void run_joined(KernelChooser& kernels, const QkvParams& qkv, const AttendParams& attend) {
  if (!is_small(kernels, qkv.batch.num_tokens)) {
    kernels.run(qkv);
    return kernels.run(attend);
  }
  const Row<QkvParams>& qkv_row = kernels.row_for(qkv);
  const Row<AttendParams>& attend_row = kernels.row_for(attend);
  const uint64_t before = round_up<uint64_t>(qkv_row.workspace(qkv), 256);
  if (qkv_row.joint.run_with == nullptr || attend_row.joint.run_after == nullptr) {
    kernels.run(qkv_row, qkv);
    return kernels.run(attend_row, attend);
  }
  CHECK(attend.launch.workspace_bytes >= before + attend_row.workspace(attend), attend_row.name);
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

bool joins_route(const KernelChooser& kernels, const OutParams& out, const RouteParams& route) {
  return has_route_parts(kernels.device(), route.hidden) && is_small(kernels, out.num_tokens) &&
         can_join(kernels.row_for(out), kernels.row_for(route));
}

void run_joined(KernelChooser& kernels, const OutParams& out, const RouteParams& route) {
  RouteParams alone = route;
  alone.parts = nullptr;
  if (route.parts == nullptr || !is_small(kernels, out.num_tokens)) {
    kernels.run(out);
    return kernels.run(alone);
  }
  const Row<OutParams>& out_row = kernels.row_for(out);
  const Row<RouteParams>& route_row = kernels.row_for(route);
  if (!can_join(out_row, route_row)) {
    kernels.run(out_row, out);
    return kernels.run(route_row, alone);
  }
  kernels.run_counted(out_row, [&] { out_row.joint.run_with(out, {route, route_row}); });
  kernels.run(route_row, route);
}

}  // namespace moxie
