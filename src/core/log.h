// The logger: the only global of the program. Lines go to stderr as "[time] [level] [who] text".
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace switchyard {

// Sets up the process's logger. `who` stands in every line (e.g. "TP1 EP1"; empty for the front).
// `level` is one of debug, info, warning, error; anything else is an Error. Call once, from main or
// a rank's entry.
void InitLog(const std::string& level, const std::string& who = {});

}  // namespace switchyard

#define LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define LOG_WARNING(...) ::spdlog::warn(__VA_ARGS__)
#define LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)
