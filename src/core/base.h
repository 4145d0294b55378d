// Used by every folder: Result<T> for faults of the world, CHECK for broken invariants, log lines
// on stderr, and small integer helpers.
//
// A fault of the world (a file, a request, a configuration, memory) is a value: `Result<T>` with
// what went wrong, where, and what to do about it. A broken invariant is a bug: CHECK prints the
// values and the place and ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace moxie {

/// A fault of the world. All three texts are for people; `hint` may be empty.
struct Error {
  std::string what;   ///< what is wrong: found and expected values
  std::string where;  ///< file, tensor, flag or request field
  std::string hint;   ///< what to do about it

  /// "where: what (hint)", with empty texts left out.
  std::string message() const;
};

template <typename T>
using Result = tl::expected<T, Error>;
using Status = tl::expected<void, Error>;

/// Makes the error of a Result: `return fail("found 3, expected 4", "a.json: key k");`
inline tl::unexpected<Error> fail(std::string what, std::string where = {}, std::string hint = {}) {
  return tl::unexpected<Error>(Error{std::move(what), std::move(where), std::move(hint)});
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

[[noreturn]] void check_failed(const char* expression, const std::string& detail,
                               const std::source_location& location);

/// CHECK(condition) or CHECK(condition, "message with values"): ends the process when false.
#define CHECK(condition, ...)                                       \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::moxie::check_failed(#condition, ::std::string{__VA_ARGS__}, \
                            ::std::source_location::current());     \
  } while (false)

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };
void set_log_level(LogLevel level);
LogLevel log_level();
/// Writes one line to stderr; thread-safe, never throws.
void log_line(LogLevel level, std::string_view text);
inline void log_debug(std::string_view text) { log_line(LogLevel::kDebug, text); }
inline void log_info(std::string_view text) { log_line(LogLevel::kInfo, text); }
inline void log_warn(std::string_view text) { log_line(LogLevel::kWarn, text); }
inline void log_error(std::string_view text) { log_line(LogLevel::kError, text); }

template <typename T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <typename T>
constexpr T round_up(T a, T b) {
  return ceil_div(a, b) * b;
}

/// Sets *out to a * b; false on overflow. For sizes that come from files.
inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}

}  // namespace moxie
