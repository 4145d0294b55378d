// The list of all operations: to add one, include its header and add a line, and a line for its
// tester in testing/op_testers.h.
#include "kernels/attend/attend.h"
#include "kernels/embed/embed.h"
#include "kernels/experts/experts.h"
#include "kernels/gate/gate.h"
#include "kernels/gather/gather.h"
#include "kernels/moe_fp8/moe_fp8.h"
#include "kernels/out/out.h"
#include "kernels/qkv/qkv.h"
#include "kernels/reduce/reduce.h"
#include "kernels/registry.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotate/rotate.h"
#include "kernels/route/route.h"
#include "kernels/sample/sample.h"
#include "kernels/tap/tap.h"
#include "kernels/unembed/unembed.h"

namespace moxie {
namespace {

template <typename P>
constexpr OpTable table_of() {
  return {.op = &Op<P>::info, .rows = [] {
            std::vector<RowInfo> rows;
            for (const Row<P>& row : Op<P>::rows()) rows.push_back(row_info(row));
            return rows;
          }};
}

constexpr OpTable kOps[] = {
    table_of<EmbedParams>(),   table_of<QkvParams>(),    table_of<AttendParams>(),
    table_of<OutParams>(),     table_of<RouteParams>(),  table_of<ExpertsParams>(),
    table_of<UnembedParams>(), table_of<SampleParams>(), table_of<TapParams>(),
    table_of<ReduceParams>(),  table_of<GatherParams>(), table_of<RmsNormParams>(),
    table_of<GateParams>(),    table_of<RotateParams>(), table_of<MoeFp8Params>()};

}  // namespace

std::span<const OpTable> all_ops() { return kOps; }

}  // namespace moxie
