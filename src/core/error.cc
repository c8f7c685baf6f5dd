#include "core/error.h"

#include <cstdio>
#include <cstdlib>

#include "core/check.h"

namespace switchyard {

void CheckFailed(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::abort();
}

namespace internal {

void CompareFailed(const char* file, int line, const char* what, const std::string& a,
                   const std::string& b) {
  CheckFailed(file, line, fmt::format("{} (with {} and {})", what, a, b));
}

}  // namespace internal

Error::Error(ErrorKind kind, const std::string& what, const std::string& hint)
    : std::runtime_error(hint.empty() ? what : what + " (" + hint + ")"),
      kind_(kind),
      hint_(hint) {}

Error FormatError(ErrorKind kind, fmt::string_view format, fmt::format_args args) {
  return Error(kind, fmt::vformat(format, args));
}

}  // namespace switchyard
