// CUPTI, found by name at run time: without it the binary must start and do all but this. Its
// records of kernels (also those inside graphs), copies and fills arrive on a thread of its own.
// Clock is set as its clock, so that the records and the host's measurements have one time scale.
#include <cuda.h>
#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>

#include "core/cuda.h"
#include "lab/activity.h"

namespace moxie {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libcupti.so.13";
// Within a major version of the library, records change only by growing at their ends.
constexpr uint32_t kMajorVersion = CUPTI_API_VERSION / 10000;

struct Cupti {
  decltype(&cuptiGetVersion) get_version = nullptr;
  decltype(&cuptiGetResultString) get_result_string = nullptr;
  decltype(&cuptiActivityRegisterTimestampCallback) register_timestamp = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&cuptiActivityGetNextRecord) get_next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) get_num_dropped = nullptr;
};

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET};

// What CUPTI's callbacks use, which take no argument of ours. Outlives every recorder: a buffer may
// be returned as late as the end of the process.
struct Sink {
  std::mutex mutex;
  Cupti cupti;
  std::vector<std::string> names;
  std::map<std::string, int32_t, std::less<>> name_idx;
  std::vector<DeviceRecord> records;
  uint64_t num_lost = 0;
  bool is_taken = false;
  int device = -1;  // whose records are kept; -1: of any

  void reset() {
    names.clear();
    name_idx.clear();
    records.clear();
    num_lost = 0;
  }
  template <typename Record>
  void add(const char* name, const Record& record) {
    if (device >= 0 && std::cmp_not_equal(record.deviceId, device)) return;
    if (record.start == 0 || record.end == 0) {  // CUPTI had no memory for the time stamps
      ++num_lost;
      return;
    }
    auto found = name_idx.find(name);
    if (found == name_idx.end()) {
      found = name_idx.emplace(name, static_cast<int32_t>(names.size())).first;
      names.emplace_back(name);
    }
    records.push_back(
        {.activity = {static_cast<int64_t>(record.start), static_cast<int64_t>(record.end),
                      found->second, static_cast<int32_t>(record.streamId)},
         .is_kernel = record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
         .correlation = record.correlationId,
         .graph_node = record.graphNodeId});
  }
};

Sink& sink() {
  static auto* the_sink = new Sink;
  return *the_sink;
}

const char* copy_name(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "memcpy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "memcpy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "memcpy on the device";
    default:
      return "memcpy";
  }
}

void add_record(Sink& to, const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      to.add(kernel->name, *kernel);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      to.add(copy_name(copy->copyKind), *copy);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      to.add("memset", *fill);
      break;
    }
    default:
      break;
  }
}

constexpr size_t kBufferBytes = size_t{4} << 20;

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(ACTIVITY_RECORD_ALIGNMENT, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t,
                          size_t valid_bytes) {
  Sink& to = sink();
  {
    const std::lock_guard lock(to.mutex);
    CUpti_Activity* record = nullptr;
    while (to.cupti.get_next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
      add_record(to, record);
    }
    size_t num_dropped = 0;
    if (to.cupti.get_num_dropped(context, stream, &num_dropped) == CUPTI_SUCCESS) {
      to.num_lost += num_dropped;
    }
  }
  std::free(buffer);
}

uint64_t CUPTIAPI now_ns() { return static_cast<uint64_t>(clock_ns(Clock::now())); }

// Advice for common refusals.
std::string hint_for(CUptiResult result) {
  switch (result) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
      return "the driver lets administrators only profile: run this as root, or load the nvidia "
             "module with NVreg_RestrictProfilingToAdminUsers=0";
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
      return "another profiler watches this process: run it without";
    case CUPTI_ERROR_NOT_COMPATIBLE:
    case CUPTI_ERROR_HARDWARE_BUSY:
      return "end other profilers of this GPU; the driver must be as new as the library or newer";
    default:
      return "without profiling, `moxie bench` measures the same tests";
  }
}

Status checked(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return {};
  const char* text = nullptr;
  if (sink().cupti.get_result_string(result, &text) != CUPTI_SUCCESS) text = nullptr;
  return fail(fmt::format("CUPTI refused: {} ({})", text == nullptr ? "no text" : text,
                          static_cast<int>(result)),
              what, hint_for(result));
}

class CuptiRecorder final : public ActivityRecorder {
 public:
  ~CuptiRecorder() override {
    stop_launch_log();
    if (is_on_) {
      for (const CUpti_ActivityKind kind : kKinds) sink().cupti.disable(kind);
      sink().cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
    sink().is_taken = false;
    sink().device = -1;
  }

  void watch_only(Stream& stream) override {
    stream_ = stream.native;
    launch_stream(&stream);  // its device becomes the thread's current one
    const std::lock_guard lock(sink().mutex);
    cudaGetDevice(&sink().device);
  }

  Status start() override {
    Sink& to = sink();
    Status status;
    if (!is_on_) {
      status = checked(to.cupti.register_timestamp(now_ns), "its clock");
      if (status) {
        status = checked(to.cupti.register_callbacks(give_buffer, take_buffer), "its buffers");
      }
      is_on_ = status.has_value();
      for (const CUpti_ActivityKind kind : kKinds) {
        if (status) status = checked(to.cupti.enable(kind), "watching kernels");
      }
    } else {
      status = flush();
    }
    const std::lock_guard lock(to.mutex);
    to.reset();
    if (status) start_launch_log();
    return status;
  }

  Result<ActivityLog> stop() override {
    std::vector<NotedLaunch> launches = stop_launch_log();
    if (stream_ != nullptr)
      std::erase_if(launches, [&](const NotedLaunch& one) { return one.stream != stream_; });
    if (auto status = flush(); !status) return fail(std::move(status.error()));
    Sink& from = sink();
    const std::lock_guard lock(from.mutex);
    if (from.num_lost > 0) {
      return fail(fmt::format("{} records were lost", from.num_lost), "CUPTI",
                  "fewer tokens (-n) or repetitions (-r) at once");
    }
    auto log = match_launches(from.names, std::move(from.records), launches);
    from.reset();
    return log;
  }

  bool sees_kernels() const override { return true; }

 private:
  static Status flush() {
    return checked(sink().cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "reading its records");
  }
  bool is_on_ = false;
  const void* stream_ = nullptr;  // whose launches are kept; null: any
};

// Where to look besides the loader's own path.
std::vector<std::string> candidates() {
  std::vector<std::string> paths = {kLibrary};
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error) paths.push_back((program.parent_path() / kLibrary).string());
  std::vector<fs::path> toolkits;
  for (fs::directory_iterator at("/usr/local", error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().filename().string().starts_with("cuda")) toolkits.push_back(at->path());
  }
  std::sort(toolkits.rbegin(), toolkits.rend());
  for (const fs::path& toolkit : toolkits) {
    for (const char* folder : {"lib64", "lib", "extras/CUPTI/lib64"}) {
      paths.push_back((toolkit / folder / kLibrary).string());
    }
  }
  return paths;
}

Status load(const std::vector<std::string>& paths, Cupti* cupti) {
  void* library = nullptr;
  std::string why;
  for (const std::string& path : paths) {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (const char* text = ::dlerror(); text != nullptr && why.empty()) why = text;
  }
  constexpr const char* kHint =
      "install NVIDIA's CUDA toolkit 13, or `pip install nvidia-cuda-cupti` and give the path of "
      "its libcupti.so.13 with --cupti, or put that file beside this program";
  if (library == nullptr) return fail("libcupti was not found: " + why, "profile", kHint);
  bool has_all = true;
  const auto find = [&](auto& function, const char* name) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    has_all = has_all && function != nullptr;
  };
  find(cupti->get_version, "cuptiGetVersion");
  find(cupti->get_result_string, "cuptiGetResultString");
  find(cupti->register_timestamp, "cuptiActivityRegisterTimestampCallback");
  find(cupti->register_callbacks, "cuptiActivityRegisterCallbacks");
  find(cupti->enable, "cuptiActivityEnable");
  find(cupti->disable, "cuptiActivityDisable");
  find(cupti->flush_all, "cuptiActivityFlushAll");
  find(cupti->get_next_record, "cuptiActivityGetNextRecord");
  find(cupti->get_num_dropped, "cuptiActivityGetNumDroppedRecords");
  if (!has_all) return fail("the library has not all functions of CUPTI", "profile", kHint);
  uint32_t version = 0;
  if (cupti->get_version(&version) != CUPTI_SUCCESS || version / 10000 != kMajorVersion) {
    return fail(
        fmt::format("libcupti has version {}, this build reads {}xxxx", version, kMajorVersion),
        "profile", kHint);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<ActivityRecorder>> make_cupti_recorder(const std::string& library) {
  Sink& shared = sink();
  CHECK(!shared.is_taken, "one recorder at a time");
  auto status =
      load(library.empty() ? candidates() : std::vector<std::string>{library}, &shared.cupti);
  if (!status) return fail(std::move(status.error()));
  shared.is_taken = true;
  return std::unique_ptr<ActivityRecorder>(std::make_unique<CuptiRecorder>());
}

}  // namespace moxie
