#include "core/log.h"

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"

namespace switchyard {
namespace {

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

bool Logs(LogLevel level) { return spdlog::default_logger_raw()->should_log(SpdlogLevel(level)); }

void WriteLog(LogLevel level, fmt::string_view format, fmt::format_args args) {
  spdlog::default_logger_raw()->log(SpdlogLevel(level), fmt::vformat(format, args));
}

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

LogCapture::LogCapture(std::ostream& to) : before_(spdlog::default_logger()) {
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "capture", std::make_shared<spdlog::sinks::ostream_sink_mt>(to)));
}

LogCapture::~LogCapture() {
  spdlog::set_default_logger(std::static_pointer_cast<spdlog::logger>(before_));
}

}  // namespace switchyard
