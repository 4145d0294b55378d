// A libcupti for tests on machines without a GPU. FAKE_CUPTI says how it behaves: "refuses" (as a
// driver does that lets administrators only profile), "old" (another major version), "loses" (a
// record without time stamps), else it gives two kernels and a copy at every flush.
#include <cupti.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

CUpti_BuffersCallbackRequestFunc request = nullptr;
CUpti_BuffersCallbackCompleteFunc complete = nullptr;
CUpti_TimestampCallbackFunc timestamp = nullptr;
CUpti_ActivityKernel10 kernels[2];
CUpti_ActivityMemcpy6 copied;

bool behaves_as(const char* how) {
  const char* asked = std::getenv("FAKE_CUPTI");
  return asked != nullptr && std::strcmp(asked, how) == 0;
}

}  // namespace

extern "C" {

CUptiResult CUPTIAPI cuptiGetVersion(uint32_t* version) {
  *version = behaves_as("old") ? 120000 : CUPTI_API_VERSION;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
                                                        : "CUPTI_ERROR_UNKNOWN";
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterTimestampCallback(CUpti_TimestampCallbackFunc function) {
  timestamp = function;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc give,
                                                    CUpti_BuffersCallbackCompleteFunc take) {
  request = give;
  complete = take;
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityEnable(CUpti_ActivityKind) {
  return behaves_as("refuses") ? CUPTI_ERROR_INSUFFICIENT_PRIVILEGES : CUPTI_SUCCESS;
}
CUptiResult CUPTIAPI cuptiActivityDisable(CUpti_ActivityKind) { return CUPTI_SUCCESS; }

CUptiResult CUPTIAPI cuptiActivityFlushAll(uint32_t) {
  uint8_t* buffer = nullptr;
  size_t bytes = 0, max_records = 0;
  request(&buffer, &bytes, &max_records);
  const uint64_t now = timestamp();
  for (int i = 0; i < 2; ++i) {
    kernels[i].kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
    kernels[i].name = i == 0 ? "_Z12attend_split7nothing" : "someone_elses";
    kernels[i].start = behaves_as("loses") ? 0 : now + 100 * i;
    kernels[i].end = now + 100 * i + 50;
    kernels[i].streamId = 7;
  }
  copied.kind = CUPTI_ACTIVITY_KIND_MEMCPY;
  copied.copyKind = CUPTI_ACTIVITY_MEMCPY_KIND_DTOH;
  copied.start = now + 200;
  copied.end = now + 230;
  complete(nullptr, 0, buffer, bytes, bytes);
  return CUPTI_SUCCESS;
}

CUptiResult CUPTIAPI cuptiActivityGetNextRecord(uint8_t*, size_t, CUpti_Activity** record) {
  void* const all[] = {&kernels[0], &kernels[1], &copied};
  for (int i = 0; i < 3; ++i) {
    const void* previous = i == 0 ? nullptr : all[i - 1];
    if (*record != previous) continue;
    *record = static_cast<CUpti_Activity*>(all[i]);
    return CUPTI_SUCCESS;
  }
  return CUPTI_ERROR_MAX_LIMIT_REACHED;
}

CUptiResult CUPTIAPI cuptiActivityGetNumDroppedRecords(CUcontext, uint32_t, size_t* count) {
  *count = 0;
  return CUPTI_SUCCESS;
}

}  // extern "C"
