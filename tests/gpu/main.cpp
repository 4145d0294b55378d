// The tests that need a GPU, in one binary that runs anywhere. Without a CUDA device it runs
// nothing, says so, and ends with 77, so that nobody takes that for success.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "core/device.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  // Ranks that share a GPU await each other in kernels, beside which no code can be loaded, and
  // behind which no other rank's may be queued.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  std::string why;
  if (moxie::num_cuda_devices(&why) > 0) return RUN_ALL_TESTS();
  const bool listing = GTEST_FLAG_GET(list_tests);
  if (listing && RUN_ALL_TESTS() != 0) return 1;
  std::printf("no CUDA device (%s): %d tests not run\n", why.c_str(),
              ::testing::UnitTest::GetInstance()->total_test_count());
  return listing ? 0 : 77;
}
