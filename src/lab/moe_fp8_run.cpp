// Selection by name, workspace, copies to and from a device, and the flush between timed runs.
#include "lab/moe_fp8_run.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/clock.h"
#include "core/threads.h"
#include "kernels/features.h"
#include "lab/gpu_time.h"
#include "lab/machine.h"
#include "lab/machine_gpu_read.h"

namespace moxie {

// ---- Devices ------------------------------------------------------------------------------------

Result<MoeFp8Runner> MoeFp8Runner::make(std::unique_ptr<Device> device, int num_threads) {
  MoeFp8Runner runner;
  if (device->kind() == DeviceKind::kCuda) {
    runner.gpu_.device = std::move(device);
    if (auto made = runner.gpu_.make_stream(); !made) return fail(made.error());
    device = make_cpu_device(num_threads);
  }
  runner.host_.device = std::move(device);
  if (auto made = runner.host_.make_stream(); !made) return fail(made.error());
  return runner;
}

Status MoeFp8Runner::Place::make_stream() {
  auto made = device->make_stream();
  if (!made) return fail(made.error());
  stream = std::move(*made);
  return {};
}

Status MoeFp8Runner::Place::reserve(Buffer* buffer, uint64_t bytes) {
  if (buffer->bytes() >= bytes && buffer->data() != nullptr) return {};
  *buffer = Buffer();
  auto made = device->allocate(std::max<uint64_t>(bytes, 64));
  if (!made) return fail(made.error());
  *buffer = std::move(*made);
  return {};
}

Result<MoeFp8Params> MoeFp8Runner::Place::with_launch(const Row<MoeFp8Params>& row,
                                                      MoeFp8Params params) {
  if (auto made = reserve(&workspace, row.workspace(params)); !made) return fail(made.error());
  params.launch = {.device = device->kind(),
                   .stream = stream.get(),
                   .workspace = workspace.data(),
                   .workspace_bytes = workspace.bytes()};
  return params;
}

// ---- Selection ----------------------------------------------------------------------------------

Features MoeFp8Runner::features() const {
  return on_gpu() ? cuda_features(gpu_.device->properties().compute_capability) : cpu_features();
}

Result<const Row<MoeFp8Params>*> MoeFp8Runner::row_for(const MoeFp8Params& params,
                                                       const std::string& kernel) const {
  KernelChoice choice;
  const std::string assignment = std::string(Op<MoeFp8Params>::info.name) + "=" + kernel;
  if (auto added = choice.add(assignment); !added) return fail(added.error());
  const Place& here = place();
  DeviceProperties properties = here.device->properties();
  if (here.stream->pool != nullptr) properties.num_units = here.stream->pool->num_threads();
  const DeviceKind kind = here.device->kind();
  const KernelChooser chooser(kind, features(), std::move(choice), rates_of(kind, properties));
  MoeFp8Params allowed = params;
  allowed.activation = chooser.activation();  // a row that rounds the intermediate runs if named
  return chooser.select(allowed);
}

std::vector<const Row<MoeFp8Params>*> MoeFp8Runner::rows_for(const MoeFp8Params& params) const {
  std::vector<const Row<MoeFp8Params>*> rows, references;
  for (const auto& row : Op<MoeFp8Params>::rows()) {
    if (row.device != place().device->kind() || (row.needs & ~features()) != 0 ||
        why_not(row, params) != nullptr)
      continue;
    (std::string_view(row.name).ends_with("_reference") ? references : rows).push_back(&row);
  }
  rows.insert(rows.end(), references.begin(), references.end());
  return rows;
}

// ---- Runs ---------------------------------------------------------------------------------------

Status MoeFp8Runner::run(const Row<MoeFp8Params>& row, const MoeFp8Params& params) {
  if (row.device == DeviceKind::kCuda) {
    auto uploaded = upload(row, params);
    if (!uploaded) return fail(uploaded.error());
    row.run(*uploaded);
    return download(*uploaded, params);
  }
  auto launched = host_.with_launch(row, params);
  if (!launched) return fail(launched.error());
  row.run(*launched);
  return {};
}

Status MoeFp8Runner::run_reference(const MoeFp8Params& params) {
  for (const auto& row : Op<MoeFp8Params>::rows())
    if (std::string_view(row.name).ends_with("_reference")) return run(row, params);
  CHECK(false, "no reference row");
}

Result<MoeFp8Params> MoeFp8Runner::upload(const Row<MoeFp8Params>& row,
                                          const MoeFp8Params& params) {
  CHECK(on_gpu(), std::string(row.name) + " without a CUDA device");
  MoeFp8Params p = params;
  Status status;
  size_t num_tensors = 0;
  gpu_.tensors.resize(9);
  const auto put = [&](auto*& at, const void* source, int64_t count) {
    const uint64_t bytes = static_cast<uint64_t>(count) * sizeof(*at);
    Buffer& buffer = gpu_.tensors[num_tensors++];
    if (status) status = gpu_.reserve(&buffer, bytes);
    if (status) status = gpu_.device->copy_from_host(buffer.data(), source, bytes, *gpu_.stream);
    at = reinterpret_cast<std::remove_reference_t<decltype(at)>>(buffer.data());
  };
  const int64_t tokens = p.num_tokens, local = p.num_local_experts;
  const int64_t in = p.hidden / kFp8Block, mid = p.intermediate / kFp8Block;
  put(p.routing_logits, p.routing_logits, tokens * p.num_experts);
  put(p.routing_bias, p.routing_bias, p.num_experts);
  put(p.hidden_states, p.hidden_states, tokens * p.hidden);
  put(p.hidden_states_scale, p.hidden_states_scale, in * tokens);
  put(p.gemm1_weights, p.gemm1_weights, local * 2 * p.intermediate * p.hidden);
  put(p.gemm1_weights_scale, p.gemm1_weights_scale, local * 2 * mid * in);
  put(p.gemm2_weights, p.gemm2_weights, local * p.hidden * p.intermediate);
  put(p.gemm2_weights_scale, p.gemm2_weights_scale, local * in * mid);
  // NaN, so that an output which a row does not write fails every check.
  const std::vector<uint16_t> unwritten(static_cast<size_t>(tokens * p.hidden), 0xFFFF);
  put(p.output, unwritten.data(), tokens * p.hidden);
  if (status) status = gpu_.stream->synchronize();
  if (!status) return fail(std::move(status.error()));
  return gpu_.with_launch(row, p);
}

Status MoeFp8Runner::download(const MoeFp8Params& uploaded, const MoeFp8Params& params) {
  const uint64_t bytes = sizeof(uint16_t) * static_cast<uint64_t>(params.num_tokens) *
                         static_cast<uint64_t>(params.hidden);
  auto status = gpu_.device->copy_to_host(params.output, uploaded.output, bytes, *gpu_.stream);
  return status ? gpu_.stream->synchronize() : status;
}

// ---- Times --------------------------------------------------------------------------------------

Status MoeFp8Runner::flush_caches() {
  if (host_.flush.data() == nullptr) {
    const uint64_t bytes = std::max<uint64_t>(2 * last_level_cache_bytes(), uint64_t{64} << 20);
    if (auto made = host_.reserve(&host_.flush, bytes); !made) return made;
    std::memset(host_.flush.data(), 1, host_.flush.bytes());
  }
  std::atomic<uint64_t> sum = 0;
  const auto* words = reinterpret_cast<const uint64_t*>(host_.flush.data());
  const auto num_words = static_cast<int64_t>(host_.flush.bytes() / 8);
  pool().share(num_words, 1 << 17, [&](int64_t begin, int64_t end) {
    uint64_t of_part = 0;
    for (int64_t i = begin; i < end; ++i) of_part += words[i];
    sum += of_part;
  });
  flush_sum_ += sum;
  return {};
}

Result<std::vector<double>> MoeFp8Runner::time(const Row<MoeFp8Params>& row,
                                               const MoeFp8Params& params, int repetitions,
                                               L2Before l2) {
  if (row.device == DeviceKind::kCuda) return time_on_device(row, params, repetitions, l2);
  std::vector<double> seconds;
  for (int i = -1; i < repetitions; ++i) {
    if (auto flushed = flush_caches(); !flushed) return fail(flushed.error());
    const auto start = Clock::now();
    if (auto ran = run(row, params); !ran) return fail(ran.error());
    if (i >= 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return seconds;
}

Result<std::vector<double>> MoeFp8Runner::time_on_device(const Row<MoeFp8Params>& row,
                                                         const MoeFp8Params& params,
                                                         int repetitions, L2Before l2) {
  auto uploaded = upload(row, params);
  if (!uploaded) return fail(uploaded.error());
  Device& device = *gpu_.device;
  Stream& stream = *gpu_.stream;
  const uint64_t flush_bytes = round_up<uint64_t>(
      std::max<uint64_t>(2 * device.properties().l2_bytes, uint64_t{64} << 20), kGpuReadGrain);
  if (auto made = gpu_.reserve(&gpu_.flush, flush_bytes); !made) return fail(made.error());
  const auto write = [&] {
    return device.fill_zero(gpu_.flush.data(), gpu_.flush.bytes(), stream);
  };
  if (auto written = write(); !written) return fail(written.error());
  // Once before recording: what a row sets up at its first launch is no part of the graph.
  row.run(*uploaded);
  if (auto done = stream.synchronize(); !done) return fail(done.error());
  auto graph = device.capture(stream, [&] { row.run(*uploaded); });
  if (!graph) return fail(graph.error());
  auto seconds = time_on_gpu(
      repetitions, stream,
      [&] { return l2 == L2Before::kWritten ? write() : fill_l2(gpu_.flush, stream); },
      [&] { return (*graph)->launch(stream); });
  if (!seconds) return seconds;
  if (auto copied = download(*uploaded, params); !copied) return fail(copied.error());
  return seconds;
}

}  // namespace moxie
