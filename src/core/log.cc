#include "core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "core/error.h"

namespace switchyard {

void InitLog(const std::string& level, const std::string& who) {
  const auto parsed = level == "warning" ? spdlog::level::warn : spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    throw Invalid("--log-level {}: want debug, info, warning or error", level);
  }
  auto logger = spdlog::get("switchyard");
  if (!logger) logger = spdlog::stderr_color_mt("switchyard");
  logger->set_level(parsed);
  logger->set_pattern(who.empty() ? "[%Y-%m-%d %H:%M:%S] %^%l%$ %v"
                                  : "[%Y-%m-%d %H:%M:%S " + who + "] %^%l%$ %v");
  spdlog::set_default_logger(logger);
}

}  // namespace switchyard
