#include "profile/options.h"

#include <chrono>
#include <cstdlib>

#include "core/format.h"

namespace switchyard::profile {

std::string DefaultDirectory() {
  for (const char* name : {"SWITCHYARD_TORCH_PROFILER_DIR", "SGLANG_TORCH_PROFILER_DIR"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "/tmp";
}

std::string NameOfNow() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  return fmt::format("{}.{:03}", ms / 1000, ms % 1000);
}

}  // namespace switchyard::profile
