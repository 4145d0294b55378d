// For static builds: libstdc++'s std::random_device calls arc4random, which the C library has only
// since 2.36. With this stand-in one binary runs from glibc 2.35 on (Ubuntu 22.04).
#include <sys/random.h>

#include <cstdint>

extern "C" uint32_t arc4random() noexcept {
  uint32_t word = 0;
  // Up to 256 bytes come whole; only an early boot or a signal makes the call return less.
  while (getrandom(&word, sizeof word, 0) != static_cast<ssize_t>(sizeof word)) {
  }
  return word;
}
