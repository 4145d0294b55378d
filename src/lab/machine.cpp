// Measures the machine: all threads read a buffer far larger than the caches, then run each
// arithmetic loop that this CPU supports. The fastest loop of each kind is the limit.
#include "lab/machine.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/threads.h"
#include "kernels/row_products.h"
#include "lab/machine_loops.h"
#include "lab/stats.h"

namespace moxie {
namespace {

// Receives a loop's result, so that the compiler cannot remove the loop.
std::atomic<uint64_t> sink{0};

std::vector<ReadLoop> read_loops() {
  std::vector<ReadLoop> loops;
  const auto add = [&](std::span<const ReadLoop> more) {
    loops.insert(loops.end(), more.begin(), more.end());
  };
  add(read_loops_portable());
#if defined(__x86_64__)
  add(read_loops_avx2());
  add(read_loops_avx512());
#elif defined(__aarch64__)
  add(read_loops_neon());
#endif
  return loops;
}

std::vector<ArithmeticLoop> arithmetic_loops() {
  std::vector<ArithmeticLoop> loops;
  const auto add = [&](std::span<const ArithmeticLoop> more) {
    loops.insert(loops.end(), more.begin(), more.end());
  };
  add(arithmetic_loops_portable());
#if defined(__x86_64__)
  add(arithmetic_loops_avx2());
  add(arithmetic_loops_avx_vnni());
  add(arithmetic_loops_avx512());
  add(arithmetic_loops_avx512_bf16());
  add(arithmetic_loops_avx512_vnni());
  add(arithmetic_loops_amx());
#elif defined(__aarch64__)
  add(arithmetic_loops_neon());
  add(arithmetic_loops_neon_dot());
  add(arithmetic_loops_neon_i8mm());
  add(arithmetic_loops_neon_bf16());
#endif
  return loops;
}

constexpr uint64_t kReadPart = uint64_t{2} << 20;  // bytes of a task: long streams, even shares

// Seconds of one pass of all threads over the buffer.
double time_read(ThreadPool& pool, const ReadLoop& loop, const Buffer& buffer) {
  auto part = [&](int64_t i, int) {
    sink.fetch_xor(loop.run(buffer.data() + static_cast<uint64_t>(i) * kReadPart, kReadPart),
                   std::memory_order_relaxed);
  };
  const auto start = Clock::now();
  pool.run(static_cast<int64_t>(buffer.bytes() / kReadPart), part);
  return seconds_since(start);
}

// False if it gave up before the end.
bool touch_pages(ThreadPool& pool, const Buffer& buffer, const std::function<bool()>& gives_up) {
  const auto num_parts = static_cast<int64_t>(buffer.bytes() / kReadPart);
  const int64_t at_once = 8 * pool.num_threads();
  for (int64_t first = 0; first < num_parts; first += at_once) {
    if (gives_up()) return false;
    auto part = [&](int64_t i, int) {
      std::byte* data = buffer.data() + static_cast<uint64_t>(first + i) * kReadPart;
      for (uint64_t at = 0; at < kReadPart; at += 4096) data[at] = std::byte{1};
    };
    pool.run(std::min(at_once, num_parts - first), part);
  }
  return true;
}

// If the earlier limits name no instruction, since they were not measured here, all are tried.
bool tries_all(const MachineOptions& options) {
  return options.again == nullptr || options.again->read_instruction.empty();
}

bool is_tried(const ReadLoop& loop, const MachineOptions& options) {
  return (loop.needs & options.features) == loop.needs &&
         (tries_all(options) || options.again->read_instruction == loop.instruction);
}

bool is_tried(const ArithmeticLoop& loop, const MachineOptions& options) {
  if ((loop.needs & options.features) != loop.needs) return false;
  if (tries_all(options)) return true;
  const MachineLimits& again = *options.again;
  return again.fp32.instruction == loop.instruction || again.bf16.instruction == loop.instruction ||
         again.int8.instruction == loop.instruction;
}

// A process may be allowed less memory than is free: the first that can be had of buffers that
// halve, down to twice the caches.
Result<Buffer> allocate_read_buffer(Device& device, const MachineOptions& options) {
  const uint64_t cache_bytes = last_level_cache_bytes();
  uint64_t bytes = read_buffer_bytes(options, cache_bytes, device.properties().available_bytes);
  const uint64_t least =
      options.read_buffer_bytes > 0 ? bytes : std::min(bytes, std::max(kReadPart, 2 * cache_bytes));
  for (;;) {
    auto buffer = device.allocate(bytes);
    if (buffer || bytes <= least) return buffer;
    bytes = std::max(least, bytes / 2) / kReadPart * kReadPart;
  }
}

Status measure_read(Device& device, ThreadPool& pool, const MachineOptions& options,
                    MachineLimits* limits) {
  auto buffer = allocate_read_buffer(device, options);
  if (!buffer) return fail(buffer.error());
  const auto given_up = [] { return fail("given up", "measure_machine"); };
  if (!touch_pages(pool, *buffer, options.gives_up)) return given_up();
  const double bytes = static_cast<double>(buffer->bytes());
  limits->read_buffer_bytes = buffer->bytes();
  // The loops differ little if memory is the limit: two passes find the best loop, and only that
  // one is measured.
  double best_seconds = 0;
  ReadLoop best{};
  for (const ReadLoop& loop : read_loops()) {
    if (!is_tried(loop, options)) continue;
    if (options.gives_up()) return given_up();
    const double seconds = std::min(time_read(pool, loop, *buffer), time_read(pool, loop, *buffer));
    if (best.run == nullptr || seconds < best_seconds) best = loop, best_seconds = seconds;
  }
  if (best.run == nullptr) return fail("no read loop is left to try", "measure_machine");
  std::vector<double> rates;
  for (int pass = 0; pass < std::max(1, options.read_passes); ++pass) {
    if (options.gives_up()) return given_up();
    rates.push_back(bytes / time_read(pool, best, *buffer) * 1e-9);
  }
  const Summary summary = summarize(rates);
  limits->read_gb_s = summary.median;
  limits->read_gb_s_best = std::max(summary.max, bytes / best_seconds * 1e-9);
  limits->read_instruction = best.instruction;
  return {};
}

// 1e9 operations a second of all threads together.
double measure_loop(ThreadPool& pool, const ArithmeticLoop& loop, double seconds) {
  const auto run = [&](int64_t num_tasks, int64_t num_iterations) {
    auto task = [&](int64_t, int) {
      sink.fetch_add(loop.run(num_iterations) > 0 ? 1 : 0, std::memory_order_relaxed);
    };
    const auto start = Clock::now();
    pool.run(num_tasks, task);
    return seconds_since(start);
  };
  // One thread finds how many iterations take a millisecond, which also wakes the vector units.
  int64_t num_iterations = 256;
  while (run(1, num_iterations) < 1e-3 && num_iterations < (int64_t{1} << 40)) num_iterations *= 2;
  // Short tasks, several a thread, so that a thread that starts late or is disturbed takes fewer.
  const int64_t num_tasks =
      std::max<int64_t>(2, static_cast<int64_t>(seconds * 0.5 / 1e-3)) * pool.num_threads();
  double best_rate = 0;
  for (int repeat = 0; repeat < 2; ++repeat) {
    const double operations = loop.operations_per_iteration * static_cast<double>(num_iterations) *
                              static_cast<double>(num_tasks);
    best_rate = std::max(best_rate, operations / run(num_tasks, num_iterations) * 1e-9);
  }
  return best_rate;
}

void measure_arithmetic(ThreadPool& pool, const MachineOptions& options, MachineLimits* limits) {
  for (const ArithmeticLoop& loop : arithmetic_loops()) {
    if (!is_tried(loop, options)) continue;
    Peak& peak = loop.format == NumberFormat::kF32    ? limits->fp32
                 : loop.format == NumberFormat::kBF16 ? limits->bf16
                                                      : limits->int8;
    const double rate = measure_loop(pool, loop, options.seconds_per_loop);
    if (rate > peak.rate) peak = {rate, loop.instruction};
  }
  // Without an instruction of their own, BF16 values are widened and multiplied as FP32.
  if (limits->fp32.rate > limits->bf16.rate) {
    limits->bf16 = {limits->fp32.rate, limits->fp32.instruction + " (widened)"};
  }
}

uint64_t parse_cache_size(const std::string& text) {  // "107520K", "32M"
  uint64_t value = 0;
  size_t at = 0;
  for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at) {
    value = value * 10 + static_cast<uint64_t>(text[at] - '0');
  }
  const char unit = at < text.size() ? text[at] : 'B';
  return unit == 'K' ? value << 10 : unit == 'M' ? value << 20 : unit == 'G' ? value << 30 : value;
}

std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

uint64_t last_level_cache_bytes() {
  int deepest = 0;
  uint64_t bytes = 0;
  std::set<std::string> seen;  // the CPUs that share a cache name it
  const unsigned num_cpus = std::max(1u, std::thread::hardware_concurrency());
  for (unsigned cpu = 0; cpu < num_cpus; ++cpu) {
    const std::filesystem::path caches =
        "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/cache";
    for (int i = 0; i < 8; ++i) {
      const auto cache = caches / ("index" + std::to_string(i));
      const std::string type = first_line(cache / "type");
      if (type != "Data" && type != "Unified") continue;
      const int level = static_cast<int>(parse_cache_size(first_line(cache / "level")));
      if (level < deepest) continue;
      if (level > deepest) {
        deepest = level;
        bytes = 0;
        seen.clear();
      }
      if (!seen.insert(first_line(cache / "shared_cpu_list")).second) continue;
      bytes += parse_cache_size(first_line(cache / "size"));
    }
  }
  return bytes;
}

uint64_t read_buffer_bytes(const MachineOptions& options, uint64_t cache_bytes,
                           uint64_t available_bytes) {
  uint64_t bytes = options.read_buffer_bytes;
  if (bytes == 0) {
    bytes = std::max(uint64_t{256} << 20, 8 * cache_bytes);
    if (options.spares_memory) {
      bytes = std::min(bytes, std::max(uint64_t{1} << 30, 2 * cache_bytes));
    }
    if (available_bytes > 0) bytes = std::min(bytes, available_bytes / 4);
  }
  return std::max(kReadPart, bytes / kReadPart * kReadPart);
}

Result<MachineLimits> measure_machine(Device& device, const MachineOptions& options) {
  if (device.kind() != DeviceKind::kCpu) {
    return fail("only a CPU is measured here", device.properties().name);
  }
  auto stream = device.make_stream();
  if (!stream) return fail(stream.error());
  ThreadPool& pool = *(*stream)->pool;
  MachineLimits limits;
  limits.cpu = device.properties().name;
  limits.features = feature_names(options.features);
  limits.num_threads = pool.num_threads();
  if (auto status = measure_read(device, pool, options, &limits); !status) {
    return fail(status.error());
  }
  if (options.seconds_per_loop > 0) measure_arithmetic(pool, options, &limits);
  return limits;
}

MachineLimits mean_of(std::span<const MachineLimits> measured) {
  CHECK(!measured.empty());
  MachineLimits mean = measured.front();
  const auto average = [&](const auto& rate_of) {
    double sum = 0;
    for (const MachineLimits& one : measured) sum += rate_of(one);
    return sum / static_cast<double>(measured.size());
  };
  mean.read_gb_s = average([](const MachineLimits& one) { return one.read_gb_s; });
  mean.launches_s = average([](const MachineLimits& one) { return one.launches_s; });
  for (const MachineLimits& one : measured)
    mean.read_gb_s_best = std::max(mean.read_gb_s_best, one.read_gb_s_best);
  for (Peak MachineLimits::*peak :
       {&MachineLimits::fp32, &MachineLimits::bf16, &MachineLimits::int8, &MachineLimits::fp8})
    (mean.*peak).rate = average([&](const MachineLimits& one) { return (one.*peak).rate; });
  return mean;
}

const Peak& best_peak(const MachineLimits& limits) {
  return limits.bf16.rate > limits.fp32.rate ? limits.bf16 : limits.fp32;
}

const Peak& peak_of_row(const MachineLimits& limits, std::string_view row) {
  if (multiplies_e4m3(row) && limits.fp8.rate > 0) return limits.fp8;
  return multiplies_i8(row) && limits.int8.rate > 0 ? limits.int8 : best_peak(limits);
}

double share_of_limit(const MachineLimits& limits, const Peak& peak, double bytes,
                      double operations, double seconds) {
  if (!(seconds > 0)) return 0;
  const double read_seconds = limits.read_gb_s > 0 ? bytes / (limits.read_gb_s * 1e9) : 0;
  const double compute_seconds = peak.rate > 0 ? operations / (peak.rate * 1e9) : 0;
  return std::max(read_seconds, compute_seconds) / seconds;
}

}  // namespace moxie
