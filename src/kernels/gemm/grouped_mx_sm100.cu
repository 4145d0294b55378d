// CUTLASS's grouped product for grouped_mx_sm100.h (CUTLASS 4.2.1 of the flashinfer 0.6.0 wheel).
// The templates are CUTLASS's; the kernel that describes the groups on the device is ours.
// Compiled for sm_100a alone.
//
// A tile is 128 slots x 256 rows of weights x 128 columns: 16 KiB of activations, and 16 KiB of
// weights that TMA widens to 32 KiB in shared memory. It has 8.4 million operations; an SM at 30
// TFLOP/s takes 0.28 us for them and reads 117 GB/s then: 17 TB/s of L2 on 148 SMs, more than L2
// gives. Tiles of 2 SMs would read less.
#include <cutlass/cutlass.h>

#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/group_array_problem_shape.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "core/cuda_launch.cuh"
#include "kernels/gemm/grouped_mx_sm100.h"
#include "kernels/scratch.h"

namespace moxie::gemm {
namespace {

using cute::_1;
using cute::_128;
using cute::_256;

using Tile = cute::Shape<_128, _256, _128>;
using Cluster = cute::Shape<_1, _1, _1>;
using Groups = cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>;
using Activations = cutlass::mx_float8_t<cutlass::float_e4m3_t>;
using Weights = cutlass::mx_float4_t<cutlass::float_e2m1_t>;
using Output = cutlass::bfloat16_t;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;

// Alignments in elements. TMA takes nibbles by 128.
constexpr int kOfActivations = 16, kOfWeights = 128, kOfOutput = 8;

using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm100, cutlass::arch::OpClassTensorOp, Tile, Cluster,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, void*, 0, Output,
    RowMajor*, kOfOutput, cutlass::epilogue::PtrArrayTmaWarpSpecialized1Sm>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm100, cutlass::arch::OpClassBlockScaledTensorOp, Activations, RowMajor*,
    kOfActivations, Weights, ColumnMajor*, kOfWeights, float, Tile, Cluster,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    cutlass::gemm::KernelPtrArrayTmaWarpSpecialized1SmMxf8f6f4Sm100>::CollectiveOp;
using Gemm = cutlass::gemm::kernel::GemmUniversal<Groups, Mainloop, Epilogue, void>;

using Problem = typename Groups::UnderlyingProblemShape;
using ActivationCode = typename Mainloop::ArrayElementA;
using WeightCode = typename Mainloop::ArrayElementB;
using Scale = typename Mainloop::ElementSF;
using ScaleConfig = typename Mainloop::Sm1xxBlkScaledConfig;
using StrideA = typename Gemm::InternalStrideA;
using StrideB = typename Gemm::InternalStrideB;
using StrideD = typename Gemm::InternalStrideD;
using LayoutA = typename Mainloop::InternalLayoutSFA;
using LayoutB = typename Mainloop::InternalLayoutSFB;
static_assert(Mainloop::TiledMma::SFVecSize == 32 && sizeof(Scale) == 1);

// The layout that the scales are written in is CUTLASS's, here for a matrix of 300 x 2,944.
constexpr bool scale_is_there(int32_t row, int32_t block) {
  const auto shape = cute::make_shape(300, 300, 2944, 1);
  const auto offset = blocked_scale_offset(row, block, 2944);
  return ScaleConfig::tile_atom_to_shape_SFA(shape)(row, 32 * block, 0) == offset &&
         ScaleConfig::tile_atom_to_shape_SFB(shape)(row, 32 * block + 31, 0) == offset;
}
static_assert(scale_is_there(0, 0) && scale_is_there(1, 3) && scale_is_there(97, 6) &&
              scale_is_there(130, 4) && scale_is_there(299, 91));

// More SMs than any device of this architecture has.
constexpr int kMostSms = 256;

// What CUTLASS reads of each group.
struct Described {
  Problem* problems;
  const ActivationCode** a;
  const WeightCode** b;
  const Scale** scales_a;
  const Scale** scales_b;
  Output** outputs;
  StrideA* strides_a;
  StrideB* strides_b;
  StrideD* strides_d;
  LayoutA* layouts_a;
  LayoutB* layouts_b;
};

struct Memory {
  Described groups;
  std::byte* of_gemm;
  uint64_t bytes;

  Memory(int32_t n, std::byte* base);
};

typename Gemm::Arguments arguments_of(const Described& groups, int32_t n, int num_sms) {
  cutlass::KernelHardwareInfo device;
  device.sm_count = num_sms;
  typename Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGrouped,
      {n, groups.problems, nullptr},
      {groups.a, groups.strides_a, groups.b, groups.strides_b, groups.scales_a, groups.layouts_a,
       groups.scales_b, groups.layouts_b},
      {{}, nullptr, nullptr, groups.outputs, groups.strides_d},
      device};
  arguments.epilogue.thread.alpha = 1.0f;
  arguments.epilogue.thread.beta = 0.0f;
  return arguments;
}

Memory::Memory(int32_t n, std::byte* base) {
  Scratch scratch(base);
  const auto take = [&]<typename T>(T*& array) { array = scratch.take<T>(n); };
  take(groups.problems);
  take(groups.a);
  take(groups.b);
  take(groups.scales_a);
  take(groups.scales_b);
  take(groups.outputs);
  take(groups.strides_a);
  take(groups.strides_b);
  take(groups.strides_d);
  take(groups.layouts_a);
  take(groups.layouts_b);
  // Descriptions for TMA are aligned to 128.
  const auto size =
      static_cast<int64_t>(Gemm::get_workspace_size(arguments_of(groups, n, kMostSms)));
  auto* at = scratch.take<std::byte>(size + 64);
  of_gemm = reinterpret_cast<std::byte*>(round_up<uint64_t>(reinterpret_cast<uint64_t>(at), 128));
  bytes = scratch.bytes();
}

struct DescribeTask {
  GroupedMx step;
  int64_t weight_code_bytes, weight_scale_bytes;  // of a group
  Described groups;
};

__global__ void describe_groups(const __grid_constant__ DescribeTask p) {
  wait_for_previous();
  launch_next();
  const GroupedMx& step = p.step;
  const int i = static_cast<int>(threadIdx.x);
  if (i >= step.most_groups) return;
  // A group beyond the last has no slots, and so no tiles.
  SlotTile group{};
  if (i < *step.num_tiles) group = step.tiles[i];
  const int32_t columns = step.activations.columns, rows = step.rows, slots = group.num_slots;
  const int64_t first_slot = group.first_slot;
  const Described& to = p.groups;
  to.problems[i] = Problem(slots, rows, columns);
  to.a[i] = reinterpret_cast<const ActivationCode*>(step.activations.codes + first_slot * columns);
  to.b[i] = reinterpret_cast<const WeightCode*>(step.weights.codes + i * p.weight_code_bytes);
  to.scales_a[i] = reinterpret_cast<const Scale*>(
      step.activations.scales +
      blocked_scale_offset(first_scale_row(i, group.first_slot), 0, columns));
  to.scales_b[i] = reinterpret_cast<const Scale*>(step.weights.scales + i * p.weight_scale_bytes);
  to.outputs[i] = reinterpret_cast<Output*>(step.outputs + first_slot * rows);
  to.strides_a[i] = StrideA(columns, _1{}, cute::_0{});
  to.strides_b[i] = StrideB(columns, _1{}, cute::_0{});
  to.strides_d[i] = StrideD(rows, _1{}, cute::_0{});
  const auto shape = cute::make_shape(slots, rows, columns, 1);
  to.layouts_a[i] = ScaleConfig::tile_atom_to_shape_SFA(shape);
  to.layouts_b[i] = ScaleConfig::tile_atom_to_shape_SFB(shape);
}

}  // namespace

uint64_t grouped_mx_bytes(int32_t most_groups) { return Memory(most_groups, nullptr).bytes; }

void grouped_mx_product(const char* row, const GroupedMx& step, Stream* stream) {
  const int32_t n = step.most_groups, columns = step.activations.columns;
  CHECK(n > 0 && n <= kMaxSortedExperts, std::to_string(n) + " groups");
  CHECK(columns % kBlockedColumns == 0 && columns == step.weights.columns,
        std::to_string(columns) + " columns");
  CHECK(step.rows % 8 == 0, std::to_string(step.rows) + " rows");
  CHECK(step.num_sms > 0 && step.num_sms <= kMostSms, std::to_string(step.num_sms) + " SMs");
  const Memory memory(n, step.memory);
  launch_kernel(row, describe_groups,
                DescribeTask{step, int64_t{step.rows} * columns / 2,
                             blocked_scale_bytes(step.rows, columns), memory.groups},
                {.grid = dim3(1), .num_threads = round_up(n, 32), .programmatic = true},
                launch_stream(stream));
  // Not programmatic: it begins after the descriptions are written.
  const auto params =
      Gemm::to_underlying_arguments(arguments_of(memory.groups, n, step.num_sms), memory.of_gemm);
  const auto kernel = cutlass::device_kernel<Gemm>;
  check_launched(allow_shared_bytes(reinterpret_cast<const void*>(kernel), Gemm::SharedStorageSize),
                 row);
  cudaLaunchConfig_t config = {};
  config.gridDim = Gemm::get_grid_shape(params);
  config.blockDim = Gemm::get_block_shape();
  config.dynamicSmemBytes = Gemm::SharedStorageSize;
  config.stream = launch_stream(stream);
  launch_noted(row, kernel, config, params);
}

}  // namespace moxie::gemm
