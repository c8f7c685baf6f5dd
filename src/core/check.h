// CHECKs for bugs: they print the operands and abort. User errors throw Error (core/error.h).
#pragma once

#include <string>

#include "core/format.h"

namespace switchyard {

// Prints "file:line: check failed: …" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const std::string& what);

namespace internal {
// `what`: the comparison as written in the source; `a` and `b`: the values of its operands.
[[noreturn]] void CompareFailed(const char* file, int line, const char* what, const std::string& a,
                                const std::string& b);

template <typename T>
std::string Show(const T& value) {
  if constexpr (fmt::is_formattable<T>::value) {
    return fmt::format("{}", value);
  } else {
    return "?";
  }
}
}  // namespace internal

}  // namespace switchyard

#define CHECK(condition)                                         \
  do {                                                           \
    if (!(condition)) [[unlikely]]                               \
      ::switchyard::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#define SWITCHYARD_CHECK_OP(a, op, b)                                               \
  do {                                                                              \
    const auto& check_a = (a);                                                      \
    const auto& check_b = (b);                                                      \
    if (!(check_a op check_b)) [[unlikely]]                                         \
      ::switchyard::internal::CompareFailed(__FILE__, __LINE__, #a " " #op " " #b,  \
                                            ::switchyard::internal::Show(check_a),  \
                                            ::switchyard::internal::Show(check_b)); \
  } while (false)

#define CHECK_EQ(a, b) SWITCHYARD_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) SWITCHYARD_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) SWITCHYARD_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) SWITCHYARD_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) SWITCHYARD_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) SWITCHYARD_CHECK_OP(a, >=, b)
