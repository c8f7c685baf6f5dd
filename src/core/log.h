// The process logger, the program's only global. Lines go to stderr as "[time] [level] [who] text".
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace switchyard {

// Sets up the process logger. `who` is part of every line (e.g. "TP1 EP1"; empty for the front).
// `level`: debug, info, warning or error; anything else throws an Error. Call once, from main or
// the entry point of a rank.
void InitLog(const std::string& level, const std::string& who = {});

}  // namespace switchyard

#define LOG_DEBUG(...) ::spdlog::debug(__VA_ARGS__)
#define LOG_INFO(...) ::spdlog::info(__VA_ARGS__)
#define LOG_WARNING(...) ::spdlog::warn(__VA_ARGS__)
#define LOG_ERROR(...) ::spdlog::error(__VA_ARGS__)
