#include "core/check.h"

#include <cstdio>
#include <cstdlib>

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
}  // namespace switchyard
