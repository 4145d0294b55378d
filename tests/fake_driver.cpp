// A libcuda.so.1 for tests on machines without one: its version is FAKE_DRIVER_VERSION (as
// cuDriverGetVersion has it: 12080 is 12.8) and cuInit returns FAKE_DRIVER_INIT. CUDA's runtime
// finds every function that it asks for, and all others fail: enough for what is said of a driver
// that is too old or broken, and for no more.
#include <cstdlib>
#include <string_view>

namespace {

constexpr int kNotFound = 500;  // CUDA_ERROR_NOT_FOUND

int number(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}
int not_found() { return kNotFound; }

template <typename Function>
void* address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

extern "C" {

int cuInit(unsigned /*flags*/) { return number("FAKE_DRIVER_INIT"); }
int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER_VERSION");
  return 0;
}
int cuGetProcAddress_v2(const char* symbol, void** function, int /*version*/,
                        unsigned long long /*flags*/, int* status) {
  const std::string_view name = symbol;
  *function = name == "cuInit"                    ? address(cuInit)
              : name == "cuDriverGetVersion"      ? address(cuDriverGetVersion)
              : name.starts_with("cuGetProcAddr") ? address(cuGetProcAddress_v2)
                                                  : address(not_found);
  if (status != nullptr) *status = 0;
  return 0;
}
}
