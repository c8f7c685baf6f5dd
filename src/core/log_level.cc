#include "core/log_level.h"

#include <spdlog/spdlog.h>

#include "core/error.h"

namespace switchyard {

void SetLogLevel(const std::string& level) {
  const auto parsed = level == "warning" ? spdlog::level::warn : spdlog::level::from_str(level);
  if (parsed == spdlog::level::off)
    throw Invalid("log level {}: want debug, info, warning or error", level);
  spdlog::default_logger_raw()->set_level(parsed);
}

}  // namespace switchyard
