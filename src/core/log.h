// The logger of the process. Lines go to stderr as "[time] [level] [who] text".
#pragma once

#include <iosfwd>
#include <memory>
#include <string>

#include "core/format.h"

namespace switchyard {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Sets up the process logger. `who` is part of every line (e.g. "TP1 EP1"; empty for the front).
// `level`: debug, info, warning or error; anything else throws an Error. Call it from main or the
// entry point of a rank; a spare calls it again when it knows its rank.
void InitLog(const std::string& level, const std::string& who = {});

// Whether lines of `level` are written. Any thread may call it.
bool Logs(LogLevel level);
// Writes one line. Any thread may call it; lines of several threads do not mix. Control characters
// are written as escapes, such as \n for the end of a line.
void WriteLog(LogLevel level, fmt::string_view format, fmt::format_args args);

// Redirects log lines to `to` during its lifetime. For tests; only one may exist at a time.
class LogCapture {
 public:
  explicit LogCapture(std::ostream& to);
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

 private:
  std::shared_ptr<void> before_;  // the logger to restore
};

template <typename... Args>
void Log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (Logs(level)) WriteLog(level, format, fmt::make_format_args(args...));
}

}  // namespace switchyard

#define LOG_DEBUG(...) ::switchyard::Log(::switchyard::LogLevel::kDebug, __VA_ARGS__)
#define LOG_INFO(...) ::switchyard::Log(::switchyard::LogLevel::kInfo, __VA_ARGS__)
#define LOG_WARNING(...) ::switchyard::Log(::switchyard::LogLevel::kWarning, __VA_ARGS__)
#define LOG_ERROR(...) ::switchyard::Log(::switchyard::LogLevel::kError, __VA_ARGS__)
